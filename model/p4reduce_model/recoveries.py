# SPDX-License-Identifier: Apache-2.0
"""A rank's recovery from the loss of its switch, with all that can happen, in every order.

It runs the real steps, `p4reduce.session.recovery.RecoveryProtocol`. The `World` is everybody else:
the controller, the switches, the other rank, the caller and the clock. Whenever the steps wait, it
chooses what happens next. A run is a list of choices, and what is not listed goes well. These
are violations: a transition that the table lacks, a job in which the rank continues although the
ranks have not agreed there, a connection that stays open, a ring that continues although there is a
switch, and a run without end.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import grpc
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError, NoAnswerError
from p4reduce.errors import (
    ClosedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session import recovery as recovery_module
from p4reduce.session.job_client import JoinedJob, Member
from p4reduce.session.recovery import (
    TRANSITIONS,
    Ended,
    Event,
    RecoveryEvent,
    RecoveryProtocol,
    RecoveryState,
    ReduceByRing,
    Work,
)
from p4reduce.wire.format import Endpoint

from p4reduce_model.found import Transition, Violation, Walked

IN_TABLE, AGREED = "in the table", "all agree before"
SETTLED = "settled before the error"
CLOSED, ENDS_ONCE = "nothing stays open", "ends once"
COMES_BACK = "the ring ends when there is a switch"
BY_CALLER, DEADLINE = "the communicator is closed", "a deadline passes"
RANK_LOST = "a heartbeat says that rank 1 is lost"
HERE = Endpoint("02:00:00:00:00:01", "10.77.0.1", 1)
MOST_CHOICES = 60  # of one run, most of which go well
ENDS_WITHIN = 6  # choices, after the communicator is closed or a deadline has passed
AFTER = 1.0  # seconds without a switch, after which others or the ring are due
DUE = AFTER / 2  # seconds, after which a call has no time left
WHILE = 10.0  # seconds, so that all that can be due is
TIME = "time passes"
TOO_LATE = "the ring's time is up"


@dataclass(frozen=True)
class RecoveryCase:
    """What a rank can fall back to.

    Attributes:
        ring: to a ring among the ranks.
        losses: of switches, after the one that the recovery is about.
    """

    ring: bool = False
    losses: int = 1

    @property
    def name(self) -> str:
        """What it is called in the report."""
        what = "ring" if self.ring else "at home"
        return f"recovery, {what}, {self.losses + 1} losses"

    def explore(self, limit: int, module: ModuleType = recovery_module) -> Walked:
        """Give every answer in every state, and check each run to its end.

        Args:
            limit: states to stop at.
            module: with the `RecoveryProtocol` to run.
        """
        found, began = Walked(table=TRANSITIONS), time.perf_counter()
        known: set[Hashable] = set()
        todo: list[tuple[int, ...]] = [()]
        for choices in todo:  # grows meanwhile
            found.transitions += 1
            world = World(self, choices, module)
            try:
                world.run()
            except Violation as violation:
                found.violation, found.trace = violation, tuple(world.said)
                break
            finally:
                found.walked |= world.walked
            found.depth = max(found.depth, len(world.visited))
            for number in range(len(choices), len(world.visited)):
                state, answers = world.visited[number]
                if state not in known:
                    known.add(state)
                    before = (*choices, *[0] * (number - len(choices)))
                    todo += [(*before, answer) for answer in range(1, answers)]
            if len(known) > limit:
                break
        else:
            found.complete = True
        found.states, found.seconds = len(known), time.perf_counter() - began
        return found


RECOVERIES_SMALL = [RecoveryCase(), RecoveryCase(ring=True)]
RECOVERIES_LARGE = [RecoveryCase(losses=2), RecoveryCase(ring=True, losses=2)]


@dataclass
class Life:
    """One life of the job, as the controller of its switch knows it.

    Attributes:
        is_lost: the switch has been lost meanwhile.
        agreed: the ranks have agreed there on where they continue.
        successor: the job that took its place; 0: none.
    """

    is_lost: bool = False
    agreed: bool = False
    successor: int = 0


class ModelTransport:
    """A connection to a switch; `PortShare` otherwise."""

    def __init__(self, world: World) -> None:
        world.open.add(self)
        self._world = world

    def close(self) -> None:
        self._world.open.discard(self)


class World:
    """Everybody whom a recovery has to do with.

    Args:
        case: the losses, and what the rank can fall back to.
        choices: numbers of answers, in order; further answers are the first ones.
        module: with the `RecoveryProtocol` to run.
    """

    def __init__(
        self, case: RecoveryCase, choices: tuple[int, ...], module: ModuleType = recovery_module
    ) -> None:
        self.case = case
        self._module: Any = module
        self.visited: list[tuple[Hashable, int]] = []  # states, and how many answers there were
        self.said: list[str] = []
        self.walked: set[Transition] = set()
        self.open: set[ModelTransport] = set()
        self._choices = choices
        self._now = 0.0
        self._is_closed = self._is_late = self._is_settled = False
        self._lost: WorkerLostError | None = None
        self._ending_since: int | None = None
        self._lives = {1: Life(agreed=True)}
        self._losses = 0
        self._resumed = False
        self._member = 1
        self._in_flight: tuple[Work, ...] = ()

    # -- Choices -----------------------------------------------------------------------------------

    def _choose(self, where: str, answers: dict[str, Callable[[], Ended | None]]) -> Ended | None:
        """Let something happen: the first answer continues, the others do not."""
        number = len(self.visited)
        if number == MOST_CHOICES or (
            self._ending_since is not None and number - self._ending_since > ENDS_WITHIN
        ):
            self._violate(ENDS_ONCE, f"the recovery goes on and on: {where}")
        self.visited.append((self._state(), len(answers)))
        choice = self._choices[number] if number < len(self._choices) else 0
        picked = list(answers)[choice]
        self.said.append(picked)
        if picked.endswith((BY_CALLER, DEADLINE)):
            self._ending_since = number if self._ending_since is None else self._ending_since
        return answers[picked]()

    def _violate(self, invariant: str, text: str) -> NoReturn:
        raise Violation(invariant, text)

    def _state(self) -> Hashable:
        running = self.recovery
        progress = running.progress
        return (
            running.state,
            running.connection is not None,
            self._now > AFTER,
            running.latest.incarnation,
            running.before.incarnation,
            tuple((life.is_lost, life.agreed, life.successor) for life in self._lives.values()),
            tuple(type(work) for work in self._in_flight),
            self._is_closed,
            self._is_late,
            self._is_settled,
            self._lost is not None,
            len(self.open),
            self._losses,
            progress.all_lost,
            progress.unheard,
            progress.switch_there,
        )

    # -- What happens ------------------------------------------------------------------------------

    def next_event(self, works: tuple[Work, ...], seconds: float) -> Event:
        """Return what happens while these are under way, and for so many seconds at most."""
        for work in self._in_flight:
            if work not in works:
                self._cancel(work)
        self._in_flight = works
        answers: dict[str, Callable[[], Ended | None]] = {}
        opened: list[tuple[str, Callable[[], Ended | None]]] = []
        for work in reversed(works):  # the search first, then the ring
            for number, (text, answer) in enumerate(self._answers(work).items()):
                answers[text] = functools.partial(self._end, work, answer)
                if isinstance(work, self._module.OPENING) and number == 0:
                    opened.append((text, answers[text]))
        if self._is_late and any(isinstance(work, self._module.ReduceByRing) for work in works):
            answers = {TOO_LATE: answers[TOO_LATE]}  # the ring itself looks after the deadlines
        elif not self._is_closed:
            answers |= {f"{text}, as {BY_CALLER}": _all(self._close, end) for text, end in opened}
        if self._now <= AFTER or not answers or seconds < WHILE:
            answers[TIME] = self._let_time_pass
        if self._lost is None:
            answers[RANK_LOST] = self._lose
        if not self._is_closed:
            answers[BY_CALLER] = self._close
        if not self._is_late:
            answers[DEADLINE] = self._be_late
        ended = self._choose(", ".join(type(work).__name__ for work in works), answers)
        deadline = DUE if self._is_late else math.inf
        due: Any = SimpleNamespace(deadline=deadline, started=0.0, description="allreduce 6")
        return Event(self._now, self._is_closed, self._lost, due, ended)

    def _end(self, work: Work, answer: Callable[[], Any]) -> Ended:
        self._in_flight = tuple(one for one in self._in_flight if one is not work)
        try:
            return Ended(work, answer())
        except (P4ReduceError, ControlError) as error:
            self._cancel(work)
            return Ended(work, error=error)

    def _cancel(self, work: Any) -> None:
        """Close what a work has, as it does itself if it is cancelled or fails."""
        steps = self._module
        match work:
            case steps.AttachToSwitch():
                work.transport.close()
            case steps.AgreeOnSwitch():
                work.joined.close()
            case steps.ResumeSession():
                work.found.close()

    def _let_time_pass(self) -> None:
        self._now += WHILE

    def _lose(self) -> None:
        self._lost = WorkerLostError("rank 1 is lost", ranks=(1,))

    def _close(self) -> None:
        self._is_closed = True

    def _be_late(self) -> None:
        self._is_late = True
        self._now = max(self._now, DUE)

    def _answers(self, work: Any) -> dict[str, Callable[[], Any]]:
        """Return what a work can come to, what goes well first."""
        steps = self._module
        match work:
            case steps.HaltEngine():
                return {"the progress thread ends": lambda: None}
            case steps.AskController():
                return self._answers_of_controller(work.member.incarnation)
            case steps.ReformJob():
                return {
                    "there is a next job": lambda: self._next_job(work.member.incarnation),
                    "the other rank has not asked": _refusal(grpc.StatusCode.DEADLINE_EXCEEDED),
                    "no next job": _refusal(grpc.StatusCode.PERMISSION_DENIED),
                }
            case steps.OpenTransport():
                return {
                    "the switch's port opens": lambda: ModelTransport(self),
                    "nobody listens": _unreachable,
                }
            case steps.AttachToSwitch():
                ready = pb.Ready(world_size=2)
                return {
                    "all ranks are there": lambda: JoinedJob(work.member, work.transport, ready),
                    "a rank is late": _refusal(grpc.StatusCode.DEADLINE_EXCEEDED),
                    "the connection breaks": _unreachable,
                }
            case steps.AgreeOnSwitch():
                more = {"the ranks lose it too": lambda: self._lose_again(work.joined)}
                return {"the ranks agree": lambda: self._agree(work.joined)} | self._loss(more)
            case steps.ResumeSession():
                more = {"the session loses it at once": lambda: self._lose_again(None)}
                return {"the session goes on": lambda: self._resume(work.found)} | self._loss(more)
            case steps.ReduceByRing():
                return self._answers_of_ring(work)
            case steps.SettleCalls():
                self._is_settled = True
                return {
                    "the ranks that remain settle": lambda: None,
                    "one is silent": _refusal(grpc.StatusCode.DEADLINE_EXCEEDED),
                }
        raise NotImplementedError(f"{work} is no work of a recovery")

    def _loss(self, answers: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
        return answers if self._losses < self.case.losses else {}

    def _answers_of_controller(self, incarnation: int) -> dict[str, Callable[[], Any]]:
        life = self._lives[incarnation]
        lost = {"its switch is lost": lambda: self._notice(incarnation)}
        runs = {"it runs": lambda: pb.HeartbeatReply(state=pb.RUNNING)}
        if life.is_lost:
            runs = {}
        elif incarnation == 1:
            runs = lost | runs
            lost = {}
        else:
            lost = self._loss(lost)
        rank_lost = pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_RANK_LOST, lost=[1])
        return {
            **runs,
            **lost,
            "no answer": _no_answer,
            "no such job": _refusal(grpc.StatusCode.NOT_FOUND),
            "rank 1 is lost": lambda: rank_lost,
        }

    def _notice(self, incarnation: int) -> pb.HeartbeatReply:
        life = self._lives[incarnation]
        self._losses += not (life.is_lost or incarnation == 1)
        life.is_lost = True
        return pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_SWITCH_LOST)

    def _next_job(self, incarnation: int) -> Member:
        old = self._lives[incarnation]
        old.is_lost = True  # also if it ran: a rank on the ring is out of step with it
        if not old.successor or self._lives[old.successor].is_lost:
            old.successor = len(self._lives) + 1
            self._lives[old.successor] = Life()
        return _member(old.successor)

    def _agree(self, joined: JoinedJob) -> JoinedJob:
        self._lives[joined.member.incarnation].agreed = True
        return joined  # in place of a `ResumeAgreement`

    def _lose_again(self, joined: JoinedJob | None) -> NoReturn:
        self._losses += 1
        if joined is not None:
            self._lives[joined.member.incarnation].is_lost = True
        raise SwitchUnreachableError("lost as well")

    def _resume(self, found: Any) -> None:
        if self._is_closed:
            raise ClosedError("closed")
        has_moved = isinstance(found, JoinedJob)
        if (found.transport if has_moved else found) not in self.open:
            self._violate(CLOSED, "the session is given a connection that is closed")
        if not has_moved:
            if self._lives[1].is_lost:
                self._violate(AGREED, "slots go on in a life of the job that is over")
        else:
            incarnation = found.member.incarnation
            if incarnation != self._member:
                self._violate(AGREED, "the rank has left the job that it goes on in")
            if not self._lives[incarnation].agreed:
                self._violate(AGREED, "it goes on in a job in which the ranks have not agreed")
        found.close()  # from here on it is the session's
        self._resumed = True

    def _answers_of_ring(self, work: ReduceByRing) -> dict[str, Callable[[], Any]]:
        if len(self._in_flight) > 1:  # the search is, too
            well: dict[str, Callable[[], Any]] = {}
        elif work.incarnation:
            well = {"all ranks have a switch": lambda: None}
        elif self.open:
            self._violate(COMES_BACK, "it stays on the ring although there is a switch")
        else:
            well = {}
        late = {TOO_LATE: _too_late} if self._is_late else {}
        return {**well, **late, "the other rank gives up": _gives_up}

    # -- A run -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Recover once. Raises Violation."""
        module = self._module
        self.recovery: RecoveryProtocol = module.RecoveryProtocol(
            "job",
            _member(1),
            "the model",
            0.0,
            0,
            AFTER if self.case.ring else None,
            self._on_member,
            self._noted,
        )
        steps, error = self.recovery.steps(), None
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self.next_event(wanted.works, wanted.seconds))
        except StopIteration:
            pass
        except P4ReduceError as problem:
            error = problem
        for work in self._in_flight:
            self._cancel(work)
        if isinstance(error, WorkerLostError) and not self._is_settled:
            self._violate(SETTLED, "calls fail, and the other rank may have the result of them")
        self._check_end()

    def _on_member(self, member: Member) -> None:
        self._member = member.incarnation

    def _noted(self, state: RecoveryState, event: RecoveryEvent) -> RecoveryState:
        try:
            to: RecoveryState = self._module.after(state, event)
        except P4ReduceError as error:
            self._violate(IN_TABLE, str(error))
        self.walked.add((state, event, to))
        return to

    def _check_end(self) -> None:
        state, module = self.recovery.state, self._module
        if state not in module.ENDS or (state is module.RecoveryState.RESUMED) != self._resumed:
            self._violate(ENDS_ONCE, f"it is {state.name}; resumed: {self._resumed}")
        if self.open:
            self._violate(CLOSED, f"{len(self.open)} connections are nobody's")


