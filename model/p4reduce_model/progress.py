# SPDX-License-Identifier: Apache-2.0
"""Progress: from every state, all ranks finish once frames get through.

A core is a state without its network. From each one that is found the system is run as follows: all
frames in flight are lost; then, again and again, each rank makes the calls that it may, the
controller does its next step, each timer that runs runs out once, and every frame sent is delivered
once, in order. The ranks of the last job have to finish, and to fall silent. This is the least that
a network owes: whatever else comes out of it leads to another state that is found, from which they
finish as well.
"""

from __future__ import annotations

from collections import deque

from p4reduce_model.found import Violation
from p4reduce_model.frames import numbers
from p4reduce_model.system import Event, State, System

PROGRESS = "progress"
_DELIVERIES = 100_000  # in one iteration: more than any scenario has frames


class Progress:
    """The cores from which the ranks are known to finish.

    Attributes:
        run: what happened from the state checked last on, as long as it is not known how it ends.
        elsewhere: a violation of another invariant that was met on a run.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._good: set[State] = set()
        self.run: list[Event] = []
        self.elsewhere: Violation | None = None

    @property
    def cores(self) -> int:
        """From how many cores progress was checked."""
        return len(self._good)

    def check(self, state: State) -> None:
        """Run on from a state.

        Raises:
            Violation: the ranks do not finish.
        """
        core = self._core(state)
        path: list[State] = []
        self.run.clear()
        try:
            while core not in self._good and not self._system.finished(core):
                if core in path:
                    raise Violation(PROGRESS, f"the ranks never finish: {self._describe(core)}")
                path.append(core)
                core = self._core(self._iteration(core))
        except Violation as violation:
            if violation.invariant == PROGRESS:
                raise
            # Another invariant. The search finds this violation by a shorter way, and ends with it.
            self.elsewhere = violation
            self._good.update(path)
            return
        self._good.update(path)
        self._good.add(core)

    def _core(self, state: State) -> State:
        return (*state[:-1], 0)

    def _iteration(self, core: State) -> State:
        """What is due once: calls, a step of the controller, timers, and all that follows."""
        system, state = self._system, core
        sent: deque[int] = deque()
        for event in system.events(core):
            if event.what == "window":
                continue  # whatever they are, the ranks have to finish
            # A timer may have been stopped by what another event has led to.
            if event in system.events(state):
                state = self._do(state, event, sent)
        for whom in range(len(system.workers)):
            while may := self._own(state, whom, "submit"):
                state = self._do(state, may, sent)
        deliveries = 0
        while True:
            if system.scenario.hesitant and (takes := self._transport(state)) is not None:
                state = self._do(state, takes, sent)
                continue
            if not sent:
                break
            frame = system.frames[sent.popleft()]
            if frame.inward:
                state = self._do(state, Event("switch", frame.switch, (frame.number,)), sent)
            else:
                for whom in system.receivers(frame):
                    state = self._do(state, Event("receive", whom, (frame.number,)), sent)
            deliveries += 1
            if deliveries > _DELIVERIES:
                raise Violation(PROGRESS, f"frames without end: {self._describe(state)}")
        return state

    def _own(self, state: State, whom: int, what: str) -> Event | None:
        """What a machine can do by itself, of one kind."""
        system = self._system
        if not system.may_begin(state, whom):
            return None
        events = system.own_events(whom, system.machine(state, whom))
        return next((event for event in events if event.what == what), None)

    def _transport(self, state: State) -> Event | None:
        """A transport that has a frame to take."""
        ways = (self._own(state, whom, "send") for whom in range(len(self._system.workers)))
        return next((event for event in ways if event is not None), None)

    def _do(self, state: State, event: Event, sent: deque[int]) -> State:
        """Do it, and take what is sent off the network, to be delivered in order."""
        self.run.append(event)
        after = self._system.after(state, event)
        sent.extend(numbers(after[-1]))
        return self._core(after)

    def _describe(self, core: State) -> str:
        system = self._system
        return "; ".join(
            f"{worker.name}: {worker.view(system.machine(core, whom)).text}"
            for whom, worker in enumerate(system.workers)
        )
