# SPDX-License-Identifier: Apache-2.0
"""Visits every state that can be reached, shortest ways first."""

from __future__ import annotations

import time
from dataclasses import dataclass

from p4reduce_model.found import Found, Violation
from p4reduce_model.progress import PROGRESS, Progress
from p4reduce_model.reduction import Reduction
from p4reduce_model.system import Event, State, System


@dataclass
class Outcome(Found[Event]):
    """What an exploration of a whole system found.

    Attributes:
        cores: states without regard to what is on the network; progress was checked from each.
        rounds: the most that a slot had in one life of a job.
        runs: how often the real code was run; all else was remembered.
        left_out, tried: frames left out of the network, and the deliveries of them that `verify`
            tried.
        run: where `violation` is of PROGRESS, the events after `trace`. All frames in flight are
            lost and no later one is, and still the ranks do not finish.
    """

    cores: int = 0
    rounds: int = 0
    runs: int = 0
    left_out: int = 0
    tried: int = 0
    run: tuple[Event, ...] = ()


def explore(system: System, *, reduce: bool = True, limit: int = 10_000_000) -> Outcome:
    """Visit all states and check them.

    Args:
        system: at its beginning.
        reduce: leave frames out of the network that can have no effect any more.
        limit: give up after this number of states.
    """
    return _Search(system, reduce, limit).run()


class _Search:
    def __init__(self, system: System, reduce: bool, limit: int) -> None:
        self._system = system
        self._reduction = Reduction(system) if reduce else None
        self._progress = Progress(system)
        self._limit = limit
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._from: list[tuple[int, Event | None]] = []
        self._outcome = Outcome()

    def run(self) -> Outcome:
        began, outcome = time.perf_counter(), self._outcome
        try:
            self._visit_all()
            if self._progress.elsewhere is not None:
                raise self._progress.elsewhere
            if outcome.complete and self._reduction is not None:
                outcome.tried = self._reduction.verify()
        except Violation as violation:
            outcome.complete = False
            outcome.violation = violation
            if violation.invariant == PROGRESS:
                outcome.run = tuple(self._progress.run)
        if self._reduction is not None:
            outcome.left_out = self._reduction.left_out
        outcome.rounds = max(worker.most_rounds for worker in self._system.workers)
        outcome.states = len(self._states)
        outcome.cores = self._progress.cores
        outcome.runs = sum(one.runs for one in self._system.switches) + sum(
            one.runs for one in self._system.workers
        )
        outcome.seconds = time.perf_counter() - began
        return outcome

    def _visit_all(self) -> None:
        system, outcome = self._system, self._outcome
        self._add(system.first, 0, None)
        level_ends, depth = 1, 0
        for number, state in enumerate(self._states):  # grows meanwhile
            if number == level_ends:
                level_ends, depth = len(self._states), depth + 1
                outcome.depth = depth
            for event in system.events(state):
                outcome.transitions += 1
                try:
                    self._add(system.after(state, event), number, event)
                except Violation:
                    outcome.trace = (*self._way_to(number), event)
                    raise
            if len(self._states) > self._limit:
                return
        outcome.complete = True

    def _add(self, state: State, before: int, event: Event | None) -> None:
        if state in self._numbers:
            return
        if self._reduction is not None:
            state = self._reduction.reduced(state)
            if state in self._numbers:
                return
        self._progress.check(state)
        self._numbers[state] = len(self._states)
        self._states.append(state)
        self._from.append((before, event))

    def _way_to(self, number: int) -> list[Event]:
        events: list[Event] = []
        while (event := self._from[number][1]) is not None:
            events.append(event)
            number = self._from[number][0]
        return events[::-1]
