# SPDX-License-Identifier: Apache-2.0
"""What outlives a packet, as the interpreter sees it. `Pipeline` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from p4reduce_switch.state.clone_sessions import CloneSessions
from p4reduce_switch.state.digests import Digest
from p4reduce_switch.state.meters import MeterArray
from p4reduce_switch.state.multicast import MulticastGroups
from p4reduce_switch.state.pipeline_stats import PipelineStats
from p4reduce_switch.state.queues import EgressQueues
from p4reduce_switch.state.registers import Counter, Register
from p4reduce_switch.state.replay import ReplayQueue
from p4reduce_switch.state.tables import Table
from p4reduce_switch.state.timers import Timers
from p4reduce_switch.state.value_sets import ValueSet


class LastingState(Protocol):
    """The tables, counters and so on of a program, as attributes of `Pipeline`."""

    tables: Mapping[str, Table]
    counters: Mapping[str, Counter]
    registers: Mapping[str, Register]
    meters: Mapping[str, MeterArray]
    digests: Mapping[str, Digest]
    value_sets: Mapping[str, ValueSet]
    multicast: MulticastGroups
    clone_sessions: CloneSessions
    timers: Timers
    stats: PipelineStats
    replays: ReplayQueue
    queues: EgressQueues | None
    drop_port: int

    def now(self) -> int:
        """Return the microseconds since the program was loaded."""
