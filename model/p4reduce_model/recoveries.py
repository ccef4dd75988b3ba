# SPDX-License-Identifier: Apache-2.0
"""A rank's recovery from the loss of its switch, with all that can happen, in every order.

The real `Recovery` and `Reconnector` run, in this thread and without a network. Whenever they ask
or wait for somebody, the `World` chooses an answer: controller, switches, the other rank, the
caller and the clock are in it. A run is a list of choices, and what is not listed goes well. These
are violations: a transition that the table lacks, a job in which the rank continues although the
ranks have not agreed there, a connection that stays open, a ring that continues although there is a
switch, and a run without end.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast
from unittest import mock

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
from p4reduce.session import reconnector, recovery_states
from p4reduce.session import recovery as recovery_module
from p4reduce.session.job_client import JoinedJob, Member
from p4reduce.session.reconnector import Reconnection
from p4reduce.session.recovery_states import ENDS, TRANSITIONS, RecoveryEvent, RecoveryState
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
WHILE = 10.0  # seconds, so that all that can be due is


@dataclass(frozen=True)
class RecoveryCase:
    """What a rank can fall back to.

    Attributes:
        ring: to a ring among the ranks.
        elsewhere: to another switch.
        losses: of switches, after the one that the recovery is about.
    """

    ring: bool = False
    elsewhere: bool = False
    losses: int = 1

    @property
    def name(self) -> str:
        """What it is called in the report."""
        ways = [transport for transport in ("ring", "elsewhere") if getattr(self, transport)]
        what = " or ".join(ways) or "at home"
        return f"recovery, {what}, {self.losses + 1} losses"

    def explore(self, limit: int, module: ModuleType = recovery_module) -> Walked:
        """Give every answer in every state, and check each run to its end.

        Args:
            limit: states to stop at.
            module: with the `Recovery` to run.
        """
        found, began = Walked(table=TRANSITIONS), time.perf_counter()
        known: set[Hashable] = set()
        todo: list[tuple[int, ...]] = [()]
        for choices in todo:  # grows meanwhile
            found.transitions += 1
            world = World(self, choices)
            try:
                world.run(module)
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


RECOVERIES_SMALL = [RecoveryCase(), RecoveryCase(ring=True), RecoveryCase(elsewhere=True)]
RECOVERIES_LARGE = [
    RecoveryCase(losses=2),
    RecoveryCase(ring=True, losses=2),
    RecoveryCase(elsewhere=True, losses=2),
    RecoveryCase(ring=True, elsewhere=True),
]


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

    endpoint = None

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
    """

    def __init__(self, case: RecoveryCase, choices: tuple[int, ...]) -> None:
        self.case = case
        self.visited: list[tuple[Hashable, int]] = []  # states, and how many answers there were
        self.said: list[str] = []
        self.walked: set[Transition] = set()
        self.outcomes: list[str] = []
        self.open: set[ModelTransport] = set()
        self._choices = choices
        self._now = 0.0
        self._is_closed = self._is_late = False
        self._ending_since: int | None = None
        self._violation: Violation | None = None  # the first one, whoever catches it
        self._lives = {1: Life(agreed=True)}
        self._losses = 0
        self._left: set[int] = set()
        self._reconnector: reconnector.Reconnector | None = None
        self._seek: Callable[[], None] | None = None
        # What Recovery sees of its session.
        self.slots, self.urgent_slots, self.home = 32, 0, 0
        self.completed = 0
        self.neighbourhood: Any = None
        self.broken: P4ReduceError | None = None
        self.job_client: Any = self
        self.call_log: Any = self
        self.job, self.who, self.place = "job", "rank 0", None
        self.fallback: Any = SimpleNamespace(after=AFTER, listener=None) if case.ring else None
        self.fallback_switches: Any = self if case.elsewhere else None
        self.after, self.name, self.left = AFTER, str, tuple
        self.settle_within = WHILE
        self._is_settled = self._hears = False

    # -- Choices -----------------------------------------------------------------------------------

    def choose(self, where: str, *answers: str) -> str:
        """Return what happens at a place: the first answer continues, the others do not."""
        more = [] if self._is_closed else [BY_CALLER]
        more += [] if self._is_late else [DEADLINE]
        every = list(dict.fromkeys([*answers, *more]))
        number = len(self.visited)
        if number == MOST_CHOICES or (
            self._ending_since is not None and number - self._ending_since > ENDS_WITHIN
        ):
            self._violate(ENDS_ONCE, f"the recovery goes on and on: {where}")
        self.visited.append(((where, self._state()), len(every)))
        picked = every[self._choices[number] if number < len(self._choices) else 0]
        self.said.append(f"{where}: {picked}")
        if picked in (BY_CALLER, DEADLINE):
            self._ending_since = number if self._ending_since is None else self._ending_since
            self._is_closed |= picked == BY_CALLER
            self._is_late |= picked == DEADLINE
        return picked

    def _violate(self, invariant: str, text: str) -> NoReturn:
        self._violation = self._violation or Violation(invariant, text)
        raise self._violation

    def _state(self) -> Hashable:
        running, reconnecting = self.recovery, self._reconnector
        # private: a state of the model is all that the recovery remembers.
        lives = running._incarnations
        return (
            running.state,
            running._without_switch,  # private: as above
            self.home,
            running._home_until > self._now,  # private: as above
            self._now > AFTER,
            lives.life and lives.life.incarnation,
            lives.member.incarnation,
            lives.before.incarnation,
            tuple((life.is_lost, life.agreed, life.successor) for life in self._lives.values()),
            frozenset(self._left),
            self._is_closed,
            self._is_late,
            self._is_settled,
            self._hears,
            len(self.open),
            self._losses,
            reconnecting
            and (
                reconnecting.all_lost,
                reconnecting.unheard,
                reconnecting.switch_there,
                reconnecting.by_ring,
                reconnecting.found is not None,
                str(reconnecting.failed),
            ),
        )

    # -- The session (recovery.Host) ---------------------------------------------------------------

    def is_over(self) -> bool:
        if self._is_closed:
            self.broken = P4ReduceError("closed")
        return self._is_closed

    @property
    def in_flight(self) -> list[Any]:
        deadline = -1.0 if self._is_late else math.inf
        return [SimpleNamespace(deadline=deadline, started=0.0, description="allreduce 6")]

    def halt(self, timeout: float) -> Any:
        if self.choose("the progress thread", "ends", "has not ended yet") != "ends":
            raise P4ReduceTimeoutError("not yet", seconds=timeout)
        return SimpleNamespace(in_dispute=False, broken=None)

    def on_halted(self) -> None: ...
    def on_fallback_failed(self) -> None: ...
    def on_member_changed(self, member: Member) -> None: ...
    def without_switch(self, ring: bool) -> None: ...
    def reduced_by_ring(self, collective: Any) -> None: ...

    def on_switch_changed(self, taken: Any) -> None:
        self.home = taken.at

    def machine(self, joined: JoinedJob) -> Any:
        return None

    def connect(self, udp_port: int) -> Any:
        if self.choose("the switch's port", "opens", "nobody listens") != "opens":
            raise SwitchUnreachableError("nobody listens")
        return ModelTransport(self)

    def resume(self, found: Reconnection, before: Any) -> None:
        transport = cast(ModelTransport, found.transport)
        if transport not in self.open:
            self._violate(CLOSED, "the session is given a connection that is closed")
        if found.joined is None:
            if self._lives[1].is_lost:
                self._violate(AGREED, "slots go on in a life of the job that is over")
        else:
            self._check_beginning(found.joined.member.incarnation)
        transport.close()  # from here on it is the session's
        more = ["loses it at once"] if self._losses < self.case.losses else []
        if self.choose("the session", "goes on", *more) == "loses it at once":
            self._losses += 1
            raise SwitchUnreachableError("lost at once")
        if self._is_closed:
            raise ClosedError("closed")
        self.outcomes.append("resumed")

    def _check_beginning(self, incarnation: int) -> None:
        if incarnation in self._left:
            self._violate(AGREED, "the rank has left the job that it goes on in")
        if not self._lives[incarnation].agreed:
            self._violate(AGREED, "it goes on in a job in which the ranks have not agreed")

    def give_up(self, error: P4ReduceError) -> None:
        if isinstance(error, WorkerLostError) and not self._is_settled:
            self._violate(SETTLED, "calls fail, and the other rank may have the result of them")
        self.outcomes.append(f"gave up: {error}")

    # -- The controller (Membership) ---------------------------------------------------------------

    def heartbeat(self, member: Member, timeout: float, **_: Any) -> pb.HeartbeatReply:
        life = self._lives[member.incarnation]
        is_first = life is self._lives[1]
        answers = ["it runs", "no answer", "no such job", "rank 1 is lost"]
        if life.is_lost:
            answers[0] = "its switch is lost"
        elif self._losses < self.case.losses or is_first:
            answers.insert(1 - is_first, "its switch is lost")
        match self.choose(f"the controller of job {member.incarnation}", *answers):
            case "it runs":
                return pb.HeartbeatReply(state=pb.RUNNING)
            case "its switch is lost":
                self._losses += not (life.is_lost or is_first)
                life.is_lost = True
                return pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_SWITCH_LOST)
            case "rank 1 is lost":
                return pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_RANK_LOST, lost=[1])
            case "no such job":
                raise ControlError(grpc.StatusCode.NOT_FOUND, "unknown")
        raise NoAnswerError(grpc.StatusCode.UNAVAILABLE, "no answer")

    def reform(self, member: Member, **_: Any) -> Member:
        match self.choose("a new job", "the next job", "the other rank has not asked", "refused"):
            case "the next job":
                old = self._lives[member.incarnation]
                old.is_lost = True  # also if it ran: a rank on the ring is out of step with it
                if not old.successor or self._lives[old.successor].is_lost:
                    old.successor = self._new_life()
                return _member(old.successor)
            case "the other rank has not asked":
                raise ControlError(grpc.StatusCode.DEADLINE_EXCEEDED, "not yet")
        raise ControlError(grpc.StatusCode.PERMISSION_DENIED, "no")

    def attach(self, member: Member, transport: Any, *_: Any) -> JoinedJob:
        match self.choose("the ranks", "are all there", "one is late", "the connection breaks"):
            case "are all there":
                return JoinedJob(member, transport, pb.Ready(world_size=2))
            case "the connection breaks":
                transport.close()
                raise SwitchUnreachableError("it broke")
        transport.close()
        raise ControlError(grpc.StatusCode.DEADLINE_EXCEEDED, "one is late")

    def _new_life(self) -> int:
        incarnation = len(self._lives) + 1
        self._lives[incarnation] = Life()
        return incarnation

    # -- The other switches (FallbackSwitches, Move), ResumeAgreement ------------------------------

    def candidates(self, home: int, *, without_switch: bool) -> list[int]:
        return [1 - home, *([home] if without_switch else [])]

    def move(self, _others: Any, at: int, *arguments: Any) -> Any:
        *_, check = arguments
        check()
        match self.choose(f"switch {at}", "all ranks come", "nobody is there", "a rank has left"):
            case "all ranks come":
                member = _member(self._new_life())
                joined = SimpleNamespace(member=member, transport=ModelTransport(self))
                return SimpleNamespace(at=at, job_client=self, joined=joined, connect=self.connect)
            case "a rank has left":
                raise WorkerLostError("rank 1 left", ranks=(1,))
        check()
        raise SwitchUnreachableError("nobody is there")

    def agreement(self, _job_client: Any, joined: JoinedJob, *_: Any) -> Any:
        agreement = SimpleNamespace(
            deserted=False, engine=None, give_up=lambda: joined.transport.close()
        )

        def reach(check: Callable[[], None]) -> Any:
            check()
            life = self._lives[joined.member.incarnation]
            more = ["lose it too", "are elsewhere"] if self._losses < self.case.losses else []
            more += self._news()
            match self.choose("the ranks there", "agree", *more):
                case "agree":
                    life.agreed = True
                    return None
                case "a heartbeat says that rank 1 is lost":
                    self._hear()
                case "are elsewhere":
                    self._losses += 1
                    agreement.deserted = True
                case "lose it too":
                    self._losses += 1
                    life.is_lost = True
            check()
            raise SwitchUnreachableError("in vain")

        agreement.reach = reach
        return agreement

    def leave_behind(self, job_client: Any, member: Member, *, close: bool) -> None:
        self._left.add(member.incarnation)

    def settling(self, *arguments: Any) -> Any:
        *_, check = arguments

        def run() -> None:
            self._is_settled = True
            match self.choose("the ranks that remain", "settle", "one is silent"):
                case "one is silent":
                    check()
                    raise ControlError(grpc.StatusCode.DEADLINE_EXCEEDED, "one is silent")
            check()

        return SimpleNamespace(run=run)

    # -- The ring ----------------------------------------------------------------------------------

    def ring(
        self, *_: Any, back: Callable[[], int], left: Callable[[str, int], None], **_more: Any
    ) -> Any:
        def run() -> None:
            while True:
                left("the other rank", 1)
                ahead = "all ranks have a switch" if back() else "the reconnector looks"
                if (
                    not back()
                    and self._reconnector is not None
                    and self._reconnector.found is not None
                ):
                    self._violate(COMES_BACK, "it stays on the ring although there is a switch")
                match self.choose("the ring", ahead, "the other rank gives up", *self._news()):
                    case "a heartbeat says that rank 1 is lost":
                        self._hear()
                    case "all ranks have a switch":
                        return
                    case "the other rank gives up":
                        raise P4ReduceError("rank 1 gave up")
                    case "the reconnector looks":
                        self._let_reconnect()

        return SimpleNamespace(run=run, wake=lambda: None)

    # -- Threads and time --------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Run `Latch.wait` of the recovery."""
        answers = []
        reconnecting = self._reconnector
        if reconnecting is not None and reconnecting.found is None and reconnecting.failed is None:
            answers.append("the reconnector looks")
        # private: the model has time pass only while that may change something.
        if self._now <= AFTER or self.recovery._home_until > self._now:
            answers.append("time passes")
        match self.choose("it waits", *(answers or ["time passes"]), *self._news()):
            case "a heartbeat says that rank 1 is lost":
                self._hear()
            case "the reconnector looks":
                self._let_reconnect()
            case "time passes":
                self._now += WHILE

    def _news(self) -> list[str]:
        return [] if self._hears else [RANK_LOST]

    def _hear(self) -> None:
        self._hears = True
        self.recovery.lose_rank(WorkerLostError("rank 1 is lost", ranks=(1,)))

    def _let_reconnect(self) -> None:
        if self._seek is not None:
            with contextlib.suppress(_Paused):
                self._seek()
                self._seek = None  # its thread has ended

    def seeking_thread(self, target: Callable[[], None], name: str) -> Any:
        def join(timeout: float) -> None:
            """Let an answer come that was asked for before."""
            assert self._reconnector is not None
            if (
                self._seek is not None
                and self.choose("the reconnector", "ends", "looks once more") != "ends"
            ):
                self._let_reconnect()
            self._reconnector = self._seek = None

        self._seek = target
        return SimpleNamespace(start=lambda: None, join=join)

    def reconnector(self, *arguments: Any) -> reconnector.Reconnector:
        self._reconnector = reconnector.Reconnector(*arguments)
        return self._reconnector

    # -- A run -------------------------------------------------------------------------------------

    def run(self, module: ModuleType) -> None:
        """Recover once. Raises Violation."""
        clock = SimpleNamespace(monotonic=lambda: self._now, sleep=lambda seconds: None)
        latch = SimpleNamespace(set=lambda: None, clear=lambda: None, wait=self.wait)
        here = threading.current_thread()
        quiet = logging.Logger("recoveries", logging.CRITICAL + 1)
        in_recovery = {
            "Reconnector": self.reconnector,
            "move": self.move,
            "ResumeAgreement": self.agreement,
            "Settling": self.settling,
            "RingRun": self.ring,
            "leave_behind": self.leave_behind,
            "Latch": lambda: latch,
            "log": quiet,
            "time": clock,
            "new_thread": _here,
            "threading": SimpleNamespace(current_thread=lambda: here),
            "after": self._noted,
            "LOOK_HOME": 0.0,
            "HOME_AGAIN": AFTER,
        }
        in_reconnector = {
            "log": quiet,
            "time": clock,
            "new_thread": self.seeking_thread,
            "threading": SimpleNamespace(Event=_Cancelled, Lock=threading.Lock),
            "UNKNOWN_FOR": -1.0,
            "NOTICED_WITHIN": 0.0,
        }
        with (
            mock.patch.dict(vars(module), in_recovery),
            mock.patch.dict(vars(reconnector), in_reconnector),
        ):
            engine = cast(Any, SimpleNamespace(halt=self.halt, udp_port=0))
            self.recovery = module.Recovery(cast(Any, self), engine, _member(1), "the model")
            self.recovery.start()
        if self._violation is not None:
            raise self._violation
        self._check_end()

    def _noted(self, state: RecoveryState, event: RecoveryEvent) -> RecoveryState:
        try:
            to = recovery_states.after(state, event)
        except P4ReduceError as error:
            self._violate(IN_TABLE, str(error))
        self.walked.add((state, event, to))
        return to

    def _check_end(self) -> None:
        state = self.recovery.state
        said = 0 if state is RecoveryState.UNWANTED else 1
        if state not in ENDS or len(self.outcomes) != said:
            self._violate(ENDS_ONCE, f"it is {state.name}, and the session heard {self.outcomes}")
        if self.open:
            self._violate(CLOSED, f"{len(self.open)} connections are nobody's")


