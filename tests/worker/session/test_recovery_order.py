# SPDX-License-Identifier: Apache-2.0
"""Recovery in the orders of events that a busy machine has once in hundreds of losses.

The controller, the switches and the slots are stood in for; the test decides when each of them
answers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce.environment import Placement
from p4reduce.errors import (
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session import reconnector, recovery
from p4reduce.session.fallback_switches import FallbackSwitch, FallbackSwitches
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.reconnector import JobIncarnations, Reconnection, Reconnector
from p4reduce.session.recovery import Recovery
from p4reduce.wire.format import Endpoint
from worker_system import DEADLINE

NOWHERE = Endpoint("02:00:00:00:00:01", "10.77.0.1", 1)


def member(incarnation: int) -> Member:
    return Member(incarnation, 0, 3, incarnation, NOWHERE, NOWHERE)


class Controller:
    """The calls of one rank to its controller, answered as a test says.

    Attributes:
        states: of each life of the job; one that is missing is not known.
        await_ready: what comes of HELLOs.
    """

    def __init__(self) -> None:
        self.job, self.who = "test", "rank 0"
        self.place = Placement(0, 3, 0)
        self.states = {1: pb.FAILED, 2: pb.FORMING}
        self.await_ready: Callable[[Member, Any, float, Callable[[], None], Any], pb.Ready]
        self.reforms: list[int] = []

    def attach(self, own: Member, transport: Any, *rest: Any) -> JoinedJob:
        return JoinedJob(own, transport, self.await_ready(own, transport, *rest))

    def heartbeat(self, at: Member, timeout: float, **_: Any) -> pb.HeartbeatReply:
        state = self.states.get(at.incarnation)
        if state is None:
            raise ControlError(grpc.StatusCode.NOT_FOUND, f"no rank in {at.incarnation}")
        return pb.HeartbeatReply(
            state=state, cause=pb.CAUSE_SWITCH_LOST if state == pb.FAILED else 0
        )

    def reform(self, before: Member, **options: Any) -> Member:
        self.reforms.append(before.incarnation)
        return member(2)


class Agreed:
    """The ranks agree at once: `session.agreement.ResumeAgreement`."""

    deserted = False
    engine = None

    def __init__(self, *arguments: Any) -> None: ...
    def give_up(self) -> None: ...

    def reach(self, check: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


@pytest.fixture(autouse=True)
def agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "ResumeAgreement", Agreed)


class Host:
    """The session; `resumed` is what it continues with."""

    fallback = None
    neighbourhood: Any = None
    slots, urgent_slots, home = 32, 0, 0
    settle_within = DEADLINE
    broken: P4ReduceError | None = None

    def __init__(self, controller: Controller, fallback_switches: FallbackSwitches) -> None:
        self.job_client = cast(JobClient, controller)
        self.fallback_switches = fallback_switches
        self.resumed: Reconnection | None = None
        self.error: P4ReduceError | None = None
        self.members: list[int] = []
        self.call_log = SimpleNamespace(completed=6, in_flight=list[Any]())
        self.over_now = threading.Event()
        self._done = threading.Event()

    def connect(self, udp_port: int) -> Any:
        return SimpleNamespace(close=lambda: None)

    def is_over(self) -> bool:
        return self.over_now.is_set()

    def on_halted(self) -> None:
        pass

    def machine(self, joined: JoinedJob) -> Any:
        return None

    def on_member_changed(self, to: Member) -> None:
        self.members.append(to.incarnation)

    def resume(self, found: Reconnection, before: Any) -> None:
        self.resumed = found
        self._done.set()

    def give_up(self, error: P4ReduceError) -> None:
        self.error = error
        self._done.set()

    def wait(self) -> Reconnection:
        assert self._done.wait(DEADLINE)
        assert self.error is None, self.error
        assert self.resumed is not None
        return self.resumed


def nowhere(udp_port: int) -> Any:
    raise SwitchUnreachableError("nobody listens there")


SLOTS = SimpleNamespace(in_dispute=False, broken=None)  # of life 1


def slots_of_life_1(timeout: float) -> Any:
    return SLOTS


def recover(
    controller: Controller,
    *,
    after: float,
    halt: Callable[[float], Any] = slots_of_life_1,
    calls: Sequence[Any] = (),
) -> tuple[Host, Recovery]:
    """Begin to recover at one of two switches, of which the other one cannot be reached.

    Args:
        controller: answers the calls to it.
        after: seconds until it is time to look elsewhere.
        halt: the progress thread's end.
        calls: the collectives that are under way.
    """
    places = [FallbackSwitch(cast(Any, None), nowhere), FallbackSwitch(cast(Any, None), nowhere)]
    fallback_switches = FallbackSwitches(
        places, lambda at: f"test-at-{at}", lambda: frozenset({1}), frozenset, tuple, after
    )
    host = Host(controller, fallback_switches)
    host.call_log.in_flight = list(calls)
    engine = SimpleNamespace(halt=halt, udp_port=0)
    running = Recovery(cast(Any, host), cast(Any, engine), member(1), "a test")
    running.start()
    return host, running


def test_slots_of_an_earlier_life_are_not_used_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rank stops to wait for the switch just when the others are all back on it.

    It looks elsewhere in vain, and comes back to a job that runs: of that it has no slots. With
    those of the lost life all its frames would be refused, and no call would ever end.
    """
    monkeypatch.setattr(recovery, "HOME_AGAIN", 0.2)
    monkeypatch.setattr(reconnector, "NOTICED_WITHIN", 0.0)
    controller = Controller()

    def attach(
        own: Member, transport: Any, timeout: float, check: Callable[[], None], again: Any
    ) -> pb.Ready:
        while controller.states[2] != pb.RUNNING:
            try:
                check()
            except BaseException:
                controller.states[2] = pb.RUNNING  # the moment in which the last one has come
                raise
            time.sleep(0.005)
        return pb.Ready(world_size=3)

    controller.await_ready = attach
    host, _ = recover(controller, after=0.1)
    found = host.wait()
    assert found.joined is not None
    assert found.joined.member.incarnation == 2


