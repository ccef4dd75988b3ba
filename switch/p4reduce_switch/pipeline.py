# SPDX-License-Identifier: Apache-2.0
"""A loaded P4 program that runs packets.

One thread calls `process`. Another thread may change tables, counters, registers and multicast
groups meanwhile, without a lock; `state/tables.py` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from p4reduce_native.loop import NativeEntry

from p4reduce_switch.interpreter.actions import Visit
from p4reduce_switch.interpreter.machine import Machine
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.program.ir import ApplyTable, Program
from p4reduce_switch.program.load_error import LoadError
from p4reduce_switch.program.usage import Usage
from p4reduce_switch.state.clone_sessions import CloneSessions
from p4reduce_switch.state.digests import Digest
from p4reduce_switch.state.errors import AlreadyThereError
from p4reduce_switch.state.idle import IdleMonitor
from p4reduce_switch.state.meters import MeterArray
from p4reduce_switch.state.multicast import MulticastGroups
from p4reduce_switch.state.pipeline_stats import PipelineStats
from p4reduce_switch.state.profiles import ActionProfile, IndirectTable
from p4reduce_switch.state.queue_settings import QueueSettings
from p4reduce_switch.state.queues import EgressQueues
from p4reduce_switch.state.registers import Counter, Register
from p4reduce_switch.state.replay import ReplayQueue
from p4reduce_switch.state.tables import ActionInfo, MatchKey, Table, TableEntry
from p4reduce_switch.state.timers import Clock, Timers
from p4reduce_switch.state.value_sets import ValueSet

Process = Callable[[int, bytes], list[tuple[int, bytes]]]
"""Takes the port where a frame came in, and the frame; gives port and frame of each copy."""


class Pipeline:
    """A P4 program (v1model, compiled for BMv2) that runs packets.

    Args:
        config: p4c's JSON.
        cpu_port: the port of packet-in and packet-out; only stored.
        drop_port: what `mark_to_drop` writes to `egress_spec`.
        queues: settings of egress queues; None: as in simple_switch.
        clock: nanoseconds, for meters, digests and idle timeouts.

    Attributes:
        tables, counters, registers: by name as in the P4Info, and the tables that p4c made.
        profiles: the action profiles and selectors, by name.
        meters, digests: by name. idle: the watchers of idle entries, by the table's name.
        timers: later calls; the pipeline's user calls `run_due` regularly.
        multicast: the multicast groups.
        clone_sessions: the clone sessions.
        value_sets: the parser value sets, by name.
        stats: counts of the frames.
        source: the generated C; empty if the program is interpreted.
        replays: packets that wait to be run again. queues: the egress queues, if there are some.

    Raises:
        LoadError: the program cannot be loaded, with construct and source line.
    """

    def __init__(
        self,
        config: bytes | str,
        *,
        cpu_port: int | None = None,
        drop_port: int = 511,
        queues: QueueSettings | None = None,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        program = load(config)
        self.cpu_port = cpu_port
        self.drop_port = drop_port
        self.queue_settings = QueueSettings() if queues is None else queues
        self.profiles: Mapping[str, ActionProfile] = _profiles(program)
        self.tables: Mapping[str, Table] = _tables(program, self.profiles)
        self.counters: Mapping[str, Counter] = {
            c.name: Counter(c.name, c.size, table=c.table) for c in program.kept.counters.values()
        }
        self.registers: Mapping[str, Register] = {
            r.name: Register(r.name, r.width, r.size) for r in program.kept.registers.values()
        }
        self.timers = Timers(clock)
        self.meters: Mapping[str, MeterArray] = {
            m.name: MeterArray(m.name, m.size, clock, in_bytes=m.counts_bytes, table=m.table)
            for m in program.kept.meters.values()
        }
        self.digests: Mapping[str, Digest] = {
            name: Digest(name, self.timers) for name in program.kept.digests
        }
        self.digest_widths: Mapping[str, list[int]] = {
            name: [field.width for field in digest.fields]
            for name, digest in program.kept.digests.items()
        }
        self.idle: Mapping[str, IdleMonitor] = {
            node.name: IdleMonitor(self.tables[node.name], self.timers)
            for node in _apply_tables(program)
            if node.has_idle_timeout
        }
        self.multicast = MulticastGroups()
        self.clone_sessions = CloneSessions()
        self.value_sets: Mapping[str, ValueSet] = {
            v.name: ValueSet(v.name, v.widths, v.size) for v in program.kept.value_sets.values()
        }
        self.stats = PipelineStats()
        self.replays = ReplayQueue(self.stats)
        self._start = clock()
        self.native: NativeEntry | None = None
        """Where the loop enters a program that is machine code."""
        self.queues: EgressQueues | None = None
        self.source = ""
        self.process: Process = self._make_process(config, program)
        """Run a frame that came in at a port (0..511). Gives (port, frame) of each copy to send, in
        the order of the replicas; empty if the frame is dropped, or waits in an egress queue. Never
        raises, whatever the bytes are."""

    @property
    def has_queues(self) -> bool:
        """Whether frames may wait for egress. `release` releases them."""
        return self.queues is not None

    def release(self) -> list[tuple[int, bytes]]:
        """Release the frames in egress queues that are due; yields (port, frame) as `process`
        does."""
        return [] if self.queues is None else self.queues.release()

    def serve_events(self) -> None:
        """Handle the events that machine code has left for Python."""

    def _make_process(self, config: bytes | str, program: Program) -> Process:
        """Return what runs frames."""
        return self._interpret(program, None)

    def _interpret(self, program: Program, visit: Visit | None) -> Process:
        """Return what runs frames, and calls `visit` at each point of the program."""
        if Usage(program, queues=not self.queue_settings.is_default).queued:
            self.queues = EgressQueues(
                self.queue_settings, self.stats, self.replays, self.timers.clock, self.now
            )
        return Machine(program, self, visit).process

    def now(self) -> int:
        """Return the microseconds since the program was loaded."""
        return (self.timers.clock() - self._start) // 1000


def _apply_tables(program: Program) -> list[ApplyTable]:
    return [
        node
        for control in (program.ingress, program.egress)
        for node in control.nodes.values()
        if isinstance(node, ApplyTable)
    ]


def _profiles(program: Program) -> dict[str, ActionProfile]:
    profiles = [node.profile for node in _apply_tables(program) if node.profile is not None]
    return {
        p.name: ActionProfile(p.name, p.size, has_selector=p.selector is not None) for p in profiles
    }


def _tables(program: Program, profiles: Mapping[str, ActionProfile]) -> dict[str, Table]:
    return {node.name: _table(program, node, profiles) for node in _apply_tables(program)}


def _table(program: Program, node: ApplyTable, profiles: Mapping[str, ActionProfile]) -> Table:
    actions = [
        ActionInfo(
            action.name,
            tuple((param.name, param.width) for param in action.params),
            frozenset(param.index for param in action.params if param.negative),
        )
        for action in (program.actions[number] for number in node.actions)
    ]
    entries = [
        TableEntry(entry.match, entry.priority, program.actions[entry.action].name, entry.args)
        for entry in node.initial_entries
    ]
    make: Callable[..., Table] = Table
    if node.profile is not None:
        make = partial(IndirectTable, profile=profiles[node.profile.name])
    try:
        return make(
            node.name,
            [MatchKey(field.name, field.width, field.kind) for field in node.key],
            node.size,
            actions,
            (program.actions[node.default_action].name, node.default_args),
            const_default_action=node.const_default_action,
            has_direct_counter=node.has_direct_counter,
            initial_entries=entries,
        )
    except (ValueError, AlreadyThereError) as error:
        raise LoadError(f"{node.source}: {error}") from None