def _member(incarnation: int) -> Member:
    return Member(incarnation, 0, 2, 1, HERE, HERE)


def _refusal(code: grpc.StatusCode) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise ControlError(code, "not yet")

    return refuse


def _no_answer() -> NoReturn:
    raise NoAnswerError(grpc.StatusCode.UNAVAILABLE, "no answer")


def _unreachable() -> NoReturn:
    raise SwitchUnreachableError("nobody listens")


def _gives_up() -> NoReturn:
    raise P4ReduceError("rank 1 gave up")


def _too_late() -> NoReturn:
    raise P4ReduceTimeoutError("rank 1 is missing", seconds=WHILE)


def _all(first: Callable[[], None], then: Callable[[], Ended | None]) -> Callable[[], Ended | None]:
    def both() -> Ended | None:
        first()
        return then()

    return both


@dataclass(frozen=True)
class RecoveryFault:
    """A mistake in `session/recovery.py`, to see that it is found.

    Attributes:
        name: what it is called in the report.
        case: in which it shows.
        old, new: text of the module, and what is there instead.
    """

    name: str
    case: RecoveryCase
    old: str
    new: str

    def hunt(self) -> Walked:
        """Explore the case with the mistake."""
        text = inspect.getsource(recovery_module)
        if self.old not in text:
            raise ValueError(f"{self.name}: recovery.py has no {self.old!r}")
        module = ModuleType(recovery_module.__name__)
        exec(compile(text.replace(self.old, self.new, 1), "recovery.py", "exec"), vars(module))
        return self.case.explore(100_000, module)


RECOVERY_FAULTS = [
    RecoveryFault(
        "no agreement after a loss",
        RecoveryCase(),
        "            if isinstance(found, JoinedJob):\n                found = yield",
        "            if False:\n                found = yield",
    ),
    RecoveryFault(
        "the ring keeps the old life",
        RecoveryCase(ring=True),
        "return self.state is RecoveryState.ON_RING",
        "return False",
    ),
    RecoveryFault(
        "the ring does not hear of the switch",
        RecoveryCase(ring=True),
        "ring.incarnation = attempt.found.member.incarnation",
        "pass",
    ),
    RecoveryFault(
        "in vain, and the port stays open",
        RecoveryCase(),
        "        finally:\n            self._drop()",
        "        finally:\n            pass",
    ),
    RecoveryFault(
        "a lost rank ends all at once",
        RecoveryCase(),
        "raise (yield from self._settled(error)) from None",
        "raise error",
    ),
    RecoveryFault(
        "nobody looks for the end",
        RecoveryCase(),
        "        if self.event.is_over:\n            raise UnwantedError",
        "        pass",
    ),
]
