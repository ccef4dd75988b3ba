# SPDX-License-Identifier: Apache-2.0
"""One rank as it is: the real `SlotMachine`, and the collectives it runs.

What is done around these by threads and sockets (engine, session) is a few lines here: the same
calls in the same order, and no time.
"""

from __future__ import annotations

import functools
import math
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from p4reduce.machine_code import Library, engine_library
from p4reduce.protocol.slot_state import IDLE, SHAPES
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.blocks import Array
from p4reduce.tensors.continuing import Continuation, Messages, Rounds, Words
from p4reduce.tensors.native_stream import NativeStream
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation, class_slots
from p4reduce.wire.format import AGG_OFFSET, PAYLOAD_FRAME_BYTES, Flag
from p4reduce.wire.frames import FrameBuffer
from p4reduce_native.compile import compile_shared
from p4reduce_native.library import CSRC, engine_sources, load

from p4reduce_model.scenario import Scenario
from p4reduce_model.wiring import Wiring, endpoint_of

_NOW = 0.0  # time stands still: when a timer runs out is a choice of the explorer's
_RUNNING = 1.0  # in place of when it runs out, for a timer that runs

_VIEWS = ("frames", "records", "payload")
NOT_STATE = {
    ("SlotMachine", "_library"): "constant",
    ("SlotMachine", "_visit"): "constant",
    ("SlotMachine", "_shared"): "the same as `state.structure`",
    ("SlotMachine", "_address"): "where it happens to be in memory",
    ("SlotMachine", "_out"): "scratch",
    ("SlotMachine", "_scratch"): "scratch",
    (
        "SlotState",
        "structure",
    ): "statistics, estimates and addresses; the rest is in `window`, `flags`",
    ("SlotState", "address"): "where it happens to be in memory",
    ("SlotState", "trips"): "for the window's size, which in the model is any",
    ("SlotState", "streams"): "addresses, which follow from `owner`",
    ("SlotState", "_live"): "addresses, which follow from the machine's collectives",
    ("SlotState", "_scratch"): "scratch",
    ("SlotState", "_numbers"): "scratch",
    ("SlotState", "over"): "scratch",
    ("SlotState", "tries"): "for the timeouts, statistics and texts of errors",
    ("SlotState", "sent_at"): "for the timeouts",
    ("SlotState", "opening"): "for the timeouts and the window's size",
    ("SlotState", "heard"): "for texts of errors",
    ("SlotState", "level"): "for texts of errors",
    ("Collective", "over_at"): "for whoever measures: only written",
    ("Collective", "stream"): "follows from the rest of the collective",
    **{("FrameBuffer", name): "the same memory as `raw`" for name in _VIEWS},
    ("FrameBuffer", "address"): "where it happens to be in memory",
    ("FrameBuffer", "rows_address"): "where it happens to be in memory",
    ("Collective", "call"): "constant",
    ("Collective", "next_nonzero"): "constant",
    ("Collective", "exponents"): "constant",
}
"""Attributes that are left out of the state, and why they may be. RETRANSMISSION in a frame that is
kept for repetition is left out as well. Every step is done twice, once with all of these (but
constants) at rest and once with other values in them and a frame of another job beside each, and
has to lead to the same."""

_NOTHING = -99  # what is in a result before anything comes
_GARBAGE = 0xA5  # what a frame's row holds that is not to be sent any more
_LONGEST_BATCH = 3
_JOB = slice(AGG_OFFSET + 4, AGG_OFFSET + 8)


@dataclass(frozen=True)
class Code:
    """What is run; anything else is for planting faults.

    Attributes:
        edits: of files in csrc/worker: (file, what is there once, what is put there instead).
        agree: finds where the ranks continue.
    """

    edits: tuple[tuple[str, str, str], ...] = ()
    agree: Callable[[Rounds, list[Words]], Continuation] = Continuation.of

    def library(self) -> Library:
        """Return the engine, with the edits in it if there are any."""
        return edited_library(self.edits) if self.edits else engine_library()


@functools.cache
def edited_library(edits: tuple[tuple[str, str, str], ...]) -> Library:
    """Compile the engine with some changes.

    Raises:
        ValueError: what an edit replaces is not there, or more than once.
    """
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch, "csrc")
        shutil.copytree(CSRC, sources)
        for file, old, new in edits:
            text = (sources / "worker" / file).read_text()
            if text.count(old) != 1:
                raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once")
            (sources / "worker" / file).write_text(text.replace(old, new))
        paths = engine_sources(sources)
        return Library(load(compile_shared("fault", paths, include=[sources])))


