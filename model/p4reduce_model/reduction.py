# SPDX-License-Identifier: Apache-2.0
"""Leaves frames out of the network that can have no effect any more.

The network forgets nothing, so the frames of all earlier rounds would stay in every state, and
each that may or may not have been sent would double the number of states. A frame is left out when
its delivery has no effect *now* and it belongs to a round that is over for the rank concerned.
That it has none *later* either is not argued but checked, by `verify`: each frame that was left out
is given to the real program, or the real machine, in every state found that is not earlier than
those in which it was left out. So is what a switch answers to it, or sends on, to its receivers.

Why that suffices: take the first point at which a run of the whole system does what the reduced one
cannot. Up to there both have gone through the same states of switch and machines, all of which were
found; so it is the delivery of a frame that was left out, in a state that was found, and not an
earlier one, as progress never goes back (also checked). `verify` has tried just that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from p4reduce.wire.format import Flag, FrameKind

from p4reduce_model.found import Violation
from p4reduce_model.frames import Frame, numbers
from p4reduce_model.switch import CellProgress
from p4reduce_model.system import State, System
from p4reduce_model.wiring import Wiring

OVER = "what is over stays over"


class Place(NamedTuple):
    """How far a switch and one slot in it are.

    Attributes:
        restarts: of the switch, after which its registers begin again.
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
    """The earliest of the moments added: no other one may come before these."""

    def __init__(self) -> None:
        self._moments: list[_T] = []

    def __iter__(self) -> Iterator[_T]:
        return iter(self._moments)

    def are_before(self, moment: _T) -> bool:
        """Whether `moment` may follow one of them."""
        return any(moment.may_follow(earlier) for earlier in self._moments)

    def add(self, moment: _T) -> bool:
        """Return whether it is a new one."""
        if self.are_before(moment):
            return False
        self._moments = [one for one in self._moments if not one.may_follow(moment)]
        self._moments.append(moment)
        return True


_HALF = Flag.FIRST_HALF | Flag.SECOND_HALF


