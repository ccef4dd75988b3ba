# SPDX-License-Identifier: Apache-2.0
"""A rank's heartbeat: it renews the lease, and hears how the job and the other ranks are."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Protocol

import grpc
from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError, NoAnswerError
from p4reduce.errors import P4ReduceError, WorkerLostError
from p4reduce.latch import Latch
from p4reduce.session.job_client import JobClient, Member, PresenceCall, translated
from p4reduce.session.recovery import UNKNOWN_FOR
from p4reduce.thread_failure import ThreadFailedError
from p4reduce.wire.rank_sets import describe_ranks

log = logging.getLogger(__name__)

_BEATS = 8  # a lease; the controller counts on it (leases.py)
BEAT_TIMEOUT = 1 / 4  # of a lease
_HOST_DOWN = 2.0  # leases without an answer of a controller that is started again if it ends


class HeartbeatHandler(Protocol):
    """The owner of the membership. Calls come from the heartbeat's thread."""

    job_client: JobClient

    @property
    def member(self) -> Member:
        """The present membership."""

    @property
    def lease(self) -> float:
        """Its length in seconds."""

    @property
    def beside_controller(self) -> tuple[int, ...]:
        """Ranks that are down if the controller is, as its host is down then."""

    def is_closing(self) -> bool:
        """Whether the rank leaves its job."""

    def send_heartbeat(self, member: Member, timeout: float) -> pb.HeartbeatReply:
        """Renew the lease. Raises ControlError, ClientClosedError."""

    def on_heartbeat_reply(self, member: Member, reply: pb.HeartbeatReply) -> None:
        """Act on how the job is."""

    def leave_job(self) -> None:
        """Give up the membership. Raises nothing."""

    def fail(self, error: P4ReduceError) -> None:
        """End all calls with an error."""


class Heartbeat:
    """A thread that beats several times within a lease, until `stop` or until the rank has left.

    It continues when the job has failed: the remaining ranks may form it again. Whatever else ends
    the thread ends the rank's calls, with the cause.
    """

    def __init__(self, handler: HeartbeatHandler) -> None:
        self._handler = handler
        self._wakeup = Latch()
        self._must_leave = False
        self._presence_call: PresenceCall | None = None
        self._trouble_since: float | None = None
        self._answered = time.monotonic()
        name = f"p4reduce-lease-{handler.member.rank}"
        self._thread = new_thread(self._run, name, self._failed)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave_soon(self) -> None:
        """Leave the job, in the thread."""
        self._must_leave = True
        self._wakeup.set()

    def stop(self) -> None:
        """End soon; the handler must be closing."""
        self._wakeup.set()

    def join(self, timeout: float) -> None:
        """Return when the thread has ended, and close what shows that the process lives."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._end_presence()

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        self._keep_presence()
        goes_on = True
        while goes_on and not self._wakeup.wait(self._handler.lease / _BEATS):
            goes_on = self._beat()
        if self._must_leave and not self._handler.is_closing():
            self._handler.leave_job()

    def _failed(self, cause: BaseException) -> None:
        """End, and leave the job, because nobody renews the lease any more."""
        if not self._handler.is_closing():
            error = ThreadFailedError.of(f"the heartbeat thread failed: {cause!r}", cause)
            self._handler.fail(error)
            self._handler.leave_job()

    def _beat(self) -> bool:
        """Beat once. Returns False if all calls have ended, and there is no job to stay in."""
        handler, member, job_client = self._handler, self._handler.member, self._handler.job_client
        try:
            reply = handler.send_heartbeat(member, BEAT_TIMEOUT * handler.lease)
        except ControlError as error:
            return self._beat_in_vain(error)
        except ClientClosedError:
            if handler.is_closing():
                return True
            raise
        self._answered = time.monotonic()
        if self._trouble_since is not None:
            log.warning("%s: the controller answers again", job_client.who)
            self._trouble_since = None
        self._keep_presence()
        handler.on_heartbeat_reply(member, reply)
        return True

    def _beat_in_vain(self, error: ControlError) -> bool:
        """The switch sums without its controller, so its absence alone ends nothing.

        A restarted one may need a moment to know the job.
        """
        handler, now = self._handler, time.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
            log.warning("%s: %s; continuing without it", handler.job_client.who, error)
        if isinstance(error, NoAnswerError):
            self._trouble_since = now  # the patience with one that answers begins when it does
            return not self._is_host_down(now - self._answered, error)
        unknown = error.code == grpc.StatusCode.NOT_FOUND
        if unknown and now - self._trouble_since <= UNKNOWN_FOR:
            return True
        handler.fail(translated(error, f"{handler.job_client.who} is out of it"))
        return False

    def _is_host_down(self, silent: float, error: NoAnswerError) -> bool:
        """Fail if the controller's host must be down, and with it ranks of this job."""
        handler = self._handler
        ranks = handler.beside_controller
        if not ranks or handler.member.rank in ranks or silent < _HOST_DOWN * handler.lease:
            return False
        handler.fail(
            WorkerLostError(
                f"job {handler.job_client.job!r} has failed: {describe_ranks(ranks)} and the "
                f"controller on the same host did not answer for {silent:.3g} s: {error}",
                ranks=ranks,
            )
        )
        return True

    def _keep_presence(self) -> None:
        """Let the controller see at once when this process is gone."""
        handler = self._handler
        if self._presence_call is None or not self._presence_call.is_open_for(handler.member):
            self._end_presence()
            with contextlib.suppress(ClientClosedError):
                self._presence_call = handler.job_client.open_presence(handler.member)

    def _end_presence(self) -> None:
        if self._presence_call is not None:
            self._presence_call.end()
            self._presence_call = None
