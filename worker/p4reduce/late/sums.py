# SPDX-License-Identifier: Apache-2.0
"""Sums that do not wait for late ranks: `Communicator.allreduce(deadline=)`."""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from p4reduce.checks import check_deadline, check_flag, check_timeout, number_within
from p4reduce.errors import ClosedError, P4ReduceTimeoutError, ValueRangeError
from p4reduce.late.negotiation import (
    MOST,
    MOST_DIMENSIONS,
    NegotiationRow,
    dtype_number,
    lanes_number,
    ticks,
)
from p4reduce.late.outcome import PartialSum, Total
from p4reduce.late.policies import AtLeast, Policy
from p4reduce.late.rank_proxy import ProxyGroup, RankProxy
from p4reduce.tensors import plans
from p4reduce.tensors.arguments import SupportsArray, output_of, reducible_array
from p4reduce.tensors.precision import VOTES, WRAP
from p4reduce.time_left import TimeLeft
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format

Array = npt.NDArray[Any]

HISTORY = 16
"""Sums that a rank can be behind before the others wait for it."""

_TOO_LARGE = 2.0**128


class Parent(Protocol):
    """What is needed of a communicator to duplicate it."""

    def dup(self, *, timeout: float | None = None, slots: int | None = None) -> Any:
        """Return a communicator of the same ranks."""


