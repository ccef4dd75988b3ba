# SPDX-License-Identifier: Apache-2.0
"""All states of one rank, and what each step leads to.

As for the switch, what a step does is worked out once for each state that the rank is found in, by
taking the real objects back to that state and running their code, and then remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from p4reduce.errors import MismatchError, P4ReduceError
from p4reduce.protocol.slot_state import IDLE
from p4reduce.tensors.blocks import Array
from p4reduce.tensors.continuing import Continuation, Messages, Rounds

from p4reduce_model.found import Violation
from p4reduce_model.frames import Frame, Frames
from p4reduce_model.heap import Heap, Image
from p4reduce_model.process import NOT_STATE, Code, Process
from p4reduce_model.scenario import Scenario
from p4reduce_model.wiring import Wiring, port_of

_HALTED = 1 << 32  # in place of the rounds that were begun: more than there can be


class Stepped(NamedTuple):
    """What a step of a rank leads to."""

    state: int
    out: int  # frames sent, as a set


class Progress(NamedTuple):
    """How far a slot is in a rank.

    Attributes:
        life: of the job.
        rounds: begun so far.
        parts: of the result of the last one that are there, as bits.
        awaited: the number of the last one if its result is awaited, or None.
        bare: whether its contribution is without lanes, also without padding.
    """

    life: int
    rounds: int
    parts: int
    awaited: int | None
    bare: bool

    def may_follow(self, other: Progress) -> bool:
        """Whether this may be the same moment as `other`, or a later one."""
        if self[:2] != other[:2]:
            return self[:2] > other[:2]
        if other.awaited is None or self.awaited is None:
            return self.awaited is None
        return self.parts & other.parts == other.parts and self.bare <= other.bare


@dataclass(frozen=True)
class View:
    """What the explorer has to know of a rank's state.

    Attributes:
        life: of the job.
        slots: how far each slot is. Must never go back.
        timers: for each slot, whether its timer runs.
        submitted: calls made so far.
        window: how many slots may have a contribution under way.
        waiting: frames that the transport has not taken.
        halted: whether it has noticed that the switch is lost, and has not gone on yet.
        finished: how many results each slot has had.
        results: the last one of each slot.
        ended: which calls have ended.
        over: whether all calls have been made and have ended, and nothing more is to be sent.
        text: for people.
    """

    life: int
    slots: tuple[Progress, ...]
    timers: tuple[bool, ...]
    submitted: int
    window: int
    waiting: int
    halted: bool
    finished: Rounds
    results: Messages
    ended: frozenset[int]
    over: bool
    text: str


class Worker:
    """One rank and all states that it was found in.

    Attributes:
        agreements: by number: where this rank continues after a loss, and the results that others
            hand to it.

    Args:
        scenario: what is explored.
        life: of the job in which it starts.
        rank: its number.
        frames: where frames get their numbers.
        check_sent: called with each frame that is sent for the first time.
        code: what it runs.
    """

    def __init__(
        self,
        scenario: Scenario,
        life: int,
        rank: int,
        frames: Frames,
        check_sent: Callable[[Frame], None],
        code: Code,
    ) -> None:
        self.life, self.rank = life, rank
        self.at = (Wiring(scenario).switch_of(rank), port_of(rank))  # the switch, and its port
        self.name = f"rank {rank}" + (f" of job {scenario.job(life)}" if life else "")
        self._scenario = scenario
        self._frames = frames
        self._check_sent = check_sent
        self._process = Process(scenario, life, rank, code)
        self._heap = Heap(self._process.roots, without=NOT_STATE, module="p4reduce")
        self._handlers: dict[str, Callable[..., None]] = {
            "submit": self._process.submit,
            "receive": self._receive,
            "timer": self._process.expire,
            "send": self._send,
            "window": self._process.set_window,
            "halt": self._process.halt,
            "resume": self._resume,
            "settle": self._settle,
        }
        self.agreements: list[tuple[Continuation, Messages]] = []
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
        """How many states the rank was found in."""
        return len(self._images)

    @property
    def most_rounds(self) -> int:
        """The most rounds that a slot was found to have begun."""
        return max(slot.rounds for view in self._views if not view.halted for slot in view.slots)

    @property
    def tags(self) -> list[int]:
        """The tags of its calls."""
        return [collective.tag for collective in self._process.collectives]

    def view(self, state: int) -> View:
        """What there is to know of a state."""
        return self._views[state]

    # -- Steps ---------------------------------------------------------------------------------

    def do(self, state: int, what: str, *about: int) -> Stepped:
        """Let one of a rank's events happen: see `system.Event`."""
        key: tuple[int | str, ...] = (state, what, *about)
        done = self._steps.get(key)
        if done is None:
            done = self._run(state, False, what, about)
            other = self._run(state, True, what, about)
            if other != done:
                raise Violation(
                    "nothing else matters",
                    f"{self.name}: what {what} leads to depends on statistics, timers or the way "
                    f"it is computed{self._said_to_differ(done, other)}",
                )
            self._steps[key] = done
        return done

    def _said_to_differ(self, one: Stepped, other: Stepped) -> str:
        parts = self._images[one.state].differences(self._images[other.state])
        sent = ["what is sent"] if one.out != other.out else []
        return f"; they differ in {', '.join([*sent, *parts])}" if sent or parts else ""

    def _run(self, state: int, disturbed: bool, what: str, about: tuple[int, ...]) -> Stepped:
        Heap.restore(self._images[state])
        self._disturbed = disturbed
        self._process.set_aside(disturbed=disturbed)
        self._out = 0
        try:
            self._handlers[what](*about)
        except P4ReduceError as error:
            raise Violation("no error", f"{self.name}: {error}") from error
        return self._arrive()

    def _receive(self, *numbers: int) -> None:
        frames = [self._frames[number] for number in numbers]
        batch = [frame.repeated if self._disturbed else frame.data for frame in frames]
        self._process.receive(batch, disturbed=self._disturbed)

    def _resume(self, number: int) -> None:
        self._process.resume(*self.agreements[number])

    def _settle(self, number: int) -> None:
        self._process.settle(*self.agreements[number])

    def _send(self) -> None:
        self._out |= self._transport(1)

    def _transport(self, number: int) -> int:
        """Put that many frames on the link."""
        out = 0
        for data in self._process.send(number):
            out |= 1 << self._frames.number(
                inward=True, at=self.at, data=data, check=self._check_sent
            )
        return out

    # -- Where it is then ----------------------------------------------------------------------

    def _arrive(self) -> Stepped:
        """Send what is to be sent, and find out which state the rank is in now."""
        process = self._process
        process.take()
        if not self._scenario.hesitant:
            self._out |= self._transport(len(process.waiting))
        process.forget()
        image = self._heap.capture()
        number = self._numbers.get(image.digest)
        if number is None:
            self._check_results()
            number = self._numbers[image.digest] = len(self._images)
            self._images.append(image)
            self._views.append(self._look())
        return Stepped(number, self._out)

    def _look(self) -> View:
        process, machine = self._process, self._process.machine
        done = [collective.done() for collective in process.submitted]
        text = f"{sum(done)} of {len(process.collectives)} calls are over"
        if machine is None:
            slots = [Progress(process.life, _HALTED, 0, None, False)] * self._scenario.slots
            timers = [False] * self._scenario.slots
            text += f", halted: it has had {process.last_machine.finished.tolist()} results"
        else:
            awaited = [None if one == IDLE else one for one in machine.state.expected.tolist()]
            begun = machine.state.next_round.astype(np.int64) - self._scenario.first_round
            rounds = begun % (1 << 32)
            bare, parts = machine.state.bare, machine.state.parts
            slots = [
                Progress(process.life, *each)
                for each in zip(
                    rounds.tolist(), parts.tolist(), awaited, bare.tolist(), strict=True
                )
            ]
            timers = np.isfinite(machine.state.due).tolist()
            waits = [
                f"in slot {n} for round {one}" for n, one in enumerate(awaited) if one is not None
            ]
            text += f", waits {' and '.join(waits)}" if waits else ""
            idle = [n for n, runs in enumerate(timers) if runs and awaited[n] is None]
            text += f", but the timer of slot {idle[0]} runs" if idle else ""
            text += f", broken: {machine.broken}" if machine.broken is not None else ""
        text += f", {len(process.waiting)} frames not sent" if process.waiting else ""
        return View(
            life=process.life,
            slots=tuple(slots),
            timers=tuple(timers),
            submitted=len(done),
            window=process.window,
            waiting=len(process.waiting),
            halted=machine is None,
            finished=process.last_machine.finished,
            results=process.last_machine.results(np.arange(self._scenario.slots)),
            ended=frozenset(call for call, is_done in enumerate(done) if is_done),
            over=len(done) == len(process.collectives)
            and all(done)
            and machine is not None
            and machine.idle
            and not any(timers)
            and not process.waiting,
            text=text,
        )

    # -- What has to hold ----------------------------------------------------------------------

    def _check_results(self) -> None:
        """What was accepted so far has to be right."""
        calls = range(len(self._process.collectives))
        results = [self._scenario.result(self.life, call) for call in calls]
        # A mismatch ends everything, also what is under way besides.
        may_fail = any(result is None for result in results)
        for call, collective in enumerate(self._process.submitted):
            error = collective.error
            if results[call] is None and collective.done() and not _is_mismatch(error):
                raise Violation(
                    "mismatch",
                    f"{self.name}, call {call}: the ranks do not agree, but the call ends with "
                    f"{error or 'a result'}",
                )
            if error is not None and not (may_fail and _is_mismatch(error)):
                raise Violation("no error", f"{self.name}, call {call}: {error}")
            self._check_blocks(call, results[call], complete=collective.done() and error is None)

    def _check_blocks(self, call: int, result: Array | None, *, complete: bool) -> None:
        # By halves, as a result may come in two.
        half = self._scenario.half(self.life, call)
        target = self._process.targets[call].reshape(-1, 2, half)
        untouched = self._process.untouched[call].reshape(-1, 2, half)
        wanted = None if result is None else result.reshape(-1, 2, half)
        for block, part in np.ndindex(target.shape[:2]):
            found = target[block, part]
            if wanted is not None and np.array_equal(found, wanted[block, part]):
                continue
            nothing = np.array_equal(found, untouched[block, part])
            if complete or not nothing:
                what = "nothing, but is done"
                if not nothing:
                    what = self._scenario.addends(self.life, call, found)
                raise Violation(
                    "results", f"{self.name} gets for block {block} of call {call}: {what}"
                )


def _is_mismatch(error: P4ReduceError | None) -> bool:
    return isinstance(error, MismatchError)