def test_a_switch_that_is_back_is_taken_when_it_is_time_to_go_elsewhere() -> None:
    controller = Controller()
    began = time.monotonic()

    def attach(
        own: Member, transport: Any, timeout: float, check: Callable[[], None], again: Any
    ) -> pb.Ready:
        time.sleep(max(0.0, began + 0.3 - time.monotonic()))  # until it is time, without a look
        controller.states[2] = pb.RUNNING
        return pb.Ready(world_size=3)

    controller.await_ready = attach
    host, _ = recover(controller, after=0.2)
    assert isinstance(host.wait().joined, JoinedJob)
    assert controller.reforms == [1]


def test_a_rank_whose_place_was_given_up_gets_it_again_by_its_member_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its way to the switch broke while the job formed, and it has looked elsewhere since."""
    monkeypatch.setattr(recovery, "HOME_AGAIN", 0.2)
    monkeypatch.setattr(reconnector, "UNKNOWN_FOR", 0.0)
    controller = Controller()
    tries: list[int] = []

    def attach(
        own: Member, transport: Any, timeout: float, check: Callable[[], None], again: Any
    ) -> pb.Ready:
        tries.append(own.incarnation)
        if len(tries) > 1:
            return pb.Ready(world_size=3)
        try:
            while True:
                check()
                time.sleep(0.005)
        finally:
            del controller.states[2]

    controller.await_ready = attach
    host, _ = recover(controller, after=0.1)
    assert host.wait().joined is not None
    assert controller.reforms == [1, 1]
    assert host.members == [2, 1, 2]


def call(seconds: float) -> Any:
    """Return a collective that has so long."""
    now = time.monotonic()
    return SimpleNamespace(started=now, deadline=now + seconds, description="allreduce 6")


def test_a_progress_thread_that_the_machine_holds_up_is_waited_for() -> None:
    looks: list[float] = []

    def halt(timeout: float) -> Any:
        looks.append(timeout)
        if len(looks) < 50:  # of a fifth of a second each
            raise P4ReduceTimeoutError("the progress thread did not end")
        return SLOTS

    controller = Controller()
    controller.await_ready = lambda *arguments: pb.Ready(world_size=3)
    host, _ = recover(controller, after=DEADLINE, halt=halt, calls=[call(DEADLINE)])
    assert host.wait().joined is not None
    assert len(looks) == 50


def test_a_progress_thread_that_never_ends_is_named_at_the_deadline() -> None:
    def halt(timeout: float) -> Any:
        time.sleep(0.01)
        raise P4ReduceTimeoutError("the progress thread did not end")

    host, _ = recover(Controller(), after=DEADLINE, halt=halt, calls=[call(0.2)])
    with pytest.raises(AssertionError, match=r"allreduce 6 is not complete .* progress thread"):
        host.wait()
    assert isinstance(host.error, P4ReduceTimeoutError)


@pytest.mark.parametrize(
    ("lost", "named"), [((2,), "rank 2 was lost"), ((0, 2), "ranks 0, 2 were lost")]
)
def test_a_rank_that_was_lost_while_there_was_no_switch_is_named(
    lost: tuple[int, ...], named: str
) -> None:
    """The controller's reason is that of the job, which had failed before: its switch."""
    reason = "the switch was lost: nobody listens there"
    reply = pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_SWITCH_LOST, reason=reason, lost=lost)
    error = reconnector.why_over("train", Member(1, 1, 3, 1, NOWHERE, NOWHERE), reply)
    assert isinstance(error, WorkerLostError)
    assert error.ranks == lost
    assert str(error) == f"job 'train' has failed: {named} while it had no switch ({reason})"