REAL = Code()


class Process:
    """A rank.

    Args:
        scenario: what is explored.
        life: of the job in which it starts. It continues in later ones if the scenario has it
            recover from the loss of the switch.
        rank: its number.
        code: what it runs.

    Attributes:
        collectives: one for each call, whether made or not.
        submitted: those made.
        targets: where their results go.
        untouched: what was in these at first.
        waiting: rows that the transport has not taken.
    """

    def __init__(self, scenario: Scenario, life: int, rank: int, code: Code) -> None:
        self._scenario = scenario
        self._rank = rank
        self._code = code
        self._machines = [self._make_machine(life)]  # the one that runs; empty when it is halted
        self._halted: list[SlotMachine] = []  # what it was then
        self._place = [life, 0]  # the life, and how many calls had begun when it was halted last
        calls = range(len(scenario.calls(life)))
        inputs = [scenario.input(life, call, rank) for call in calls]
        self.targets = [
            source if what.in_place else np.full_like(source, _NOTHING)
            for what, source in zip(scenario.calls(life), inputs, strict=True)
        ]
        self.collectives = [self._collective(life, call, inputs[call]) for call in calls]
        # A block that is zero here is filled with zeros at once.
        self.untouched = [target.copy() for target in self.targets]
        self.submitted: list[Collective] = []
        self.waiting: list[int] = []
        self._buffer = FrameBuffer(_LONGEST_BATCH)
        self.roots = [
            self._machines,
            self._halted,
            self._place,
            self.collectives,
            self.targets,  # a collective lets go of its own at its end
            self.submitted,
            self.waiting,
        ]

    @property
    def machine(self) -> SlotMachine | None:
        """The one that runs, unless it is halted."""
        return self._machines[0] if self._machines else None

    @property
    def life(self) -> int:
        """Of the job."""
        return self._place[0]

    @property
    def last_machine(self) -> SlotMachine:
        """The one that runs, or that was halted."""
        return (self._machines or self._halted)[0]

    def _make_machine(self, life: int) -> SlotMachine:
        wiring = Wiring(self._scenario)
        machine = SlotMachine(
            slots=self._scenario.slots,
            urgent=self._scenario.urgent,
            job=self._scenario.job(life),
            rank=self._rank,
            world_size=self._scenario.ranks,
            here=endpoint_of(self._rank),
            switch=wiring.endpoint(wiring.switch_of(self._rank)),
            levels=wiring.levels(self._rank),
            few=self._scenario.few,
            library=self._code.library(),
        )
        machine.state.next_round[:] = self._scenario.first_round
        parts = {type(one).__name__: one for one in (machine, machine.state, machine.outgoing)}
        for kind, name in NOT_STATE:
            if kind in parts and not hasattr(parts[kind], name):
                raise AttributeError(f"NOT_STATE names {kind}.{name}, which does not exist")
        return machine

    def _collective(self, life: int, call: int, source: Array) -> Collective:
        called = self._scenario.calls(life)[call]
        plan = plans.allreduce(
            source,
            Operation.SUM,
            "another" if self._rank in called.differs else None,
            self.targets[call],
            called.precision,
            world_size=self._scenario.ranks,
        ).with_priority(called.priority)
        slots = class_slots(self._scenario.slots, self._scenario.urgent)[called.priority]
        collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=call,
            slots=len(slots),
            first_slot=slots.start,
            timeout=1.0,
            lane_format=plan.lane_format,
        )
        collective.deadline = math.inf  # a timeout of the caller's ends everything; no question
        return collective

    # -- What it does ----------------------------------------------------------------------------

    def submit(self) -> None:
        """Make the next call: `Session.submit`."""
        collective = self.collectives[len(self.submitted)]
        self.submitted.append(collective)
        if self.machine is not None:
            self.machine.submit(collective)

    def receive(self, batch: list[bytes], *, disturbed: bool) -> None:
        """Receive frames."""
        if disturbed:
            # With a frame of somebody else, which has to make no difference.
            batch = [_of_another_job(batch[0]), *batch]
        for row, data in enumerate(batch):
            self._buffer.put(row, data)
        if self.machine is not None:
            self.machine.receive(self._buffer, len(batch), _NOW)

    def expire(self, slot: int) -> None:
        """Let the timer of a slot run out."""
        assert self.machine is not None
        self.machine.state.due[slot] = _NOW
        self.machine.expire(_NOW)

    @property
    def window(self) -> int:
        """How many slots may have a contribution under way."""
        return self.machine.window_size if self.machine is not None else 0

    def set_window(self, size: int) -> None:
        """Find another window to be right."""
        assert self.machine is not None
        self.machine.window_size = size

    def take(self) -> None:
        """Take the rows that are to be sent from the machine."""
        if self.machine is not None:
            self.waiting += self.machine.take_sendable().tolist()

    def send(self, number: int) -> list[bytes]:
        """Send the first `number` rows in order, and return their frames."""
        rows, self.waiting[:] = self.waiting[:number], self.waiting[number:]
        if self.machine is None or not rows:
            return []
        frames = [self.machine.outgoing.get(row) for row in rows]
        self.machine.sent(np.array(rows), _NOW)
        return frames

    def halt(self) -> None:
        """Notice that the switch is lost: `Recovery` ends the engine and asks how far it is."""
        self._halted.append(self._machines.pop())
        self.waiting.clear()
        self._place[1] = len(self.submitted)

    def resume(self, where: Continuation, results: Messages) -> None:
        """Continue in the job's next life: `ResumeAgreement` and `Session.resume`."""
        self._place[0] += 1
        before = self._halted.pop()
        machine = self._make_machine(self.life)
        self._machines.append(machine)
        machine.continue_from(before, where.newest, _NOW)
        machine.take_results(where.slots[where.lacking], results[where.lacking], _NOW)
        for collective in self.submitted[self._place[1] :]:
            machine.submit(collective)

    def settle(self, where: Continuation, results: Messages) -> None:
        """Take what this rank lacks, after the loss of another one: `settle_calls`."""
        taken, machine = where.slots[where.lacking], self.last_machine
        machine.take_results(taken, results[where.lacking], _NOW)
        machine.take_sendable()  # there is nobody to send it to

    # -- What is no part of its state ------------------------------------------------------------

    def set_aside(self, *, disturbed: bool) -> None:
        """Set what is left out of the state to one or the other of two things that it might be."""
        machine = self.last_machine
        state = machine.state
        for collective in machine.collectives.values():
            collective.stream = NativeStream(collective, self._scenario.ranks)
        state.relink({n: one.stream.address for n, one in machine.collectives.items()})
        figures = state.structure
        if self._halted:
            figures.next_sequence = self._place[1]
        figures.backed_off = figures.some_open = disturbed
        figures.results = figures.troubled = 0  # no period ends: the explorer sets the size
        figures.heard_switch_at = _NOW if disturbed else -math.inf
        state.tries[:] = 3 if disturbed else 0
        state.opening[:] = disturbed
        state.sent_at[:] = -9.0 if disturbed else _NOW
        state.heard[:] = 1 if disturbed else 0
        if disturbed:
            machine.outgoing.records["flags"] |= np.uint8(Flag.RETRANSMISSION)
            machine.kept.records["flags"] |= np.uint8(Flag.RETRANSMISSION)

    def forget(self) -> None:
        """Remove what no longer matters, or does not matter to the model."""
        machine = self.last_machine
        state = machine.state
        if self._scenario.recoveries or self._scenario.settles:
            machine.kept.records["flags"] &= np.uint8(~Flag.RETRANSMISSION & 0xFF)
        else:
            machine.kept.frames[:] = 0  # nobody asks for it
        runs = np.isfinite(state.due)
        state.due[runs] = _RUNNING
        machine.outgoing.records["flags"] &= np.uint8(~Flag.RETRANSMISSION & 0xFF)
        # A frame that is not to be sent any more may as well be garbage: if it were sent after
        # all, that would show.
        used = (state.expected != IDLE) | runs
        used[[row // SHAPES for row in self.waiting]] = True
        live = {*state.row[used].tolist(), *self.waiting}
        state.row[~used] = 0
        dead = [row for row in range(len(machine.outgoing)) if row not in live]
        machine.outgoing.frames[dead, AGG_OFFSET:PAYLOAD_FRAME_BYTES] = _GARBAGE


def _of_another_job(data: bytes) -> bytes:
    return data[: _JOB.start] + b"\xff\xff\xff\xff" + data[_JOB.stop :]
