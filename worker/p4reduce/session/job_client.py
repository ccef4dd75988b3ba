# SPDX-License-Identifier: Apache-2.0
"""A rank's calls to the controller: join a job, stay in it, form it again, leave."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar

import grpc
from p4reduce_common.polling import Backoff, retry
from p4reduce_native.frame_lanes import FRAME_LANES

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlClient, ControlError, NoAnswerError
from p4reduce.control.namespaces import namespace_id
from p4reduce.environment import Placement
from p4reduce.errors import (
    AdmissionError,
    ControllerUnreachableError,
    JobEndedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
)
from p4reduce.options import CommunicatorOptions
from p4reduce.session.port import PortShare
from p4reduce.session.waiting import Waiting
from p4reduce.wire.format import AGGREGATION_PORT, Endpoint, FrameKind, header_bytes, template
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Child, Level

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

_ANY_PORT = 49152  # own UDP port where the transport has no addresses; ranks differ by IP address
_HELLO_INTERVALS = Backoff(0.02, 0.5)
_POLL = 0.05  # seconds between two looks at whether a call is still wanted
TAKEN_FOR = 4.0  # seconds; a controller that was restarted asks for processes after two
_CALL_MARGIN = 2.0  # seconds that the controller has beyond what it was told
_LEAVE_TIMEOUT = 3.0  # for all attempts
_LEAVE_PAUSE = 0.1

_ADMISSION_CODES = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


def translated(error: ControlError, what: str) -> P4ReduceError:
    """Return the controller's refusal as an error of this library."""
    text = f"{what}: {error}"
    if isinstance(error, NoAnswerError):
        return ControllerUnreachableError(
            f"{text}. Start one with p4reduce-controller serve, or a switch with it with "
            "p4reduce-lab up, which prints what to export; or give its address by controller= or "
            "P4REDUCE_CONTROLLER"
        )
    if error.code in _ADMISSION_CODES:
        return AdmissionError(text)
    if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return P4ReduceTimeoutError(text, missing=error.missing)
    if error.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):
        return JobEndedError(text)
    return ControllerUnreachableError(text)


class Proof(TypedDict):
    """What every request of a member has, with which the controller knows it."""

    incarnation: int
    rank: int
    nonce: int


@dataclass(frozen=True)
class Member:
    """A rank's place in one life of a job, with its proof.

    Attributes:
        here: addresses for a transport without its own.
        switch: addresses for HELLO: the switch's, or those that all switches of a tree share.
        cores: the names of the switch's further cores, in order.
    """

    incarnation: int
    rank: int
    world_size: int
    nonce: int
    here: Endpoint
    switch: Endpoint
    cores: tuple[str, ...] = ()

    @property
    def proof(self) -> Proof:
        """Return who this is, for a request."""
        return Proof(incarnation=self.incarnation, rank=self.rank, nonce=self.nonce)


@dataclass(frozen=True)
class JoinedJob:
    """A rank that the switch and all other ranks know.

    Attributes:
        transport: to the switch.
        ready: the controller's message about the job.
    """

    member: Member
    transport: PortShare
    ready: pb.Ready

    def close(self) -> None:
        """Close the transport."""
        self.transport.close()

    @property
    def switch(self) -> Endpoint:
        """The addresses for contributions. In a tree they differ from those of the HELLO."""
        ready = self.ready
        if not ready.switch_ip:
            return self.member.switch
        return Endpoint(ready.switch_mac, ready.switch_ip, AGGREGATION_PORT)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The children of the switches above this rank; empty with an older controller."""
        levels = self.ready.levels
        alone = len(levels) == 1
        return tuple(
            Level(
                "" if alone else level.switch,
                tuple(Child(tuple(child.ranks), child.switch) for child in level.children),
            )
            for level in levels
        )

    @property
    def leaf(self) -> tuple[int, ...]:
        """The ranks at this rank's own switch, in order; all ranks with an older controller."""
        levels = self.levels
        return tuple(sorted(levels[0].own_ranks if levels else range(self.ready.world_size)))


class _HelloSender:
    """Sends HELLO by a transport, less and less often."""

    def __init__(self, member: Member, transport: PortShare) -> None:
        self.transport = transport
        self._hello = FrameBuffer(1)
        header = header_bytes(
            kind=FrameKind.HELLO,
            job=member.incarnation,
            rank=member.rank,
            contributors=member.nonce,
        )
        self._hello.put(0, template(here(member, transport), member.switch, header))
        self._intervals, self._due = iter(_HELLO_INTERVALS), time.monotonic()

    def go_on(self) -> None:
        """Send one if it is due. Raises SwitchUnreachableError: the transport broke."""
        now = time.monotonic()
        if now >= self._due:
            self.transport.send(self._hello)
            self._due = now + next(self._intervals)
        self.transport.check()


