# SPDX-License-Identifier: Apache-2.0
"""The machine of an engine: a job's slots, by `protocol.slots` or `p4reduce.reference`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeAlias

from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.job_client import JoinedJob, here

if TYPE_CHECKING:
    # At run time only where it is asked for, by `load`.
    from p4reduce.reference.machine import ReferenceMachine

NATIVE, REFERENCE = "native", "reference"
ENGINES = (NATIVE, REFERENCE)
"""What may run the slots."""

Machine: TypeAlias = "SlotMachine | ReferenceMachine"
"""A job's collectives and slots; what moves its frames is its `iteration`."""


def load(engine: str) -> None:
    """Import one of `ENGINES` before the rank joins: no heartbeat is sent meanwhile.

    The reference imports scapy's layers, which takes seconds where there are many interfaces.
    """
    if engine == REFERENCE:
        importlib.import_module("p4reduce.reference.machine")


def machine_for(joined: JoinedJob, engine: str) -> Machine:
    """Return a fresh machine for a life of the job, of one of `ENGINES`."""
    member, ready = joined.member, joined.ready
    kind: type[SlotMachine | ReferenceMachine] = SlotMachine
    if engine == REFERENCE:
        from p4reduce.reference.machine import ReferenceMachine

        kind = ReferenceMachine
    return kind(
        slots=ready.slot_count,
        urgent=tuple(ready.urgent_slots),
        job=member.incarnation,
        rank=member.rank,
        world_size=ready.world_size,
        here=here(member, joined.transport),
        switch=joined.switch,
        levels=joined.levels,
    )