class Reduction:
    """Leaves out frames, and remembers when it did.

    What takes frames has a number: switches first, machines after them.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._wiring = Wiring(system.scenario)
        self._first_machine = len(system.switches)
        self._over: dict[tuple[int, ...], bool] = {}  # by all that it depends on
        # By switch, the steps done and the slot's state.
        self._places: list[dict[tuple[int, int], Place]] = [{} for _ in system.switches]
        # For each frame that was left out: how far its slot was then, at the earliest, wherever it
        # and what follows from it may go.
        self._since: dict[int, dict[int, Earliest[Any]]] = {}
        self._noted: set[tuple[int, ...]] = set()

    @property
    def left_out(self) -> int:
        """How many frames were left out at some time."""
        return len(self._since)

    def reduced(self, state: State) -> State:
        """The same state without the frames that can have no effect any more."""
        flying = left = state[-1]
        self._note_places(state)
        for number in numbers(flying):
            frame = self._system.frames[number]
            key = self._dependencies(state, frame)
            over = self._over.get(key)
            if over is None:
                over = self._over[key] = self._has_no_effect(state, frame)
                if over:
                    self._note(state, frame)
            if over:
                left ^= 1 << number
        return (*state[:-1], left)

    def _dependencies(self, state: State, frame: Frame) -> tuple[int, ...]:
        """All that the effect of a frame depends on, and the frame."""
        system = self._system
        if frame.inward and self._wiring.is_tree:
            slots = range(system.scenario.slots)
            others = {
                system.place_of(switch, slot)
                for switch in range(len(system.switches))
                for slot in slots
                if slot != frame.header.slot
            }
            return (frame.number, *(part for n, part in enumerate(state[:-1]) if n not in others))
        key = (frame.number, *(system.machine(state, whom) for whom in system.receivers(frame)))
        if frame.inward:
            # What changes no slot is answered to its sender alone.
            key = (*key, state[0], system.cells(state, frame.switch, frame.header.slot))
        return key

    def _has_no_effect(self, state: State, frame: Frame) -> bool:
        """Whether it changes nothing now, nor does what follows from it, and who sent it does not
        wait for an answer, which would be another one later."""
        system = self._system
        try:
            if not frame.inward:
                for whom in system.receivers(frame):
                    machine = system.machine(state, whom)
                    if system.workers[whom].do(machine, "receive", frame.number) != (machine, 0):
                        return False
                return True
            if self._is_awaited(state, frame):
                return False
            cells = system.cells(state, frame.switch, frame.header.slot)
            taken = system.switches[frame.switch].take(state[0], cells, frame.number)
            return taken.cells == cells and all(
                self._has_no_effect(state, answer) for answer in system.frames.of(taken.out)
            )
        except Violation:
            return False  # the search will come to it

    def _is_awaited(self, state: State, frame: Frame) -> bool:
        """Whether a frame to a switch is about a round whose result is still awaited: by the rank
        or leaf that sent it, or if it is half of one, by the leaf that it goes to."""
        system, head = self._system, frame.header
        sender = self._wiring.beyond(frame.switch, frame.port)
        if sender is None:
            for whom, worker in enumerate(system.workers):
                view = worker.view(system.machine(state, whom))
                if worker.rank == head.rank and system.scenario.job(view.life) == head.job:
                    return view.slots[head.slot].awaited == head.round
            return False
        waits, goes_up = sender[0], frame.switch == len(system.switches) - 1
        if not goes_up:
            if head.kind is not FrameKind.RESULT or not head.flags & _HALF:
                return False
            waits = frame.switch
        cells = system.cells(state, waits, head.slot)
        return system.switches[waits].awaits_parent(cells, head.job, head.round)

    def _note_places(self, state: State) -> None:
        system, done = self._system, state[0]
        for number, (switch, places) in enumerate(zip(system.switches, self._places, strict=True)):
            for slot in range(system.scenario.slots):
                cells = system.cells(state, number, slot)
                if (done, cells) not in places:
                    place = Place(switch.restarts(done), done, switch.progress(cells))
                    places[done, cells] = place

    def _note(self, state: State, frame: Frame) -> None:
        """Note how far everybody is who may get a frame, or what follows from it."""
        system, slot = self._system, frame.header.slot
        switches = range(self._first_machine) if frame.inward else ()
        for number in switches:
            cells = system.cells(state, number, slot)
            key = (frame.number, number, state[0], cells)
            if key not in self._noted:
                self._noted.add(key)
                self._add(frame.number, number, self._places[number][state[0], cells])
        # What `_dependencies` names.
        everybody = range(len(system.workers)) if frame.inward and self._wiring.is_tree else None
        for whom in everybody or system.receivers(frame):
            machine = system.machine(state, whom)
            noted = (frame.number, self._first_machine + whom, machine)
            if noted not in self._noted:
                self._noted.add(noted)
                progress = system.workers[whom].view(machine).slots[slot]
                self._add(frame.number, self._first_machine + whom, progress)

    def _add(self, number: int, receiver: int, moment: Any) -> bool:
        since = self._since.setdefault(number, defaultdict(Earliest))
        return since[receiver].add(moment)

    # -- Afterwards ----------------------------------------------------------------------------

    def verify(self) -> int:
        """Try every frame that was left out in every state in which it might have come.

        Returns:
            How many deliveries were tried.

        Raises:
            Violation: one has an effect, so that leaving it out has hidden something.
        """
        tried: set[tuple[int, ...]] = set()
        open_ = list(self._since)
        while open_:
            number = open_.pop()
            frame = self._system.frames[number]
            if not frame.inward:
                for whom in self._system.receivers(frame):
                    self._try_machine(frame, whom, tried)
                continue
            for answer in numbers(self._try_switch(frame, tried)):
                moments = [
                    (receiver, moment)
                    for receiver, since in self._since[number].items()
                    for moment in since
                ]
                news = [self._add(answer, *one) for one in moments]
                if any(news) and answer not in open_:
                    open_.append(answer)
        return len(tried)

    def _try_switch(self, frame: Frame, tried: set[tuple[int, ...]]) -> int:
        """It changes nothing there. Returns what follows from it."""
        switch = frame.switch
        since = self._since_of(frame, switch)
        out = 0
        for (done, cells), place in self._places[switch].items():
            if since.are_before(place):
                tried.add((frame.number, switch, done, cells))
                taken = self._system.switches[switch].take(done, cells, frame.number)
                out |= taken.out
                if taken.cells != cells:
                    self._fail(frame)
        return out

    def _try_machine(self, frame: Frame, whom: int, tried: set[tuple[int, ...]]) -> None:
        since = self._since_of(frame, self._first_machine + whom)
        worker = self._system.workers[whom]
        for machine in range(worker.states):
            if since.are_before(worker.view(machine).slots[frame.header.slot]):
                tried.add((frame.number, self._first_machine + whom, machine))
                if worker.do(machine, "receive", frame.number) != (machine, 0):
                    self._fail(frame)

    def _since_of(self, frame: Frame, receiver: int) -> Earliest[Any]:
        since = self._since[frame.number]
        if receiver not in since:
            self._fail(frame)  # it goes to somebody else
        return since[receiver]

    def _fail(self, frame: Frame) -> NoReturn:
        raise Violation(OVER, f"a late copy has an effect again: {frame}")
