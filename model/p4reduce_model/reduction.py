# SPDX-License-Identifier: Apache-2.0
"""Leaves frames out of the network that can have no effect any more.

The network forgets nothing, so the frames of all earlier rounds would stay in every state, and
each that may or may not have been sent would double the number of states. A frame is left out when
its delivery has no effect *now* and it belongs to a round that is over for the rank concerned.
That it has none *later* either is not argued but checked, by `verify`: each frame that was left out
is given to the real program, or the real machine, in every state found that is not earlier than
those in which it was left out.

Why that suffices: take the first point at which a run of the whole system does what the reduced one
cannot. Up to there both have gone through the same states of switch and machines, all of which were
found; so it is the delivery of a frame that was left out, in a state that was found, and not an
earlier one, as progress never goes back (also checked). `verify` has tried just that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from p4reduce_model.frames import Frame, numbers
from p4reduce_model.switch import CellProgress
from p4reduce_model.system import State, System
from p4reduce_model.violation import Violation
from p4reduce_model.worker import Progress

OVER = "what is over stays over"


class Place(NamedTuple):
    """How far the switch and one slot in it are.

    Attributes:
        restarts: of the switch, after which its registers begin anew.
        done: the controller's steps.
        versions: how far each version of the slot is.
    """

    restarts: int
    done: int
    versions: tuple[CellProgress, ...]

    def may_follow(self, other: Place) -> bool:
        """Whether this may be the same moment as `other`, or a later one."""
        if self.restarts != other.restarts:
            return self.restarts > other.restarts
        pairs = zip(self.versions, other.versions, strict=True)
        return self.done >= other.done and all(mine.may_follow(theirs) for mine, theirs in pairs)


class _Ordered(Protocol):
    def may_follow(self: _T, other: _T) -> bool: ...


_T = TypeVar("_T", bound=_Ordered)


class Earliest(Generic[_T]):
    """Of the moments added, those that none of the others may come before."""

    def __init__(self) -> None:
        self._moments: list[_T] = []

    def __iter__(self) -> Iterator[_T]:
        return iter(self._moments)

    def are_before(self, moment: _T) -> bool:
        """Whether `moment` may follow one of them."""
        return any(moment.may_follow(earlier) for earlier in self._moments)

    def add(self, moment: _T) -> None:
        if not self.are_before(moment):
            self._moments = [one for one in self._moments if not one.may_follow(moment)]
            self._moments.append(moment)


class Reduction:
    """Leaves out frames, and remembers when it did."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._over: dict[tuple[int, ...], bool] = {}  # by all that it depends on
        self._places: dict[tuple[int, int], Place] = {}  # by the steps done and the slot's state
        # For each frame to the switch, the earliest places.
        self._over_since: dict[int, Earliest[Place]] = defaultdict(Earliest)
        # For each machine and frame that it got, or would have got, how far the slot was there.
        # The second is of frames to the switch and of all answers to them.
        self._no_effect_since: dict[tuple[int, int], Earliest[Progress]] = defaultdict(Earliest)
        self._answers_since: dict[tuple[int, int], Earliest[Progress]] = defaultdict(Earliest)

    @property
    def left_out(self) -> int:
        """How many frames were left out at some time."""
        return len({*self._over_since, *(number for _, number in self._no_effect_since)})

    def reduced(self, state: State) -> State:
        """The same state without the frames that can have no effect any more."""
        system, flying = self._system, state[-1]
        for slot in range(system.scenario.slots):
            if (state[0], system.cells(state, slot)) not in self._places:
                self._note_place(state, slot)
        left = flying
        for number in numbers(flying):
            frame = system.frames[number]
            machines = tuple(system.machine(state, whom) for whom in system.receivers(frame))
            key = (number, *machines)
            if frame.up:
                key = (*key, state[0], system.cells(state, frame.header.slot))
            over = self._over.get(key)
            if over is None:
                find = self._is_over_up if frame.up else self._is_over_down
                over = self._over[key] = find(state, frame)
            if over:
                left ^= 1 << number
        return (*state[:-1], left)

    def _is_over_up(self, state: State, frame: Frame) -> bool:
        """Whether a frame to the switch can have no effect any more; notes when."""
        system, slot = self._system, frame.header.slot
        if self._is_awaited(state, frame):
            return False
        cells = system.cells(state, slot)
        try:
            taken = system.switch.take(state[0], cells, frame.number)
        except Violation:
            return False  # the search will come to it
        if taken.cells != cells or not all(
            self._has_no_effect(state, answer) for answer in system.frames.of(taken.out)
        ):
            return False
        self._over_since[frame.number].add(self._places[state[0], cells])
        for whom in system.receivers(frame):
            self._answers_since[whom, frame.number].add(self._machine_place(state, whom, slot))
        return True

    def _is_over_down(self, state: State, frame: Frame) -> bool:
        """Whether a frame to a machine can have no effect any more; notes when."""
        if not self._has_no_effect(state, frame):
            return False
        for whom in self._system.receivers(frame):
            place = self._machine_place(state, whom, frame.header.slot)
            self._no_effect_since[whom, frame.number].add(place)
        return True

    def _is_awaited(self, state: State, frame: Frame) -> bool:
        """Whether who sent a frame still waits for the result of its round."""
        system, head = self._system, frame.header
        for whom, worker in enumerate(system.workers):
            view = worker.view(system.machine(state, whom))
            if worker.rank == head.rank and system.scenario.job(view.life) == head.job:
                return view.slots[head.slot].awaited == head.round
        return False

    def _has_no_effect(self, state: State, frame: Frame) -> bool:
        system = self._system
        try:
            for whom in system.receivers(frame):
                machine = system.machine(state, whom)
                if system.workers[whom].receive(machine, frame.number) != (machine, 0):
                    return False
        except Violation:
            return False  # the search will come to it
        return True

    def _machine_place(self, state: State, whom: int, slot: int) -> Progress:
        system = self._system
        return system.workers[whom].view(system.machine(state, whom)).slots[slot]

    def _note_place(self, state: State, slot: int) -> None:
        switch, done, cells = self._system.switch, state[0], self._system.cells(state, slot)
        restarts = sum(step.wipes for step in switch.steps[:done])
        self._places[done, cells] = Place(restarts, done, switch.progress(cells))

    # -- Afterwards ----------------------------------------------------------------------------

    def verify(self) -> int:
        """Try every frame that was left out in every state in which it might have come.

        Returns:
            How many deliveries were tried.

        Raises:
            Violation: one has an effect, so that leaving it out has hidden something.
        """
        return self._verify_up() + self._verify_down()

    def _verify_up(self) -> int:
        """Frames to the switch change nothing; what they are answered is for `_verify_down`."""
        system = self._system
        tried = 0
        for number, since in self._over_since.items():
            answers = 0
            for (done, cells), place in self._places.items():
                if since.are_before(place):
                    tried += 1
                    taken = system.switch.take(done, cells, number)
                    answers |= taken.out
                    if taken.cells != cells:
                        self._fail(system.frames[number])
            for answer in system.frames.of(answers):
                for whom in system.receivers(answer):
                    if (whom, number) not in self._answers_since:
                        self._fail(system.frames[number])  # somebody else is answered
                    for moment in self._answers_since[whom, number]:
                        self._no_effect_since[whom, answer.number].add(moment)
        return tried

    def _verify_down(self) -> int:
        tried = 0
        for (whom, number), since in self._no_effect_since.items():
            worker, frame = self._system.workers[whom], self._system.frames[number]
            for machine in range(worker.states):
                if since.are_before(worker.view(machine).slots[frame.header.slot]):
                    tried += 1
                    if worker.receive(machine, number) != (machine, 0):
                        self._fail(frame)
        return tried

    def _fail(self, frame: Frame) -> None:
        raise Violation(OVER, f"a late copy has an effect again: {frame}")
