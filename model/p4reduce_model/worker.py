# SPDX-License-Identifier: Apache-2.0
"""One rank of one life of a job: the real `SlotMachine` and its collectives, step by step.

As for the switch, what a step does is worked out once for each state that the machine is found in,
by taking the real objects back to that state and running their code, and then remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from p4reduce import plans
from p4reduce.blocks import Array
from p4reduce.calls import Operation
from p4reduce.collective import Collective
from p4reduce.errors import MismatchError, P4ReduceError
from p4reduce.frames import FrameBuffer
from p4reduce.slots import SlotMachine
from p4reduce.wire import AGG_OFFSET, Flag

from p4reduce_model.frames import Frame, Frames
from p4reduce_model.heap import Heap, Image
from p4reduce_model.jobs import SWITCH, endpoint_of, port_of
from p4reduce_model.scenario import Scenario
from p4reduce_model.violation import Violation

_IDLE = -1  # in place of the round that a slot waits for
_NOW = 0.0  # time stands still: when a timer runs out is a choice of the explorer's
_RUNNING = 1.0  # in place of when it runs out, for a timer that runs

_VIEWS = ("frames", "words", "records", "header", "flags", "payload")
NOT_STATE = {
    ("SlotMachine", "counts"): "statistics: only written",
    ("SlotMachine", "round_trips"): "statistics: only written",
    ("SlotMachine", "timeout"): "decides when a timer runs out, which in the model is at any time",
    ("SlotMachine", "opening_timeout"): "the same",
    ("SlotMachine", "_retransmissions"): "for the timeouts, statistics and texts of errors",
    ("SlotMachine", "_backed_off"): "whether there are any",
    ("SlotMachine", "_sent_at"): "for the timeouts",
    ("SlotMachine", "heard_switch_at"): "for texts of errors",
    ("SlotMachine", "_heard"): "for texts of errors",
    ("SlotMachine", "_codecs"): "constants, and scratch: written before it is read",
    ("SlotMachine", "_mark"): "scratch",
    ("SlotMachine", "_numbers"): "constant",
    **{("FrameBuffer", name): "the same memory as `raw`" for name in _VIEWS},
    ("Collective", "next_nonzero"): "constant",
    ("Collective", "exponents"): "constant",
}
"""Attributes that are left out of a machine's state, and why they may be. RETRANSMISSION in a frame
that is kept for repetition is left out as well. Every step is done twice, once with all of these
(but constants) at rest and once with other values in them, and has to lead to the same. In the
second run a frame comes together with one of another job, so that both ways that the machine has of
taking results are gone."""

_NOTHING = -99  # what is in a result before anything comes
_GARBAGE = 0xA5  # what a frame's row holds that is not to be sent any more

_LONGEST_BATCH = 3
_JOB = slice(AGG_OFFSET + 4, AGG_OFFSET + 8)


class Stepped(NamedTuple):
    """What a step of a machine leads to."""

    state: int
    out: int  # frames sent, as a set


class Progress(NamedTuple):
    """How far a slot is in a machine.

    Attributes:
        rounds: begun so far.
        parts: of the result of the last one that are there, as bits.
        awaited: the number of the last one if its result is awaited, or None.
    """

    rounds: int
    parts: int
    awaited: int | None

    def may_follow(self, other: Progress) -> bool:
        """Whether this may be the same moment as `other`, or a later one."""
        if self.rounds != other.rounds:
            return self.rounds > other.rounds
        if other.awaited is None or self.awaited is None:
            return self.awaited is None
        return self.parts & other.parts == other.parts


@dataclass(frozen=True)
class View:
    """What the explorer has to know of a machine's state.

    Attributes:
        slots: how far each slot is. Must never go back.
        awaited: for each slot, the round whose result it waits for, or None.
        timers: for each slot, whether its timer runs.
        submitted: calls made so far.
        waiting: frames that the transport has not taken.
        over: whether all calls have been made and have ended, and nothing more is to be sent.
        text: for people.
    """

    slots: tuple[Progress, ...]
    awaited: tuple[int | None, ...]
    timers: tuple[bool, ...]
    submitted: int
    waiting: int
    over: bool
    text: str


class Worker:
    """One machine and all states that it was found in.

    Args:
        scenario: what is explored.
        life, rank: which one.
        frames: where frames get their numbers.
        check_sent: called with each frame that is sent for the first time.
        machine: makes the machine, for planting faults; takes what `SlotMachine` does.
    """

    def __init__(
        self,
        scenario: Scenario,
        life: int,
        rank: int,
        frames: Frames,
        check_sent: Callable[[Frame], None],
        machine: type[SlotMachine] = SlotMachine,
    ) -> None:
        self.life, self.rank, self.port = life, rank, port_of(rank)
        self.name = f"rank {rank}" + (f" of job {scenario.job(life)}" if life else "")
        self._scenario = scenario
        self._frames = frames
        self._check_sent = check_sent
        self._machine = machine(
            slots=scenario.slots,
            job=scenario.job(life),
            rank=rank,
            world_size=scenario.ranks,
            here=endpoint_of(rank),
            switch=SWITCH,
        )
        self._machine._next_round[:] = scenario.first_round
        for kind, name in NOT_STATE:
            if kind == "SlotMachine" and not hasattr(self._machine, name):
                raise AttributeError(f"NOT_STATE names {kind}.{name}, which there is not")
        calls = range(len(scenario.lives[life]))
        inputs = [scenario.input(life, call, rank) for call in calls]
        self._targets = [
            source if what.in_place else np.full_like(source, _NOTHING)
            for what, source in zip(scenario.lives[life], inputs, strict=True)
        ]
        self._collectives = [self._collective(call, inputs[call]) for call in calls]
        # A block that is zero here is filled with zeros at once.
        self._untouched = [target.copy() for target in self._targets]
        self._results = [scenario.result(life, call) for call in range(len(self._collectives))]
        self._submitted: list[Collective] = []
        self._waiting: list[int] = []  # rows that the transport has not taken
        self._buffer = FrameBuffer(_LONGEST_BATCH)
        self._heap = Heap(
            [self._machine, self._collectives, self._submitted, self._waiting],
            without=NOT_STATE,
            module="p4reduce",
        )
        self._images: list[Image] = []
        self._views: list[View] = []
        self._numbers: dict[bytes, int] = {}
        self._steps: dict[tuple[int | str, ...], Stepped] = {}
        self._disturbed = False
        self._out = 0  # what was sent in the step that is under way
        self.first = self._arrive().state

    @property
    def runs(self) -> int:
        """How many different steps the code was run for."""
        return len(self._steps)

    @property
    def states(self) -> int:
        """How many states the machine was found in."""
        return len(self._images)

    @property
    def most_rounds(self) -> int:
        """The most rounds that a slot was found to have begun."""
        return max(slot.rounds for view in self._views for slot in view.slots)

    @property
    def tags(self) -> list[int]:
        """The tags of its calls."""
        return [collective.tag for collective in self._collectives]

    def view(self, state: int) -> View:
        """What there is to know of a state."""
        return self._views[state]

    def _collective(self, call: int, source: Array) -> Collective:
        what = self._scenario.lives[self.life][call]
        name = "another" if self.rank in what.differs else None
        plan = plans.allreduce(
            source, Operation.SUM, name, self._targets[call], world_size=self._scenario.ranks
        )
        collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=call,
            slots=self._scenario.slots,
            timeout=1.0,
            lane_format=plan.lane_format,
        )
        collective.deadline = math.inf  # a timeout of the caller's ends everything; no question
        return collective

    # -- Steps ---------------------------------------------------------------------------------

    def submit(self, state: int) -> Stepped:
        """Make the next call."""
        return self._step(state, self._submit)

    def receive(self, state: int, *numbers: int) -> Stepped:
        """Receive frames, in one batch."""
        return self._step(state, self._receive, *numbers)

    def expire(self, state: int, slot: int) -> Stepped:
        """Let the timer of a slot run out."""
        return self._step(state, self._expire, slot)

    def send(self, state: int) -> Stepped:
        """Let the transport take one frame."""
        return self._step(state, self._send)

    def _step(self, state: int, do: Callable[..., None], *arguments: int) -> Stepped:
        key: tuple[int | str, ...] = (state, do.__name__, *arguments)
        done = self._steps.get(key)
        if done is None:
            done = self._run(state, False, do, arguments)
            if self._run(state, True, do, arguments) != done:
                raise Violation(
                    "nothing else matters",
                    f"{self.name}: what {do.__name__} leads to depends on statistics or timers",
                )
            self._steps[key] = done
        return done

    def _run(
        self, state: int, disturbed: bool, do: Callable[..., None], arguments: tuple[int, ...]
    ) -> Stepped:
        Heap.restore(self._images[state])
        self._disturbed = disturbed
        self._set_what_is_not_state()
        do(*arguments)
        return self._arrive()

    def _set_what_is_not_state(self) -> None:
        """Set what is left out of the state to one or the other of two things that it might be."""
        machine, disturbed = self._machine, self._disturbed
        machine._retransmissions[:] = 3 if disturbed else 0
        machine._backed_off = disturbed
        machine._sent_at[:] = -9.0 if disturbed else _NOW
        machine.heard_switch_at = _NOW if disturbed else -math.inf
        machine._heard[:] = 1 if disturbed else 0
        machine._mark[:] = 1 if disturbed else 0
        for codec in machine._codecs.values():
            for scratch in (codec._lanes, *codec._scratch.values()):
                scratch.view(np.uint8)[:] = _GARBAGE if disturbed else 0
        if disturbed:
            machine.outgoing.flags[:] |= np.uint8(Flag.RETRANSMISSION)

    def _submit(self) -> None:
        collective = self._collectives[len(self._submitted)]
        self._submitted.append(collective)
        self._machine.submit(collective)

    def _receive(self, *numbers: int) -> None:
        frames = [self._frames[number] for number in numbers]
        if self._disturbed:
            # In a batch with a frame of somebody else, no shortcut for plain batches is taken.
            batch = [_of_another_job(frames[0].data), *(frame.repeated for frame in frames)]
        else:
            batch = [frame.data for frame in frames]
        for row, data in enumerate(batch):
            self._buffer.put(row, data)
        self._machine.receive(self._buffer, len(batch), _NOW)

    def _expire(self, slot: int) -> None:
        self._machine._due[slot] = _NOW
        self._machine.expire(_NOW)

    def _send(self) -> None:
        self._out |= self._transport([self._waiting.pop(0)])

    # -- Where it is then ----------------------------------------------------------------------

    def _arrive(self) -> Stepped:
        """Send what is to be sent, and find out which state the machine is in now."""
        rows = self._machine.take_sendable().tolist()
        if self._scenario.hesitant:
            self._waiting += rows
        elif rows:
            self._out |= self._transport(rows)
        out, self._out = self._out, 0
        self._forget()
        image = self._heap.capture()
        number = self._numbers.get(image.digest)
        if number is None:
            self._check_results()
            number = self._numbers[image.digest] = len(self._images)
            self._images.append(image)
            self._views.append(self._look())
        return Stepped(number, out)

    def _transport(self, rows: list[int]) -> int:
        """Put frames on the link."""
        out = 0
        for row in rows:
            data = self._machine.outgoing.get(row)
            out |= 1 << self._frames.number(
                up=True, port=self.port, data=data, check=self._check_sent
            )
        self._machine.sent(np.array(rows), _NOW)
        return out

    def _forget(self) -> None:
        """Remove what no longer matters from the machine, or does not matter to the model."""
        machine = self._machine
        runs = np.isfinite(machine._due)
        machine._due[runs] = _RUNNING
        machine.outgoing.flags[:] &= np.uint8(~Flag.RETRANSMISSION & 0xFF)
        # A frame that is not to be sent any more may as well be garbage: if it were sent after
        # all, that would show.
        used = (machine._expected != _IDLE) | runs
        live = {*machine._row[used].tolist(), *self._waiting}
        machine._row[~used] = 0
        dead = [row for row in range(len(machine.outgoing)) if row not in live]
        machine.outgoing.header[dead] = _GARBAGE
        machine.outgoing.payload[dead] = _GARBAGE

    def _look(self) -> View:
        machine, scenario = self._machine, self._scenario
        timers = tuple(np.isfinite(machine._due).tolist())
        submitted = len(self._submitted)
        done = [collective.done() for collective in self._submitted]
        rounds = (machine._next_round.astype(np.int64) - scenario.first_round) & 0xFFFFFFFF
        awaited = [None if number == _IDLE else number for number in machine._expected.tolist()]
        waits = [
            f"in slot {slot} for round {number}"
            for slot, number in enumerate(awaited)
            if number is not None
        ]
        text = f"{sum(done)} of {len(self._collectives)} calls are over"
        text += f", waits {' and '.join(waits)}" if waits else ""
        idle = [slot for slot, runs in enumerate(timers) if runs and awaited[slot] is None]
        text += f", but the timer of slot {idle} runs" if idle else ""
        text += f", {len(self._waiting)} frames not sent" if self._waiting else ""
        text += f", broken: {machine.broken}" if machine.broken is not None else ""
        return View(
            slots=tuple(map(Progress, rounds.tolist(), machine._parts.tolist(), awaited)),
            awaited=tuple(awaited),
            timers=timers,
            submitted=submitted,
            waiting=len(self._waiting),
            over=len(done) == len(self._collectives)
            and all(done)
            and not any(timers)
            and not self._waiting,
            text=text,
        )

    # -- What has to hold ----------------------------------------------------------------------

    def _check_results(self) -> None:
        """What was accepted so far has to be right."""
        for call, collective in enumerate(self._submitted):
            error = collective.error
            if self._results[call] is None:
                if collective.done() and not isinstance(error, MismatchError):
                    raise Violation(
                        "mismatch",
                        f"{self.name}, call {call}: the ranks do not agree, but the call ends "
                        f"with {error or 'a result'!r}",
                    )
            elif error is not None and not self._may_fail(error):
                raise Violation("no error", f"{self.name}, call {call}: {error}")
            self._check_blocks(call, complete=collective.done() and error is None)

    def _may_fail(self, error: P4ReduceError) -> bool:
        """Whether another call is one that the ranks do not agree about."""
        return isinstance(error, MismatchError) and any(result is None for result in self._results)

    def _check_blocks(self, call: int, *, complete: bool) -> None:
        # By halves, as a result may come in two.
        half = self._scenario.half(self.life, call)
        target = self._targets[call].reshape(-1, 2, half)
        untouched = self._untouched[call].reshape(-1, 2, half)
        result = self._results[call]
        wanted = None if result is None else result.reshape(-1, 2, half)
        for block, part in np.ndindex(target.shape[:2]):
            found = target[block, part]
            if wanted is not None and np.array_equal(found, wanted[block, part]):
                continue
            nothing = np.array_equal(found, untouched[block, part])
            if complete or not nothing:
                what = (
                    "nothing, but is done"
                    if nothing
                    else self._scenario.addends(self.life, call, found)
                )
                raise Violation(
                    "results", f"{self.name} gets for block {block} of call {call}: {what}"
                )


def _of_another_job(data: bytes) -> bytes:
    return data[: _JOB.start] + b"\xff\xff\xff\xff" + data[_JOB.stop :]
