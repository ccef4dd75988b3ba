# SPDX-License-Identifier: Apache-2.0
"""A rank's heartbeat: it renews the lease, and hears how the job and the other ranks are."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

import grpc
from p4reduce_common.figures import three_digits
from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError, NoAnswerError
from p4reduce.errors import WorkerLostError
from p4reduce.latch import Latch
from p4reduce.session.job_client import Member, translated
from p4reduce.session.recovery import UNKNOWN_FOR
from p4reduce.thread_failure import ThreadFailedError
from p4reduce.wire.rank_sets import describe_ranks

if TYPE_CHECKING:
    from p4reduce.session.session import Session

log = logging.getLogger(__name__)

_BEATS = 8  # a lease; the controller counts on it (leases.py)
BEAT_TIMEOUT = 1 / 4  # of a lease
_HOST_DOWN = 2.0  # leases without an answer of a controller that is started again if it ends


class Heartbeat:
    """A thread that beats several times within a lease, until `stop` or until the rank has left.

    It continues when the job has failed: the remaining ranks may form it again. Whatever else ends
    the thread ends the rank's calls, with the cause.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wakeup = Latch()
        self._must_leave = False
        self._presence: tuple[Member, grpc.CallIterator[pb.Attending]] | None = None
        self._trouble_since: float | None = None
        self._answered = time.monotonic()
        name = f"p4reduce-lease-{session.member.rank}"
        self._thread = new_thread(self._run, name, self._failed)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave_soon(self) -> None:
        """Leave the job, in the thread."""
        self._must_leave = True
        self._wakeup.set()

    def stop(self) -> None:
        """End soon; the session must be closing."""
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
        while goes_on and not self._wakeup.wait(self._session.lease / _BEATS):
            goes_on = self._beat()
        if self._must_leave and not self._session.is_closing():
            self._session.leave_job()

    def _failed(self, cause: BaseException) -> None:
        """End, and leave the job, because nobody renews the lease any more."""
        if not self._session.is_closing():
            error = ThreadFailedError.of(f"the heartbeat thread failed: {cause!r}", cause)
            self._session.fail(error)
            self._session.leave_job()

    def _beat(self) -> bool:
        """Beat once. Returns False if all calls have ended, and there is no job to stay in."""
        session, member = self._session, self._session.member
        try:
            reply = session.send_heartbeat(member, BEAT_TIMEOUT * session.lease)
        except ControlError as error:
            return self._beat_in_vain(error)
        except ClientClosedError:
            if session.is_closing():
                return True
            raise
        self._answered = time.monotonic()
        if self._trouble_since is not None:
            log.warning("%s: the controller answers again", session.job_client.who)
            self._trouble_since = None
        self._keep_presence()
        session.on_heartbeat_reply(member, reply)
        return True

    def _beat_in_vain(self, error: ControlError) -> bool:
        """The switch sums without its controller, so its absence alone ends nothing.

        A restarted one may need a moment to know the job.
        """
        session, now = self._session, time.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
            log.warning("%s: %s; continuing without it", session.job_client.who, error)
        if isinstance(error, NoAnswerError):
            self._trouble_since = now  # the patience with one that answers begins when it does
            return not self._is_host_down(now - self._answered, error)
        unknown = error.code == grpc.StatusCode.NOT_FOUND
        if unknown and now - self._trouble_since <= UNKNOWN_FOR:
            return True
        session.fail(translated(error, f"{session.job_client.who} is out of it"))
        return False

    def _is_host_down(self, silent: float, error: NoAnswerError) -> bool:
        """Fail if the controller's host must be down, and with it ranks of this job."""
        session = self._session
        ranks = session.settings.beside_controller
        if not ranks or session.member.rank in ranks or silent < _HOST_DOWN * session.lease:
            return False
        session.fail(
            WorkerLostError(
                f"job {session.job_client.job!r} has failed: {describe_ranks(ranks)} and the "
                f"controller on the same host did not answer for {three_digits(silent)} s: {error}",
                ranks=ranks,
            )
        )
        return True

    def _keep_presence(self) -> None:
        """Let the controller see at once when this process is gone."""
        member, job_client = self._session.member, self._session.job_client
        if self._presence is not None:
            there, call = self._presence
            if there is member and call.is_active():
                return
        self._end_presence()
        with contextlib.suppress(ClientClosedError):
            self._presence = (member, job_client.open_presence(member))

    def _end_presence(self) -> None:
        if self._presence is not None:
            self._presence[1].cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it open
            self._presence = None
