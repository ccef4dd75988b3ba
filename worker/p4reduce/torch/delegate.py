# SPDX-License-Identifier: Apache-2.0
"""Collectives that the switch does not do, for an inner Gloo group, each by an explicit call.

With those that are collectives, the ranks also meet on the switch: in one frame each says what it
calls. So a rank that is lost, or that calls something else, ends them with an error that says so,
where Gloo alone would wait, or sum what does not belong together.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce_common.threads import new_thread

from p4reduce.handle import Handle
from p4reduce.hosts import source_address
from p4reduce.torch.call_order import QueuedHandle
from p4reduce.torch.calls import TorchCall
from p4reduce.torch.channel import Channel
from p4reduce.torch.options import shape_of
from p4reduce.torch.statistics import count_gloo
from p4reduce.torch.store import in_time
from p4reduce.torch.tensors import bytes_of
from p4reduce.torch.work import OutcomeWork, WorkOutcome

# In Gloo's errors that may be about a rank that is lost. It sees a connection close long before the
# rank's lease runs out, and does not say whose it was.
_NETWORK = ("onnect", "imed out", "imeout", "pipe")
_TOO_EARLY = "Operation timed out"  # what `Work.wait` of torch says
_NO_TAG = 2**31 - 1  # of a receive for which nobody sends
_LOOK = 0.25  # seconds between two looks at whether a rank is lost
STORE_MARGIN = 10.0  # seconds beyond a deadline of Gloo's; then only its store can be missing
LEASE = 12.0  # seconds; a little more than a lease usually is


class GlooDelegate:
    """The inner group.

    Args:
        store: of torch, for this alone.
        rank: of this process in the group.
        size: of the group.
        timeout: of its collectives.
        address: by which other hosts reach this one; "": as `own_address` finds it.
        beside: whether a thread connects it, and a call that needs it waits for that.

    Raises:
        DistNetworkError: the ranks do not reach each other.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        address: str = "",
        *,
        beside: bool = False,
    ) -> None:
        self._ended = False
        self._made: Future[Any] = Future()
        if not beside:
            self._made.set_result(_connected(store, rank, size, timeout, address))
            return
        own = store.clone()  # a connection to the store waits for one thing at a time

        def connect() -> None:
            try:
                self._made.set_result(_connected(own, rank, size, timeout, address))
            except BaseException as error:
                self._made.set_exception(error)

        new_thread(connect, "p4reduce-gloo", daemon=False).start()

    @property
    def group(self) -> Any:
        """Torch's group. Raises DistNetworkError if a thread did not connect it."""
        return self._made.result()

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the default timeout of collectives."""
        self._with_group(lambda group: group.set_timeout(timeout))

    def _with_group(self, use: Callable[[Any], object]) -> None:
        """Call a function with the group, now or when it is connected; never if it is not."""

        def then(made: Future[Any]) -> None:
            if made.exception() is None:
                use(made.result())

        self._made.add_done_callback(then)

    def call(self, channel: Channel | None, call: TorchCall, reason: str) -> OutcomeWork:
        """Run a collective of all ranks.

        Args:
            channel: by which the ranks meet as well; None: they do not.
            call: the collective.
            reason: why it is run here.
        """
        count_gloo(call.name, reason, bytes_of(call.counted))
        if channel is None:
            work, finish = call.gloo(self.group)
            return _work_of(work, None, call.result, finish)
        what = f"{call.name} {reason} of {shape_of(call.agreed)}"
        meeting = channel.meeting(what, channel.seconds(call.options))
        work, finish = call.gloo(self.group)
        return _work_of(work, channel, call.result, finish, meeting)

    def point_to_point(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        run: Callable[[Any], Any],
        finish: Callable[[], None],
    ) -> OutcomeWork:
        """Run a send or receive, which only two ranks know of.

        Args:
            name: what it does, for its errors.
            tensors: to send or to receive.
            run: calls the method of the group that it is given.
            finish: done when it has ended well.
        """
        count_gloo(name.partition(" ")[0], "point to point", bytes_of(tensors))
        return _PointToPoint(name, run(self.group), tensors, finish)

    def end(self, *, orderly: bool) -> None:
        """Close the connections. Unless `orderly`, calls in flight end with an error."""
        if not self._ended and not orderly:
            self._with_group(_close)
        self._ended = True


def _close(group: Any) -> None:
    group.abort()
    if group.size() > 1:
        # That leaves receives waiting. Gloo closes all connections when a wait times out.
        with suppress(RuntimeError):
            other = (group.rank() + 1) % group.size()
            group.recv([torch.empty(1, device="cpu")], other, _NO_TAG).wait(
                timedelta(milliseconds=1)
            )


def _connected(store: Any, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    """Return Gloo's group. Its deadline counts only while torch's store answers."""
    within = timeout.total_seconds() + STORE_MARGIN
    return in_time(store, lambda store: _group(store, rank, size, timeout, address), within)


def _group(store: Any, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    address = "" if "GLOO_SOCKET_IFNAME" in os.environ else address or own_address()
    try:
        if not address:
            return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        return dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise dist.DistNetworkError(
            f"p4reduce: the ranks do not reach each other by TCP, which the inner Gloo group "
            f"needs: {error}; GLOO_SOCKET_IFNAME names a host's interface for it"
        ) from error


def own_address() -> str:
    """Return the address by which this host reaches torch's store; "": let Gloo choose.

    Gloo alone takes what the host's name resolves to, which on many hosts is loopback.
    """
    master = os.environ.get("MASTER_ADDR")
    if master and "GLOO_SOCKET_IFNAME" not in os.environ:
        with suppress(OSError):
            return source_address(master)
    return ""


class _PointToPoint(OutcomeWork):
    def __init__(
        self, name: str, work: Any, tensors: Sequence[torch.Tensor], finish: Callable[[], None]
    ) -> None:
        def wait(timeout: float | None) -> None:
            try:
                _wait(work, timeout)
            except RuntimeError as error:
                raise dist.DistBackendError(f"p4reduce: {name}: Gloo says: {error}") from error

        # Gloo's work is not completed before somebody has waited for it.
        outcome = WorkOutcome(wait, finish, lambda: not work.is_completed(), waits=True)
        super().__init__(outcome, list(tensors))
        self._work = work

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def source_rank(self) -> int:
        """Return whom it was received from, where it was from any rank."""
        return self._source_rank()


def _work_of(
    work: Any,
    channel: Channel | None,
    result: Any,
    finish: Callable[[], None],
    meeting: Handle[Any] | QueuedHandle | None = None,
) -> OutcomeWork:
    def wait(timeout: float | None) -> None:
        if channel is not None and meeting is not None:
            channel.waiter(meeting, "for all ranks")(timeout)
        try:
            if channel is None:
                _wait(work, timeout)
            else:
                _wait_watching(work, timeout, channel)
        except RuntimeError as error:
            if isinstance(error, dist.DistError):
                raise  # of a rank that is lost
            if channel is not None and any(word in str(error) for word in _NETWORK):
                channel.raise_if_broken(LEASE)
            raise dist.DistBackendError(f"p4reduce: Gloo says: {error}") from error

    def pending() -> bool:
        return not ((meeting is None or meeting.done()) and work.is_completed())

    return OutcomeWork(WorkOutcome(wait, finish, pending), result)


def _wait(work: Any, timeout: float | None) -> None:
    if timeout is None:
        work.wait()
    else:
        work.wait(timedelta(seconds=timeout))


def _wait_watching(work: Any, timeout: float | None, channel: Channel) -> None:
    """Wait, and look whether a rank is lost: Gloo waits in silence for one that is stopped."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        channel.raise_if_broken(0.0)
        left = min(_LOOK, max(end - time.monotonic(), 0.001))
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            if _TOO_EARLY not in str(error) or time.monotonic() >= end:
                raise
        else:
            return
