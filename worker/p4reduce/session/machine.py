# SPDX-License-Identifier: Apache-2.0
"""What the engine runs: a job's slots, as `protocol.slots` has them or `p4reduce.reference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.native_turn import LinkLock
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.membership import Attached, here
from p4reduce.session.port import Turn
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.stream import Collective
from p4reduce.transport.base import Transport

NATIVE, REFERENCE = "native", "reference"
ENGINES = (NATIVE, REFERENCE)
"""What may run the slots."""


class Machine(Protocol):
    """A job's collectives and slots; what moves its frames is its `Turn`."""

    disputed: Callable[[Dispute], object] | None
    """Called when the ranks do not agree; must not wait, and see to it that `fail` ends the dispute
    soon. Until then nothing runs. None: it fails at once."""

    @property
    def counts(self) -> Counts:
        """Statistics."""

    @property
    def round_trips(self) -> RoundTrips:
        """What was measured."""

    @property
    def timeout_seconds(self) -> float:
        """After how long a contribution is sent again, now."""

    @property
    def window_size(self) -> int:
        """How many slots may have a contribution under way, now."""

    @property
    def broken(self) -> P4ReduceError | None:
        """Why no collective can be run any more, or None."""

    @property
    def next_sequence(self) -> int:
        """Number of the first collective that it has not been given."""

    @property
    def heard_switch_at(self) -> float:
        """When the switch last answered anything; -inf if it never did."""

    @property
    def idle(self) -> bool:
        """Whether all collectives are over."""

    def be_patient(self) -> None:
        """Frames go by memory or by a Unix socket, which lose none."""

    def go_on_counting(self, before: Counts, round_trips: RoundTrips) -> None:
        """Count on from what an earlier life of the job has counted and measured."""

    def count_collective(self) -> None:
        """Count one that was reduced in another way."""

    def submit(self, collective: Collective) -> None:
        """Queue a collective behind those of its class; all ranks do so in the same order."""

    def ranks_left(self, ranks: tuple[int, ...], now: float) -> None:
        """Ranks have left the job."""

    def fail(self, error: P4ReduceError) -> None:
        """End everything: nothing can be summed any more."""

    def resume(self, now: float) -> None:
        """Go on over a new transport: what was under way on the old one counts as lost."""

    def postpone(self, until: float) -> None:
        """Let no collective come to its deadline before `until`."""

    def take_news(self, now: float) -> None:
        """End what is over."""

    def turn(self, transport: Transport, lock: LinkLock | None) -> Turn:
        """Return what runs it over a transport."""


def machine_for(attached: Attached, engine: str) -> Machine:
    """Return a fresh machine for a life of the job, one of `ENGINES`."""
    seat, ready = attached.seat, attached.ready
    kind: Callable[..., Machine] = SlotMachine
    if engine == REFERENCE:
        # Here, as it imports scapy's layers, which takes seconds where there are many interfaces.
        from p4reduce.reference import ReferenceMachine

        kind = ReferenceMachine
    return kind(
        slots=ready.slot_count,
        urgent=ready.urgent_slots,
        job=seat.incarnation,
        rank=seat.rank,
        world_size=ready.world_size,
        here=here(seat, attached.transport),
        switch=attached.switch,
        levels=attached.levels,
    )
