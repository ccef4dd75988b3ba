# SPDX-License-Identifier: Apache-2.0
"""A rank's part in a job on several switches, with a session for each.

To each switch the ranks are a job of its own, with its own slots, lease and recovery. An error that
ends one of these jobs ends all, because a communicator breaks as a whole.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields

from p4reduce_common.polling import holds_within
from p4reduce_common.threads import new_thread

from p4reduce.control.client import ClientClosedError, ControlError
from p4reduce.errors import InterruptedCallError, P4ReduceError, WorkerLostError
from p4reduce.latch import Latch
from p4reduce.session.session import Session
from p4reduce.session.solo import Solo
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.statistics import Statistics
from p4reduce.thread_failure import ThreadFailedError

LOOK = 60.0  # seconds between checks without a wake-up, in case one is missed
_AGAIN = 0.1  # seconds between checks while a session waits for its controller
_LEASES_TO_HEAR = 2.0  # how long it waits there to hear of the lost rank
_END_TIMEOUT = 5.0
_SIDE = "/side-"
_LARGEST = ("round_trip_p50", "round_trip_p90", "round_trip_p99", "retransmission_timeout")


def job_on(job: str, number: int) -> str:
    """Return the name of the job at a switch, which is numbered from 0."""
    return f"{job}{_SIDE}{number}" if number else job


class SideBySideSession:
    """A `Session` on several switches.

    Args:
        job: the name of the whole.
        sessions: one per switch, in the same order on all ranks.

    Attributes:
        formed: sessions that replace some of these, by number, while all are formed again.
    """

    def __init__(self, job: str, sessions: Sequence[Session]) -> None:
        self.job = job
        self.sessions = tuple(sessions)
        self.formed: dict[int, Session] = {}
        self._closing = False
        self._lost_since = math.inf  # when a session first ended by the loss of a rank
        self._wakeup = Latch()
        self._watch = new_thread(
            self._spread_errors, f"p4reduce-side-{self.rank}", self._watch_failed
        )
        for session in self.sessions:
            session.on_break = self.wake
        self._watch.start()

    @property
    def rank(self) -> int:
        return self.sessions[0].rank

    @property
    def world_size(self) -> int:
        return self.sessions[0].world_size

    @property
    def slots(self) -> int:
        """The slots of all switches together."""
        return sum(session.slots for session in self.sessions)

    @property
    def urgent_slots(self) -> tuple[int, ...]:
        """The urgent slots of each class, summed over all switches."""
        return tuple(map(sum, zip(*(one.urgent_slots for one in self.sessions), strict=True)))

    @property
    def broken(self) -> P4ReduceError | None:
        """The error that ends all further calls, or None."""
        return next((one.broken for one in self.sessions if one.broken is not None), None)

    def wake(self) -> None:
        """Check soon whether something has broken. Any thread may call it."""
        self._wakeup.set()

    def _spread_errors(self) -> None:
        """Let what one session ends with end all. No session may be asked from within another."""
        again = False
        while not self._closing:
            self._wakeup.wait(_AGAIN if again else LOOK)
            self._wakeup.clear()
            again = False
            if not self._closing and (error := self.broken) is not None:
                again = self._spread(error)

    def _spread(self, error: P4ReduceError) -> bool:
        """Let an error end all sessions. Returns whether some of them wait for their controller.

        A session without its switch learns of a lost rank from its own controller. If it ended
        before, it would give up its place in the job that forms there, and could not form it again.
        """
        if not isinstance(error, WorkerLostError):
            for session in self.sessions:
                session.fail(error)
            return False
        now, later = time.monotonic(), False
        self._lost_since = min(self._lost_since, now)
        for session in self.sessions:
            patience = self._lost_since + _LEASES_TO_HEAR * session.lease - now
            if session.is_recovering and self.rank not in error.ranks and patience > 0:
                later = True
            else:
                session.lose_ranks(error)
        return later

    def settle(self, timeout: float) -> None:
        """Return when the remaining ranks have agreed on what is over, as `Session` does."""
        end = time.monotonic() + timeout
        self._settle_each(end)
        if isinstance(error := self.broken, WorkerLostError):
            # To another switch the rank may not be lost yet.
            holds_within(end - time.monotonic(), lambda: not self._spread(error), _AGAIN)
            self._settle_each(end)

    def _settle_each(self, end: float) -> None:
        for session in self.sessions:
            with contextlib.suppress(ControlError):  # each is asked again before it is formed anew
                session.settle(max(end - time.monotonic(), 0.1))

    def _watch_failed(self, cause: BaseException) -> None:
        for session in self.sessions:
            session.fail(
                ThreadFailedError.of(f"the thread that spreads errors failed: {cause!r}", cause)
            )

    def on_interrupted(self, error: InterruptedCallError) -> None:
        """Break and leave the jobs, as `Session` does."""
        for session in self.sessions:
            session.on_interrupted(error)

    def unlock(self) -> None:
        """Release locks, as `Session` does."""
        for session in self.sessions:
            session.unlock()

    def statistics(self) -> Statistics:
        """Return the statistics of all switches together: sums, and for times the longest."""
        return combined([session.statistics() for session in self.sessions])

    def close(self, *, linger: bool = False) -> None:
        """Stop, and leave the jobs, as `Session` does."""
        if linger:

            def linger_all() -> None:
                for session in self.sessions:
                    session.linger()

            # Before it leaves any: who is still there may need this rank at each of them.
            with contextlib.suppress(ClientClosedError):
                ThreadedCall(linger_all, cancel=self._stop_lingering)()
        self._each(Session.close)

    def abandon(self) -> None:
        """As `close`, in this thread."""
        self._each(Session.abandon)

    def _each(self, leave: Callable[[Session], None]) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.end_watch)
            for session in (*self.formed.values(), *reversed(self.sessions)):
                stack.callback(leave, session)  # also where another one raises

    def _stop_lingering(self) -> None:
        for session in self.sessions:
            session.stop_lingering()

    def end_watch(self) -> None:
        """Stop passing on errors."""
        self._closing = True
        self._wakeup.set()
        if threading.current_thread() is not self._watch:
            self._watch.join(_END_TIMEOUT)


def combined(each: Sequence[Statistics]) -> Statistics:
    """Return the statistics of several switches as one."""
    whole = Statistics()
    for field in fields(Statistics):
        values = [getattr(one, field.name) for one in each]
        if field.name in _LARGEST:
            known = [value for value in values if not math.isnan(value)]
            setattr(whole, field.name, max(known, default=float("nan")))
        elif field.name == "on_ring":
            whole.on_ring = any(values)
        else:
            setattr(whole, field.name, sum(values))
    return whole


AnySession = Session | Solo | SideBySideSession
"""What runs the collectives of a communicator."""
