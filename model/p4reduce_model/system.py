# SPDX-License-Identifier: Apache-2.0
"""The whole: switches, machines and network, as a graph of states.

A state is a tuple of numbers: how many of the controller's steps have been done, the state of each
slot in each switch, the state of each machine, and the set of frames on the network.

**The network forgets nothing.** A frame once sent stays in the set and can be delivered at any
later time, as often as you like, or never. So every order, delay, duplication and loss is there,
without any budget, and each copy of a multicast has a fate of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from p4reduce.tensors.continuing import MESSAGE_BYTES, words_of
from p4reduce_controller.fabric.compiled_program import compiled_files

from p4reduce_model.found import Violation
from p4reduce_model.frames import Frame, Frames
from p4reduce_model.invariants import Invariants
from p4reduce_model.jobs import Control, control_steps
from p4reduce_model.process import REAL, Code
from p4reduce_model.scenario import Scenario
from p4reduce_model.switch import Switch
from p4reduce_model.wiring import Wiring
from p4reduce_model.worker import View, Worker

State = tuple[int, ...]


class Event(NamedTuple):
    """What can happen: `what` to `whom`.

    Attributes:
        what: "submit", "timer", "send", "receive", "window", "halt" or "resume" (a rank does),
            "switch" (takes a frame), or "control" (the controller does its next step).
        whom: a rank's number among the workers, a switch's, or 0.
        about: the number of the slot whose timer it is, or of the frame that is taken, or of both
            that are received in one batch; the window; the agreement by which a rank resumes.
    """

    what: str
    whom: int = 0
    about: tuple[int, ...] = ()


_CONTROL = Event("control")


class System:
    """A scenario, ready to be run.

    Args:
        scenario: what.
        program: p4c's JSON; None: the committed one.
        code: what the ranks run.
        control: gives what the controller does.
        unchecked: names of invariants to leave out, to see what else a fault leads to.
    """

    def __init__(
        self,
        scenario: Scenario,
        program: bytes | None = None,
        code: Code = REAL,
        control: Callable[[Scenario], Control] = control_steps,
        unchecked: frozenset[str] = frozenset(),
    ) -> None:
        self.scenario = scenario
        self.frames = Frames()
        invariants = Invariants(scenario, unchecked)
        # Where the ranks recover, they are the same in all lives.
        beginnings = range(len(scenario.lives))
        self.workers = [
            Worker(scenario, life, rank, self.frames, invariants.check_contribution, code)
            for life in beginnings
            for rank in range(scenario.ranks)
        ]
        for worker in self.workers:
            for life in range(scenario.jobs) if scenario.recoveries else [worker.life]:
                for call, tag in enumerate(worker.tags):
                    invariants.calls.setdefault(tag, set()).add((life, call))
        self._agree = code.agree
        self._agreements: dict[bytes, int] = {}
        self._settled: set[tuple[int, ...]] = set()  # states of the machines
        self._control = control(scenario)
        self.steps = self._control.steps
        wiring = Wiring(scenario)
        json = compiled_files()[0].read_bytes() if program is None else program
        self.switches = [
            Switch(wiring, number, self.frames, json, invariants, self._control)
            for number in range(len(wiring.names))
        ]
        self._at_port = {
            worker.at: [n for n, other in enumerate(self.workers) if other.at == worker.at]
            for worker in self.workers
        }
        self.first: State = (
            0,
            *(switch.blank for switch in self.switches for _ in range(scenario.slots)),
            *(worker.first for worker in self.workers),
            0,
        )
        self._machines_from = 1 + scenario.slots * len(self.switches)
        self._ready = [self._control.ready[worker.life] for worker in self.workers]
        self._by_machine: dict[tuple[int, int], list[Event]] = {}
        self._by_frame: list[list[Event]] = []

    # -- Parts of a state ----------------------------------------------------------------------

    def cells(self, state: State, switch: int, slot: int) -> int:
        """The state of a slot in a switch."""
        return state[self.place_of(switch, slot)]

    def place_of(self, switch: int, slot: int) -> int:
        """Where the state of a slot in a switch is in a state of the whole."""
        return 1 + switch * self.scenario.slots + slot

    def machine(self, state: State, whom: int) -> int:
        """The state of a machine."""
        return state[self._machines_from + whom]

    def receivers(self, frame: Frame) -> list[int]:
        """The machines at the host's end of a frame's link; none if another switch is there."""
        return self._at_port.get((frame.switch, frame.port), [])

    def may_begin(self, state: State, whom: int) -> bool:
        """Whether the controller has told a machine that its job runs."""
        return state[0] >= self._ready[whom]

    def finished(self, state: State) -> bool:
        """Whether the ranks of the last job have all results, and everything is quiet.

        Or whether they need not, as nobody lets one of their switches in again.
        """
        if self.scenario.ends_wiped and state[0] == len(self.steps):
            return True
        views = [worker.view(self.machine(state, n)) for n, worker in enumerate(self.workers)]
        last = self.scenario.jobs - 1
        if self.scenario.recoveries and any(view.life != last for view in views):
            return False
        return state[0] == len(self.steps) and all(view.over for view in views if view.life == last)

    # -- What can happen -----------------------------------------------------------------------

    def events(self, state: State) -> list[Event]:
        """All that can happen in a state."""
        done, flying = state[0], state[-1]
        events: list[Event] = []
        if done < len(self.steps) and self._may_go_on(state):
            events.append(_CONTROL)
        for whom, ready in enumerate(self._ready):
            if done >= ready:
                events += self.own_events(whom, state[self._machines_from + whom])
        if self._control.lost:
            events += self._recoveries(state)
        by_frame = self._by_frame
        while flying:
            lowest = flying & -flying
            flying ^= lowest
            number = lowest.bit_length() - 1
            while number >= len(by_frame):
                by_frame.append(self._deliveries(self.frames[len(by_frame)]))
            events += by_frame[number]
        if self.scenario.batches:
            events += self._batches(events)
        return events

    def _batches(self, events: list[Event]) -> list[Event]:
        """Two frames, or one twice, that a machine receives at once."""
        single = [event for event in events if event.what == "receive"]
        return [
            Event("receive", one.whom, one.about + other.about)
            for one in single
            for other in single
            if one.whom == other.whom
        ]

    def _may_go_on(self, state: State) -> bool:
        """Whether the ranks that the controller waits for are there."""
        if not self.steps[state[0]].waits:
            return True
        life = sum(after <= state[0] for after in self._control.ready)  # the one to be installed
        views = (worker.view(self.machine(state, n)) for n, worker in enumerate(self.workers))
        return all(view.halted and view.life == life - 1 for view in views)

    def _recoveries(self, state: State) -> list[Event]:
        """Ranks that notice the loss of the switch, and those that continue after it."""
        views = [worker.view(self.machine(state, n)) for n, worker in enumerate(self.workers)]
        events: list[Event] = []
        for whom, view in enumerate(views):
            if view.life == self.scenario.jobs - 1:
                continue
            if not view.halted and state[0] >= self._control.lost[view.life]:
                events.append(Event("halt", whom))
            if view.halted and state[0] >= self._control.ready[view.life + 1]:
                events.append(Event("resume", whom, (self._agreement(views, whom),)))
        return events

    def _check_settling(self, state: State) -> None:
        """Let a rank be lost. Also where none is: there may have been one more, which says nothing.

        Raises:
            Violation: a call ends on some of the ranks that remain, and on others not.
        """
        machines = state[self._machines_from : -1]
        if machines in self._settled:
            return
        self._settled.add(machines)
        everybody = list(range(len(machines)))
        for lost in [-1, *everybody] if len(machines) > 2 else [-1]:
            remain = [whom for whom in everybody if whom != lost]
            views = [self.workers[whom].view(machines[whom]) for whom in remain]
            ended = set()
            for place, whom in enumerate(remain):
                number = self._agreement(views, place)
                after = self.workers[whom].do(machines[whom], "settle", number).state
                ended.add(self.workers[whom].view(after).ended)
            if len(ended) > 1:
                some = sorted(frozenset.union(*ended) - frozenset.intersection(*ended))
                raise Violation(
                    "never one of each",
                    f"when {f'rank {lost}' if lost >= 0 else 'a further rank'} is lost, call "
                    f"{some[0]} ends on some of the ranks that remain, and not on others",
                )

    def _agreement(self, views: list[View], whom: int) -> int:
        """Number what a rank gets of the agreement. Each rank is in it as it is now.

        Or as it was before it continued, which says the same: until all ranks have continued, no
        round is complete to which they contribute afterwards.
        """
        said = [words_of(view.finished) for view in views]
        where = self._agree(views[whom].finished, said)
        results = np.zeros((len(where.slots), MESSAGE_BYTES), np.uint8)
        for rank, view in enumerate(views):
            results |= where.given_by(rank, view.results[where.slots])
        parts = (where.newest, where.slots, where.lacking, results)
        key = b"".join(part.tobytes() for part in parts)
        known = self._agreements.get(key)
        if known is None:
            known = self._agreements[key] = len(self._agreements)
            for worker in self.workers:
                worker.agreements.append((where, results))
        return known

    def own_events(self, whom: int, machine: int) -> list[Event]:
        """What a machine can do by itself in one of its states."""
        events = self._by_machine.get((whom, machine))
        if events is None:
            worker = self.workers[whom]
            view = worker.view(machine)
            events = []
            if view.submitted < len(self.scenario.calls(worker.life)):
                events.append(Event("submit", whom))
            if view.waiting:
                events.append(Event("send", whom))
            if self.scenario.timers:
                events += [
                    Event("timer", whom, (slot,)) for slot, runs in enumerate(view.timers) if runs
                ]
            if self.scenario.windows and not view.halted:
                sizes = set(range(1, self.scenario.slots + 1)) - {view.window}
                events += [Event("window", whom, (size,)) for size in sorted(sizes)]
            self._by_machine[whom, machine] = events
        return events

    def _deliveries(self, frame: Frame) -> list[Event]:
        if frame.inward:
            return [Event("switch", frame.switch, (frame.number,))]
        return [Event("receive", whom, (frame.number,)) for whom in self.receivers(frame)]

    def after(self, state: State, event: Event) -> State:
        """The state that an event leads to.

        Raises:
            Violation: an invariant does not hold there.
        """
        after = list(state)
        if event.what == "control":
            step, slots = self.steps[state[0]], self.scenario.slots
            after[0] += 1
            if step.wipes:
                first = 1 + step.switch * slots
                after[first : first + slots] = [self.switches[step.switch].blank] * slots
            return tuple(after)
        if event.what == "switch":
            (number,) = event.about
            place = self.place_of(event.whom, self.frames[number].header.slot)
            taken = self.switches[event.whom].take(state[0], state[place], number)
            after[place] = taken.cells
            after[-1] |= taken.out
            return tuple(after)
        at = self._machines_from + event.whom
        stepped = self.workers[event.whom].do(state[at], event.what, *event.about)
        after[at] = stepped.state
        after[-1] |= stepped.out
        if self.scenario.settles:
            self._check_settling(tuple(after))
        return tuple(after)

    def sent(self, state: State, event: Event) -> int:
        """The frames that are sent in an event, as a set."""
        return self.after((*state[:-1], 0), event)[-1]