class _Paused(BaseException):
    """The reconnector has looked once."""


class _Cancelled:
    """`threading.Event` of the reconnector, which is run look by look."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        if self._is_set:
            return True
        raise _Paused


def _member(incarnation: int) -> Member:
    return Member(incarnation, 0, 2, 1, HERE, HERE)


def _here(target: Callable[[], None], name: str) -> Any:
    """Return a thread that is none."""
    return SimpleNamespace(start=target, join=lambda timeout: None)


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
        "if found.joined is None:",
        "if True:",
    ),
    RecoveryFault(
        "no agreement after the ring",
        RecoveryCase(ring=True),
        "        assert found.joined is not None\n        return self._agree(",
        "        self._resume(found, machine)\n        return True or self._agree(",
    ),
    RecoveryFault(
        "the ring keeps the old life",
        RecoveryCase(ring=True),
        "reconnector.go_by_ring()",
        "pass",
    ),
    RecoveryFault(
        "in vain, and the port stays open",
        RecoveryCase(elsewhere=True),
        "            agreement.give_up()\n            self._check()\n",
        "            self._check()\n",
    ),
    RecoveryFault(
        "a lost rank ends all at once",
        RecoveryCase(),
        "raise self._settled(error, machine) from None",
        "raise error",
    ),
    RecoveryFault(
        "nobody looks for the end",
        RecoveryCase(),
        "while not self._host.is_over():",
        "while True:",
    ),
]