class Sums:
    """What partial sums and gradient coding share: a proxy, and calls to it.

    Args:
        comm: the ranks that take part. All create this at the same place in their order
            of collectives, as for `dup`.
        policy: decides the members; gets the number of ranks.
        history: see `HISTORY`.
        timeout: seconds for each sum, and to continue after a loss.
        slots: of the switch; None: as many as `comm`.

    Attributes:
        history: see `HISTORY`.
    """

    def __init__(
        self,
        comm: Parent,
        policy: Policy,
        *,
        history: int,
        timeout: float,
        slots: int | None,
    ) -> None:
        self.history = number_within("history", history, 1, 1 << 20)
        check_timeout(timeout)
        self._timeout = timeout
        self._closed = False
        self._call_lock = threading.Lock()  # each rank has one call at a time
        own = cast(ProxyGroup, comm.dup(timeout=timeout, slots=slots))
        self._proxy = RankProxy(own, policy, self.history, timeout)

    @property
    def behind(self) -> int:
        """How many complete sums this rank has neither called nor caught up with."""
        return self._proxy.behind

    @property
    def present(self) -> int:
        """How many ranks have called the present sum, as far as this rank knows."""
        return self._proxy.present

    @property
    def lost(self) -> tuple[int, ...]:
        """The lost ranks, as the communicator numbered them."""
        return self._proxy.lost

    def close(self) -> None:
        """Leave. All ranks must call this, or sums that others call end with an error."""
        if not self._closed:
            self._closed = True
            self._proxy.close()

    def abandon(self) -> None:
        """Leave at once. The others continue as after a loss of this rank. Idempotent."""
        self._closed = True
        self._proxy.abandon(ClosedError("these sums are closed"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    @contextlib.contextmanager
    def _one_at_a_time(self, timeout: float | None) -> Iterator[TimeLeft]:
        """Let other threads' calls wait, each of which is the next sum; yields the time left."""
        if self._closed:
            raise ClosedError("these sums are closed")
        seconds = self._timeout if timeout is None else timeout
        left = TimeLeft(seconds)
        if not self._call_lock.acquire(timeout=left()):
            raise P4ReduceTimeoutError(
                f"a call of these sums in another thread is not complete after {seconds:g} s",
                seconds=seconds,
            )
        try:
            yield left
        finally:
            self._call_lock.release()

    def _called(self, array: Array, row: NegotiationRow, left: TimeLeft) -> Total:
        if array.dtype == np.float64:
            _check_range(array)
        return self._proxy.call(array, row, left())

    def _finished(
        self, total: Total, out: Array | None, divisor: int, kind: Any = None
    ) -> PartialSum:
        """Return a sum for the caller, who may write to it; `kind`: its dtype, if not the arrays'.

        Raises:
            P4ReduceError: the sum ended with an error.
            TypeError, ValueError: `out` does not fit.
        """
        if total.error is not None:
            raise total.error
        numbers = total.total
        result = output_of(numbers.shape, np.dtype(total.kind if kind is None else kind), out)
        with np.errstate(over="ignore"):  # a sum beyond the dtype becomes infinite
            if divisor == 1:
                np.copyto(result, numbers, casting="same_kind")
            else:
                np.divide(numbers, numbers.dtype.type(divisor), out=result, casting="same_kind")
        there = set(total.present)
        missing = tuple(
            original_rank
            for original_rank in range(self._proxy.original_size)
            if original_rank not in there
        )
        included = self._proxy.original_rank in total.members
        return PartialSum(result, total.members, missing, included, total.number)


class PartialSums(Sums):
    """Sums that wait for the ranks until a deadline, and then continue without late ranks.

    All ranks make it at the same place in their order of collectives. That makes a `dup`, in which
    each call of `allreduce` is a collective. The n-th call of each rank is about the same sum. A
    rank that calls too late gets that sum at once, without its own numbers.

    Args:
        comm: the ranks that take part. It may be used meanwhile, and closed before this.
        history: how many sums a rank can be behind before the others wait for it. That bounds the
            number of results kept. The same for all ranks.
        timeout: seconds for each sum by default, and to continue after a loss.
        slots: of the switch; None: as many as `comm`.

    Raises:
        TypeError, ValueError: an argument is invalid.
        P4ReduceError: as `Communicator.dup`.

    Example:
        >>> import numpy as np
        >>> from p4reduce.late import PartialSums
        >>> with PartialSums(comm) as sums:
        ...     total = sums.allreduce(np.ones(8, np.float32), op="mean", deadline=0.2, at_least=1)
        >>> float(total.result[0])
        1.0
    """

    def __init__(
        self,
        comm: Any,
        *,
        history: int = HISTORY,
        timeout: float = 30.0,
        slots: int | None = None,
    ) -> None:
        size = comm.size
        self._size = size
        self._left_out: dict[tuple[Any, ...], Array] = {}
        policy = AtLeast(size)
        super().__init__(comm, policy, history=history, timeout=timeout, slots=slots)

    def __enter__(self) -> PartialSums:
        return self

    def allreduce(
        self,
        array: SupportsArray,
        op: Operation | str = Operation.SUM,
        name: str | None = None,
        out: Array | None = None,
        timeout: float | None = None,
        *,
        deadline: float = math.inf,
        at_least: int = 1,
        feedback: bool = False,
        precision: str | None = None,
    ) -> PartialSum:
        """Sum an array over the ranks that call this in time, or take their mean.

        The ranks of a sum are decided once, before its first round opens: all ranks, as soon as all
        have called. After the first caller has waited for `deadline`, they are those that have
        called, if they are enough. Sums of integers are exact, those of floats as in `allreduce`.

        Args:
            array: as for `Communicator.allreduce`, dense; the same shape and dtype on all ranks.
            op: SUM, or MEAN, which divides by the number of ranks in the sum.
            name: the same on all ranks.
            out: as for `Communicator.allreduce`.
            timeout: seconds for the whole call; None: that of these sums.
            deadline: seconds from the first rank's call, 0 or more. Infinity: until all have
                called.
            at_least: the least number of ranks in the sum, 1 to the number of ranks.
            feedback: whether numbers that are left out are added to the next array of the same
                name, shape and dtype that this rank calls. Integers have to stay in the range of
                the dtype, or of "int4", with what is added.
            precision: as for `Communicator.allreduce`.

        Returns:
            The sum and its members, the same on all ranks.

        Raises:
            TypeError, ValueError, ValueRangeError: as `Communicator.allreduce`; nothing has begun.
            LaneOverflowError: a sum of integers left the lanes' range, on all ranks.
            WorkerLostError: fewer than `at_least` ranks are left, or others have closed.
            P4ReduceTimeoutError: fewer than `at_least` ranks called it in time. Names the others.
            MismatchError: the ranks called different sums.
            P4ReduceError: as `Communicator.allreduce`. Nothing can be summed after these any more.
        """
        given, operation = reducible_array(array, op)
        check_deadline(deadline)
        at_least = number_within("at_least", at_least, 1, self._size, ", the number of ranks")
        check_flag("feedback", feedback)
        # What is wrong with the arguments shows here, and not in a thread that others wait for.
        plans.allreduce(given, op, name, out, precision, world_size=self._size)
        alike = (int(operation), name or "", deadline, at_least)
        row = row_of(given, precision, alike, deadline, at_least)
        source = np.require(given, row.summed_as, "C")
        key = (name, given.shape, given.dtype)
        with self._one_at_a_time(timeout) as left:
            if feedback and key in self._left_out:
                source = _added(source, self._left_out[key], precision)
            total = self._called(source, row, left)
            if feedback and total.error is None:
                if self._proxy.original_rank in total.members:
                    self._left_out.pop(key, None)
                else:  # `given` may be the memory of a tensor, which changes
                    same = np.may_share_memory(source, given)
                    self._left_out[key] = source.copy() if same else source
        mean = operation is Operation.MEAN
        return self._finished(total, out, len(total.members) if mean else 1)

    def catch_up(self) -> list[PartialSum]:
        """Return the complete sums that this rank has not called, in order. They count as called.

        Each is a sum, whatever `op` was: `result / len(members)` is the mean. Sums of float16 are
        of float32. A rank that is behind applies them and continues where the others are.

        Raises:
            P4ReduceError: the first sum that it has not called ended with this error, for all
                ranks; it counts as called. Sums before such a sum are returned by a call of its
                own.
        """
        caught: list[PartialSum] = []
        with self._one_at_a_time(None):
            while (total := self._proxy.take(if_summed=bool(caught))) is not None:
                caught.append(self._finished(total, None, 1, total.total.dtype))
        return caught


def row_of(
    array: Array,
    precision: str | None,
    alike: tuple[Any, ...],
    deadline: float = 0.0,
    at_least: int = 1,
) -> NegotiationRow:
    """Return what all ranks must agree on; `alike` is whatever else must be equal."""
    if array.ndim > MOST_DIMENSIONS:
        raise ValueError(
            f"shape {array.shape}: {MOST_DIMENSIONS} dimensions at most; array.reshape(-1) has one"
        )
    if max(array.shape, default=0) > MOST:
        raise ValueError(f"shape {array.shape}: a dimension has {MOST:,} elements at most")
    return NegotiationRow(
        deadline=ticks(deadline),
        at_least=at_least,
        dtype=dtype_number(array.dtype),
        lanes=lanes_number(precision),
        digest=zlib.crc32(repr((precision, *alike)).encode()) >> 1,
        shape=array.shape,
    )


def _added(array: Array, left_out: Array, precision: str | None) -> Array:
    """Return an array with what earlier sums have left out. Integers do not wrap silently."""
    total: Array = np.add(array, left_out, out=np.empty_like(array))
    if array.dtype.kind != "i" or precision == WRAP:
        return total
    wrong = (array ^ total) & (left_out ^ total) < 0
    if precision == VOTES:
        wrong |= np.abs(total) > Format.INT4.lane_maximum
    if wrong.any():
        first = int(np.argmax(wrong))
        new, old = int(array.reshape(-1)[first]), int(left_out.reshape(-1)[first])
        limits = np.iinfo(array.dtype)
        holds = f"{array.dtype} holds {limits.min} to {limits.max}; a wider dtype has room"
        if precision == VOTES:
            holds = f"precision={VOTES!r} holds numbers from -7 to 7; precision=None has room"
        raise ValueRangeError(
            f"element {first:,} is {new}, and {new + old} with the {old} that earlier sums left "
            f"out (feedback=True), but {holds}"
        )
    return total


def _check_range(array: Array) -> None:
    """Refuse float64 that is no float32: the others would wait for this rank then."""
    with np.errstate(invalid="ignore"):
        wrong = np.isfinite(array) & (np.abs(array) >= _TOO_LARGE)
    if wrong.any():
        first = array.reshape(-1)[int(np.argmax(wrong))]
        raise ValueRangeError(f"{first!r}: magnitudes below 2^128 are needed, as for float32")