@dataclass(eq=False)
class JobClient:
    """Makes the calls, each within a deadline. Thread-safe.

    Timeouts are in seconds. All calls raise ControlError if the controller refuses, and
    ClientClosedError if the client is closed. `check` is called again and again meanwhile; what it
    raises ends the call.

    Attributes:
        client: closed by `close`.
        place: who this is, at first; a job that forms again may give another rank.
        job: its name.
        ring_address: where other ranks reach this one by TCP, or "".
        switch: the name of the switch that the rank is at, where the controller has several.
        token: of the job, or "".
    """

    client: ControlClient
    place: Placement
    job: str
    ring_address: str = ""
    switch: str = ""
    token: str = ""

    @property
    def who(self) -> str:
        """The rank's name for messages."""
        return f"rank {self.place.rank} of job {self.job!r}"

    def join(self, options: CommunicatorOptions, waiting: Waiting, *, own_address: bool) -> Member:
        """Register when a controller is there. Raises as `p4reduce.init` does.

        `own_address`: whether the transport has its own addresses.
        """
        request = pb.JoinRequest(
            job=self.job,
            rank=self.place.rank,
            world_size=self.place.world_size,
            slots=options.slots,
            urgent_slots=options.urgent_slots,
            host=socket.gethostname(),
            pid=os.getpid(),
            processes=namespace_id("pid"),
            ring_address=self.ring_address,
            own_address=own_address,
            switch=self.switch,
            token=self.token,
            lanes=FRAME_LANES,
        )
        # A place that is taken may be that of a process that has just ended; or this rank's own,
        # by a request whose answer got lost.
        taken_until = time.monotonic() + TAKEN_FOR

        def passes(error: ControlError) -> bool:
            nonlocal taken_until
            if isinstance(error, NoAnswerError):
                taken_until = waiting.deadline
            is_taken = error.code == grpc.StatusCode.ALREADY_EXISTS
            return _may_pass(error) or (is_taken and time.monotonic() < taken_until)

        def attempt() -> pb.JoinReply:
            return self._call_patiently(
                self.client.stub.Join, request, waiting.left, waiting.check, _POLL, margin=0
            )

        try:
            reply = waiting.retry(attempt, passes, ControlError)
        except ControlError as error:
            if not _is_own(error):
                raise translated(error, f"{self.who} cannot join") from None
            raise translated(
                error,
                f"{self.who} cannot join twice: init was called a second time in this process. "
                "Use the first communicator, or one that its dup() makes; or give another job=",
            ) from None
        return _member(reply, self.place.rank, self.place.world_size)

    def attach(
        self,
        member: Member,
        transport: PortShare,
        timeout: float,
        check: Callable[[], None],
        reopen: Callable[[], PortShare],
    ) -> JoinedJob:
        """Send HELLO until the controller says that all are there.

        A rank that ends this call gives up its place, and a job that is about to run fails by that.
        So where the switch is lost meanwhile, it keeps the place, and opens another transport by
        `reopen`, which is called until it does not raise SwitchUnreachableError. One that lasts
        ends the call. `transport` is closed if this fails.

        Raises:
            SwitchUnreachableError: the transport broke, and there is no other one.
        """
        greeting = _HelloSender(member, transport)
        broken: SwitchUnreachableError | None = None

        def meanwhile() -> None:
            nonlocal greeting, broken
            check()
            try:
                if broken is not None:
                    greeting = _HelloSender(member, reopen())
                    broken = None
                greeting.go_on()
            except SwitchUnreachableError as error:
                if error.lasting:
                    raise
                greeting.transport.close()
                broken = broken or error

        request = pb.AwaitReadyRequest(**member.proof, timeout=timeout)
        try:
            ready = self._call_patiently(
                self.client.stub.AwaitReady, request, timeout, meanwhile, _HELLO_INTERVALS.first
            )
            if broken is not None:
                raise broken
        except BaseException:
            greeting.transport.close()
            raise
        return JoinedJob(member, greeting.transport, ready)

    def reform(
        self,
        member: Member,
        *,
        world_size: int,
        completed: int,
        intact: bool,
        timeout: float,
        check: Callable[[], None] = lambda: None,
    ) -> Member:
        """Return a membership in the job that continues after a failed one.

        `world_size` 0 stands for the number of live ranks. `completed` is the number of the first
        collective whose result this rank lacks. `intact`: whether to continue only with all ranks.
        """
        request = pb.ReformRequest(
            **member.proof,
            world_size=world_size,
            completed=completed,
            timeout=timeout,
            ring_address=self.ring_address,
            intact=intact,
        )
        reply = self._call_patiently(self.client.stub.Reform, request, timeout, check, _POLL)
        return _member(reply.joined, reply.rank, reply.world_size)

    def heartbeat(
        self,
        member: Member,
        timeout: float,
        *,
        completed: int = 0,
        unanswered: float = 0.0,
        heard: float = 0.0,
        statistics: pb.WorkerStatistics | None = None,
    ) -> pb.HeartbeatReply:
        """Renew a lease, and hear how the job is. `completed` is as for `reform`.

        The switch has owed an answer for `unanswered` seconds, 0 if it owes none. It last answered
        `heard` seconds ago, 0 if it never has.
        """
        request = pb.HeartbeatRequest(
            **member.proof,
            completed=completed,
            unanswered=unanswered,
            heard=heard,
            statistics=statistics,
        )
        return self.client.call(self.client.stub.Heartbeat, request, timeout=timeout)

    def compare(
        self, member: Member, calls: Sequence[pb.Called], timeout: float
    ) -> pb.CompareReply:
        """Report what this rank called, and return what each rank called."""
        request = pb.CompareRequest(**member.proof, calls=calls)
        return self.client.call(self.client.stub.Compare, request, timeout=timeout)

    def settle(
        self, member: Member, step: int, said: bytes, timeout: float, check: Callable[[], None]
    ) -> dict[int, bytes]:
        """Say at most 60 KiB to the other ranks that remain; return what each of them says.

        All of them take the same steps, from 0.
        """
        request = pb.SettleRequest(**member.proof, step=step, said=said, timeout=timeout)
        reply = self._call_patiently(self.client.stub.Settle, request, timeout, check, _POLL)
        return {one.rank: one.said for one in reply.said}

    def pass_settling(self, member: Member, timeout: float) -> None:
        """Let the other ranks settle without this one."""
        request = pb.SettleRequest(**member.proof, passes=True)
        self.client.call(self.client.stub.Settle, request, timeout=timeout)

    def open_presence(self, member: Member) -> grpc.CallIterator[pb.Attending]:
        """Open a call that ends with this process."""
        with self.client.naming_closed():
            return self.client.stub.Attend(pb.AttendRequest(**member.proof))

    def with_member(self, member: Member) -> JobClient:
        """Return the same for another membership, which then has the client."""
        place = Placement(member.rank, member.world_size, self.place.local_rank)
        return replace(self, place=place)

    def leave(self, member: Member, statistics: pb.WorkerStatistics | None = None) -> None:
        """Leave the job. A controller that is restarting is waited for briefly.

        If no controller answers, the lease runs out.
        """
        request = pb.LeaveRequest(**member.proof, statistics=statistics)

        def attempt(left: float) -> None:
            self.client.call(self.client.stub.Leave, request, timeout=left)

        with contextlib.suppress(ControlError, ClientClosedError):
            retry(attempt, NoAnswerError, _LEAVE_TIMEOUT, _LEAVE_PAUSE)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _call_patiently(
        self,
        method: grpc.UnaryUnaryMultiCallable[_Request, _Reply],
        request: _Request,
        timeout: float,
        meanwhile: Callable[[], None],
        interval: float,
        margin: float = _CALL_MARGIN,
    ) -> _Reply:
        """Make a call that may take long, and do something else every `interval` seconds."""

        def wait(request: _Request, **options: Any) -> _Reply:
            pending = method.future(request, timeout=options["timeout"])
            try:
                while not pending.done():
                    meanwhile()
                    with contextlib.suppress(grpc.FutureTimeoutError):
                        pending.result(timeout=interval)
                return pending.result()
            finally:
                pending.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it open

        return self.client.call(wait, request, timeout=timeout + margin)


def _is_own(error: ControlError) -> bool:
    """Whether a place is taken by this very process."""
    holder = f"(host {socket.gethostname()}, pid {os.getpid()})"
    return error.code == grpc.StatusCode.ALREADY_EXISTS and holder in str(error)


def _may_pass(error: ControlError) -> bool:
    """Whether what keeps a rank from joining may pass."""
    if isinstance(error, NoAnswerError):
        return not error.lasting
    # An earlier life of the job is about to end when its last ranks have left; or the controller
    # is there and looks for its switch.
    return error.code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)


def here(member: Member, transport: PortShare) -> Endpoint:
    """Return the source addresses of a rank's frames."""
    return transport.endpoint or member.here


def _member(reply: pb.JoinReply, rank: int, world_size: int) -> Member:
    return Member(
        incarnation=reply.incarnation,
        rank=rank,
        world_size=world_size,
        nonce=reply.nonce,
        here=Endpoint(reply.suggested_mac, reply.suggested_ip, _ANY_PORT),
        switch=Endpoint(reply.switch_mac, reply.switch_ip, AGGREGATION_PORT),
        cores=tuple(reply.cores),
    )
