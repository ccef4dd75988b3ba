# SPDX-License-Identifier: Apache-2.0
"""What each slot of a switch is doing, read from the P4 program's registers
(p4src/v1model/slots.p4).

Each slot has two versions: cell 2·slot for even rounds, and 2·slot + 1 for odd ones
(docs/protocol.md, "Why two versions are enough"). The newer version of a job shows what the slot is
doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce_controller.fabric.p4client import SwitchClient

REGISTERS = ("jobs", "rounds", "missing_ranks", "blocks")
_HALF = 1 << 31  # rounds are compared as serial numbers (RFC 1982)


@dataclass(frozen=True)
class SwitchSlotState:
    """The state of a slot at one moment. `job` is 0 if no existing job has used it."""

    slot: int  # of the switch: the job's slot plus its slot_base
    job: int = 0  # an incarnation
    round: int = 0
    block: int = 0
    awaited: int = (1 << 64) - 1  # bitmap of the children that have not contributed to the round

    def missing(self, children: int) -> list[int]:
        """The children, by number, that have not contributed to the round."""
        return [number for number in range(children) if self.awaited >> number & 1]


def read_slots(client: SwitchClient, slots: Sequence[int], job: int) -> list[SwitchSlotState]:
    """Read the state of a job's slots. Raises SwitchError."""
    indices = [2 * slot + version for slot in slots for version in (0, 1)]
    cells = list(zip(*client.read_cells(REGISTERS, indices), strict=True))
    return [_newer(slot, job, cells[2 * at : 2 * at + 2]) for at, slot in enumerate(slots)]


def _newer(slot: int, job: int, versions: Sequence[tuple[int, ...]]) -> SwitchSlotState:
    own = [(number, awaited, block) for owner, number, awaited, block in versions if owner == job]
    if not own:
        return SwitchSlotState(slot)
    newest = own[0]
    if len(own) == 2 and (own[1][0] - own[0][0]) % (2 * _HALF) < _HALF:
        newest = own[1]
    number, awaited, block = newest
    return SwitchSlotState(slot, job, number, block, awaited)
