# SPDX-License-Identifier: Apache-2.0
"""A rank's membership of a job: joining, staying (a lease that is renewed), leaving."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass

import grpc
import numpy as np

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.client import ControllerUnreachableError as _NoAnswerError
from p4reduce.control.tls import TlsError
from p4reduce.engine import Engine
from p4reduce.environment import Placement
from p4reduce.errors import (
    AdmissionError,
    ConfigurationError,
    ControllerUnreachableError,
    JobEndedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    WorkerLostError,
)
from p4reduce.frames import FrameBuffer
from p4reduce.slots import SlotMachine
from p4reduce.transport.base import Transport
from p4reduce.wire import AGGREGATION_PORT, Aggregation, Endpoint, Kind, template

log = logging.getLogger(__name__)

_ANY_PORT = 49152  # own UDP port where the transport has no addresses; ranks differ by IP address
_HELLO_INTERVALS = (0.02, 0.5)  # seconds, first and longest: doubled each time
_RETRY_JOIN = 0.1  # seconds
_CALL_MARGIN = 2.0  # seconds that the controller has beyond what it was told
_LEAVE_TIMEOUT = 2.0
_STOP_TIMEOUT = 5.0

_ADMISSION_CODES = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


def _translated(error: ControlError, what: str) -> P4ReduceError:
    text = f"{what}: {error}"
    if isinstance(error, _NoAnswerError):
        return ControllerUnreachableError(
            f"{text}. Start one with p4reduce-controller serve, or say where it is by controller= "
            "or P4REDUCE_CONTROLLER"
        )
    if error.code in _ADMISSION_CODES:
        return AdmissionError(text)
    if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return P4ReduceTimeoutError(text)
    if error.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):
        return JobEndedError(text)
    return ControllerUnreachableError(text)


@dataclass(frozen=True)
class _Membership:
    """What a rank got from the controller, and proves itself by."""

    incarnation: int
    rank: int
    nonce: int


class Session:
    """From joining to leaving. It owns transport, engine, heartbeat and the controller's client.

    Args:
        place: who this is.
        job: name of the job.
        controller: its address, or None for the default.
        transport: to the switch; closed with the session, also if joining fails.
        slots: how many to ask for if this rank makes the job; 0: the controller's default.
        timeout: seconds for all of joining.

    Raises:
        AdmissionError, ConfigurationError, ControllerUnreachableError, JobEndedError,
        P4ReduceTimeoutError, SwitchUnreachableError: as their texts say.
    """

    def __init__(
        self,
        place: Placement,
        job: str,
        *,
        controller: str | None,
        transport: Transport,
        slots: int,
        timeout: float,
    ) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self.job = job
        self._who = f"rank {place.rank} of job {job!r}"
        try:
            self._client = ControlClient(controller)
        except TlsError as error:
            transport.close()
            raise ConfigurationError(str(error)) from None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        deadline = time.monotonic() + timeout
        joined: _Membership | None = None
        try:
            reply = self._join(slots, deadline)
            joined = _Membership(reply.incarnation, place.rank, reply.nonce)
            here = transport.endpoint or Endpoint(
                reply.suggested_mac, reply.suggested_ip, _ANY_PORT
            )
            switch = Endpoint(reply.switch_mac, reply.switch_ip, AGGREGATION_PORT)
            ready = self._attach(joined, transport, here, switch, deadline)
        except BaseException:
            transport.close()
            if joined is not None:
                self._leave(joined)
            self._client.close()
            raise
        self._membership = joined
        self.slots = ready.slot_count
        self.incarnation = joined.incarnation
        machine = SlotMachine(
            slots=ready.slot_count,
            job=joined.incarnation,
            rank=place.rank,
            world_size=ready.world_size,
            here=here,
            switch=switch,
        )
        self.engine = Engine(machine, transport, f"p4reduce-{place.rank}")
        self._heartbeat = threading.Thread(
            target=self._stay, args=(ready.lease,), name=f"p4reduce-lease-{place.rank}", daemon=True
        )
        self._heartbeat.start()

    # -- Joining ---------------------------------------------------------------------------------

    def _join(self, slots: int, deadline: float) -> pb.JoinReply:
        request = pb.JoinRequest(
            job=self.job,
            rank=self.rank,
            world_size=self.world_size,
            slots=slots,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            try:
                return self._client.call(self._client.stub.Join, request, timeout=left)
            except ControlError as error:
                # An earlier life of the job is about to end when its last ranks have left.
                ending = error.code == grpc.StatusCode.FAILED_PRECONDITION
                if not ending or time.monotonic() + _RETRY_JOIN >= deadline:
                    raise _translated(error, f"{self._who} cannot join") from None
            time.sleep(_RETRY_JOIN)

    def _attach(
        self,
        joined: _Membership,
        transport: Transport,
        here: Endpoint,
        switch: Endpoint,
        deadline: float,
    ) -> pb.Ready:
        """Send HELLO until the controller says that all are there."""
        hello = FrameBuffer(1)
        header = Aggregation(
            kind=Kind.HELLO, job=joined.incarnation, rank=joined.rank, contributors=joined.nonce
        )
        hello.put(0, template(here, switch, header))

        def await_ready(request: pb.AwaitReadyRequest, **options: float) -> pb.Ready:
            pending = self._client.stub.AwaitReady.future(request, timeout=options["timeout"])
            interval, longest = _HELLO_INTERVALS
            try:
                while not pending.done():
                    transport.send(hello, np.zeros(1, np.int64))
                    with contextlib.suppress(grpc.FutureTimeoutError):
                        pending.result(timeout=interval)
                    while transport.receive():
                        pass  # what others send on the network; or the news that it is gone
                    interval = min(2 * interval, longest)
                return pending.result()
            finally:
                pending.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it open

        left = max(deadline - time.monotonic(), 0.1)
        request = pb.AwaitReadyRequest(
            incarnation=joined.incarnation, rank=joined.rank, nonce=joined.nonce, timeout=left
        )
        try:
            return self._client.call(await_ready, request, timeout=left + _CALL_MARGIN)
        except ControlError as error:
            raise _translated(error, f"{self._who} joined, but the job does not start") from None

    # -- Staying ---------------------------------------------------------------------------------

    def _stay(self, lease: float) -> None:
        """Renew the lease three times within its length, and hear how the others are."""
        interval = lease / 3
        unreachable_since: float | None = None
        request = pb.HeartbeatRequest(
            incarnation=self._membership.incarnation,
            rank=self._membership.rank,
            nonce=self._membership.nonce,
        )
        while not self._closing.wait(interval):
            try:
                reply = self._client.call(self._client.stub.Heartbeat, request, timeout=interval)
            except _NoAnswerError as error:
                # The switch sums without its controller, so this alone ends nothing.
                if unreachable_since is None:
                    unreachable_since = time.monotonic()
                    log.warning("%s: %s; going on without it", self._who, error)
                continue
            except ControlError as error:
                self.engine.fail(_translated(error, f"{self._who} is out of it"))
                return
            except ValueError:
                return  # the client was closed meanwhile
            if unreachable_since is not None:
                log.warning("%s: the controller answers again", self._who)
                unreachable_since = None
            if self._hear(reply):
                return

    def _hear(self, reply: pb.HeartbeatReply) -> bool:
        """Act on how the job is; return whether it is over."""
        lost = tuple(reply.lost)
        if lost:
            self.engine.fail(
                WorkerLostError(f"job {self.job!r} has failed: {reply.reason}", ranks=lost)
            )
            return True
        if reply.state in (pb.FAILED, pb.ENDED):
            self.engine.fail(JobEndedError(f"job {self.job!r} is over: {reply.reason}"))
            return True
        if reply.left:
            self.engine.ranks_left(tuple(reply.left))
        return False

    # -- Leaving ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop, and leave the job. What is under way ends with `ClosedError`. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._closing.set()
        self.engine.stop(_STOP_TIMEOUT)
        self._leave(self._membership)
        self._client.close()
        if threading.current_thread() is not self._heartbeat:
            self._heartbeat.join(_STOP_TIMEOUT)

    def _leave(self, member: _Membership) -> None:
        request = pb.LeaveRequest(
            incarnation=member.incarnation, rank=member.rank, nonce=member.nonce
        )
        # If nobody hears it, the lease runs out.
        with contextlib.suppress(ControlError, ValueError):
            self._client.call(self._client.stub.Leave, request, timeout=_LEAVE_TIMEOUT)