def test_the_life_that_was_found_just_before_the_ring_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that reduces by the ring is out of step with it, so it asks for another one."""
    monkeypatch.setattr(reconnector, "NOTICED_WITHIN", 0.0)
    controller, closed, found = Controller(), list[int](), threading.Event()
    controller.states = {1: pb.RUNNING, 2: pb.FORMING}
    controller.await_ready = lambda *_: pb.Ready(world_size=3)
    ways = itertools.count()

    def connect(udp_port: int) -> Any:
        number = next(ways)
        return SimpleNamespace(close=lambda: closed.append(number))

    seeking = Reconnector(
        cast(JobClient, controller),
        JobIncarnations.of_engine(member(1)),
        udp_port=0,
        connect=connect,
        completed=6,
        moved=lambda to: None,
        over=found.set,
    )
    seeking.start()
    assert found.wait(DEADLINE)
    assert seeking.incarnation == 0
    found.clear()
    seeking.go_by_ring()
    assert found.wait(DEADLINE)
    assert (seeking.incarnation, controller.reforms, closed) == (2, [1], [0])
    seeking.cancel(DEADLINE)
    assert closed == [0, 1]


class _PausedLock:
    """A lock after which one thread stands still, while others continue."""

    def __init__(self, who: str) -> None:
        self.left, self.go_on = threading.Event(), threading.Event()
        self._who, self._lock = who, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if threading.current_thread().name == self._who and not self.left.is_set():
            self.left.set()
            assert self.go_on.wait(DEADLINE)


def test_one_thread_seeks_if_what_was_found_is_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that found the old life has not looked at what it found when the ring begins."""
    monkeypatch.setattr(reconnector, "NOTICED_WITHIN", 0.0)
    controller, ways = Controller(), list[int]()
    controller.states = {1: pb.RUNNING, 2: pb.FORMING}

    def await_ready(*_: object) -> Any:
        time.sleep(0.2)  # for another thread to come as well
        return pb.Ready(world_size=3)

    def connect(udp_port: int) -> Any:
        ways.append(udp_port)
        return SimpleNamespace(close=lambda: None)

    controller.await_ready = await_ready
    over = threading.Semaphore(0)
    seeking = Reconnector(
        cast(JobClient, controller),
        JobIncarnations.of_engine(member(1)),
        udp_port=0,
        connect=connect,
        completed=6,
        moved=lambda to: None,
        over=over.release,
    )
    lock = _PausedLock("p4reduce-seek-0")
    seeking._lock = cast(Any, lock)  # private: a thread has to stand still just behind it
    seeking.start()
    assert lock.left.wait(DEADLINE)
    seeking.go_by_ring()
    lock.go_on.set()
    assert all(over.acquire(timeout=DEADLINE) for _ in range(2))  # of both threads
    assert (seeking.incarnation, controller.reforms, len(ways)) == (2, [1], 2)
    seeking.cancel(DEADLINE)
