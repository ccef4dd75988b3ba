# SPDX-License-Identifier: Apache-2.0
"""The user's interface: a `Communicator`, whose sums the switch computes."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy.typing as npt

from p4reduce import groups
from p4reduce.checks import check_deadline, check_timeout, number_within
from p4reduce.dispatch import Dispatcher
from p4reduce.environment import SPANS_ENVIRONMENT
from p4reduce.errors import AdmissionError, P4ReduceError, ValueRangeError
from p4reduce.handle import Handle
from p4reduce.latch import Latch
from p4reduce.late.outcome import PartialSum
from p4reduce.late.sums import HISTORY, PartialSums
from p4reduce.options import (
    AnyAllreduceOptions,
    CommunicatorOptions,
    DenseOptions,
    GroupedOptions,
    GroupOptions,
    SparseOptions,
    SumOptions,
    check_names,
)
from p4reduce.session.solo import Solo
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.spans import Spans, check_opentelemetry
from p4reduce.statistics import Statistics, SwitchShare
from p4reduce.switches.joining import form_all_anew
from p4reduce.switches.side_by_side import AnySession
from p4reduce.tensors import fusion, plans, union
from p4reduce.tensors.arguments import SupportsArray, any_array, class_of, operation_of
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.sparse import SparseArray, SparseBlocks, SparseElements, SparseRows
from p4reduce.time_left import TimeLeft
from p4reduce.trace import Trace
from p4reduce.tracebacks import log_own, short
from p4reduce.wire.calls import SUM, Operation, Priority
from p4reduce.wire.format import MAX_WORLD_SIZE

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from typing_extensions import Unpack

    from p4reduce.options import AllreduceOptions, DeadlineOptions

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Array = npt.NDArray[Any]
Sparse = TypeVar("Sparse")
SparseKind = TypeVar("SparseKind", SparseRows, SparseBlocks, SparseElements)
Op = Operation | str
Out = Array | None
Counts = Sequence[int] | None

BULK = Priority.BULK


def _guarded(method: Method, options: type | None = None) -> Method:
    """Break the communicator if an exception leaves a call half done; see `Dispatcher.left_by`."""

    @functools.wraps(method)
    def call(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        try:
            self._dispatcher.begin()
            return method(self, *args, **kwargs)
        except BaseException as error:
            self._dispatcher.left_by(error)
            # Only now, as to look at the names first would make each call longer.
            if options is not None and isinstance(error, TypeError):
                error = _unknown_option(method, kwargs, options) or error
            if log_own(error):
                raise error.with_traceback(None) from error.__cause__
            raise

    return cast(Method, call)


def _guarded_with(options: type) -> Callable[[Method], Method]:
    """As `_guarded`, for a method with these options."""
    return lambda method: _guarded(method, options)


def _unknown_option(
    method: Callable[..., Any], given: dict[str, Any], options: type
) -> TypeError | None:
    """Return the error about an option that a call has not, which names the call; None: it has all.

    Python's own names the function that the options were passed on to.
    """
    own = inspect.signature(method).parameters
    others = {name: value for name, value in given.items() if name not in own}
    try:
        check_names(method.__name__, others, options)
    except TypeError as error:
        return error.with_traceback(None)
    return None


class Communicator:
    """The ranks of a job, which reduce together. Made by `init`, `split`, `dup` and `reform`.

    All ranks must make the same calls in the same order, with the same operation, root, shape,
    dtype, precision and name. Otherwise all of them raise `MismatchError`, which names the ranks
    and their calls. Calls from several threads are safe, but only useful if their order is the
    same on all ranks.

    After an error that leaves the ranks out of step (timeout, mismatch, lost worker, lost switch)
    the communicator is broken. All collectives in flight end with that error, and so does each
    later one. `LaneOverflowError` breaks nothing.

    A child made by `os.fork` cannot use its parent's communicator, because threads do not survive
    a fork: `ClosedError`. It cannot call `init` either, if its parent had called it before the
    fork: `ConfigurationError`.

    All collectives are one operation of the switch, a sum that leaves out blocks of zeros.
    docs/collectives.md has the cost of each. The switch sends each sum to all ranks, so a rank that
    does not need it (`reduce`, `reduce_scatter`) saves no bytes on the way down.

    Args:
        session: the ranks' sessions with the switch, or with several.
        options: which the children inherit.
    """

    def __init__(self, session: AnySession, options: CommunicatorOptions) -> None:
        self._session = session
        self._options = options
        self._rank, self._size = session.rank, session.world_size
        self._ranks: dict[str, Any] = {"rank": self._rank, "world_size": self._size}
        self._dispatcher = Dispatcher(session, options)
        self._partial: PartialSums | None = None
        self._partial_lock = threading.Lock()  # held while the ranks agree
        if options.spans:
            self.spans()

    def __repr__(self) -> str:
        state = (
            "closed" if self._dispatcher.closed else "broken" if self._session.broken else "open"
        )
        return f"<Communicator of job {self.job!r}: rank {self.rank} of {self.size}, {state}>"

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def leaf(self) -> tuple[int, ...]:
        """The ranks at this rank's own switch of a tree, in order; on a single switch all ranks."""
        return self._dispatcher.sessions[0].leaf

    @property
    def job(self) -> str:
        """The job's name."""
        return self._session.job

    @property
    def switches(self) -> tuple[SwitchShare, ...]:
        """Each switch's share of the work, in the order of `init(interface=)`."""
        each = zip(self._dispatcher.shares, self._dispatcher.sessions, strict=True)
        return tuple(SwitchShare(share, session.statistics()) for share, session in each)

    @property
    def calls(self) -> int:
        """How many collectives this rank has called.

        After an exception in the middle of a call, such as a signal handler's, this shows whether
        the call had begun.
        """
        return self._dispatcher.calls

    @property
    def slots(self) -> int:
        """The number of slots on all switches, which is how many blocks can be in flight."""
        return self._session.slots

    @property
    def urgent_slots(self) -> int:
        """How many of these slots are only for collectives with a priority above 0."""
        return sum(self._session.urgent_slots)

    @property
    def class_slots(self) -> tuple[int, ...]:
        """The number of slots per class, that of priority 0 first."""
        return (self.slots - self.urgent_slots, *self._session.urgent_slots)

    @property
    def broken(self) -> P4ReduceError | None:
        """The error that broke this communicator, and that later calls raise; None if intact."""
        return self._session.broken

    @property
    def stats(self) -> Statistics:
        """Counts of bytes, frames, retransmissions and duplicates, and round-trip times."""
        try:
            return self._session.statistics()
        except BaseException:
            self._session.unlock()
            raise

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Record what happens to each collective from now on, as a trace for Perfetto or Chrome.

        The trace has the times of each collective: preparing, queueing for slots, waiting until
        all ranks have called it, sending and receiving. After a timeout it names the ranks that
        the switch waited for, and counts repeated frames. docs/performance.md says how to read it.

        Args:
            path: of the file, JSON in the Trace Event Format, written when the trace is closed.
                "{rank}" in it is replaced by this rank's number.

        Returns:
            The trace, to be closed or used as a context manager; it ends with the communicator at
            the latest. It has no collectives that started before it, and none of communicators
            that `split`, `dup` and `reform` make.

        Raises:
            TypeError: `path` is not a path.
            ValueError: this communicator is being traced already.
            OSError: the file cannot be written.
            ClosedError: this communicator is closed.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path={path!r}: a string or a path is needed")
        with self._dispatcher.observing() as observers:
            before = next((one for one in observers if isinstance(one, Trace)), None)
            if before is not None:
                raise ValueError(
                    f"this communicator is being traced already, to {before.path}: close that "
                    "trace first"
                )
            trace = Trace(path, self.rank, self.size, self.job)
            observers.append(trace)
            return trace

    def spans(self, provider: TracerProvider | None = None) -> Spans:
        """Record each collective from now on as a span of OpenTelemetry.

        The spans of a collective's ranks are one trace, although the ranks exchange nothing for
        this; see docs/performance.md. `P4REDUCE_SPANS=1` records all communicators from their
        start.

        Args:
            provider: of tracers. None: what `opentelemetry.trace.set_tracer_provider` was given.

        Returns:
            The recording, to be closed or used as a context manager; it ends with the communicator
            at the latest. It does not shut the provider down.

        Raises:
            ConfigurationError: opentelemetry-api is not installed.
            ValueError: this communicator's spans are being recorded already.
            ClosedError: this communicator is closed.
        """
        check_opentelemetry("spans()")
        with self._dispatcher.observing() as observers:
            if any(isinstance(one, Spans) for one in observers):
                raise ValueError(
                    "this communicator's spans are being recorded already: close that recording "
                    f"first, or unset {SPANS_ENVIRONMENT}"
                )
            spans = Spans(provider, self._dispatcher.sessions[0].origin, self.rank, self.size)
            observers.append(spans)
            return spans

    # -- Collectives -----------------------------------------------------------------------------

    def _start(
        self, plan: CollectivePlan[T], timeout: float | None, *, here: bool = False
    ) -> Handle[T]:
        return self._dispatcher.start([plan], plan.result, timeout, here=here)

    def _run(self, plan: CollectivePlan[T], timeout: float | None) -> T:
        return self._start(plan, timeout, here=True).wait()

    def _time_left(self, timeout: float | None) -> TimeLeft:
        return TimeLeft(self._options.timeout if timeout is None else timeout)

    def awaiting(self) -> AbstractContextManager[None]:
        """Within it, this thread waits for a call by its handle, before it does anything else.

        So it may run the call itself, as it does with one that returns no handle: to wake the
        progress thread takes longer than a small collective.
        """
        return self._dispatcher.awaiting()

    @overload
    def allreduce(
        self,
        array: SparseKind,
        op: Op = SUM,
        name: str | None = None,
        out: None = None,
        timeout: float | None = None,
        **options: Unpack[AllreduceOptions],
    ) -> SparseKind: ...

    @overload
    def allreduce(
        self,
        array: SupportsArray,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[DenseOptions],
    ) -> Array: ...

    @overload
    def allreduce(
        self,
        array: SparseKind,
        op: Op = SUM,
        name: str | None = None,
        *,
        out: Array,
        timeout: float | None = None,
        **options: Unpack[AllreduceOptions],
    ) -> Array: ...

    @overload
    def allreduce(
        self,
        array: SupportsArray,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[DeadlineOptions],
    ) -> PartialSum: ...

    @_guarded_with(AnyAllreduceOptions)
    def allreduce(
        self,
        array: Any,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[AnyAllreduceOptions],
    ) -> Any:
        """Sum an array over all ranks, or take its mean.

        The result is the same on all ranks, bit for bit. Blocks that are zero on all ranks are not
        sent. NaN or infinity in a block of any rank makes the whole block NaN on all ranks.

        **Integers** are exact. They travel in lanes of their own width, so an int8 array takes a
        quarter of the bytes of an int32 array of the same size. A sum that leaves the dtype's range
        is an error, and so is a partial sum, in the order in which contributions arrive.
        With precision="wrap32" int32 arrays are added modulo 2^32 instead, without that error: for
        masks that cancel in the sum (`p4reduce.methods.masks`). With precision="int4" int8 arrays
        of numbers from -7 to 7 take an eighth of int32's bytes; a sum beyond -8 to 7 is an error.

        **Floats** travel as integers with an exponent per block. The table gives the largest error
        of n ranks' sum before it is rounded to the dtype. 2^e is the power of two above the largest
        magnitude in the block. `p4reduce.error_bound` computes it; the mean's is 1/n of it.

        | precision | off by at most | elements per block | bytes | ranks up to | with 4 ranks |
        | --- | --- | --- | --- | --- | --- |
        | int32 | n * 2^(e-k), the largest k with n * 2^k <= 2^31 | 256 | 1 | 4,096 | 2^-27 * 2^e |
        | int16 | n * 2^e * (1/M + 2^-24), M = 32,767 // n | 512 | 1/2 | 4,096 | 2^-11 * 2^e |
        | int8 | n * 2^e * (1/M + 2^-24), M = 127 // n | 1,024 | 1/4 | 63 | 0.129 * 2^e |
        | int4 | n * 2^e * (1/M + 2^-24), M = 7 // n | 2,048 | 1/8 | 7 | 4 * 2^e |

        With int32 lanes numbers are rounded to nearest. With narrower ones they are rounded up or
        down at random, so that the expected result is the exact one and errors average out over
        elements, ranks and calls.

        Args:
            array: float16, float32, float64, int8, int16 or int32 in the machine's byte order, of
                any shape; the same number of elements and dtype on all ranks. An array that is not
                C-contiguous is copied first. Finite float64 magnitudes have to be below 2^128.
                PyTorch tensors on the CPU can be given as they are, or as `tensor.numpy()`.
                Masked arrays are refused: use `array.filled(0)`.
                Arrays without elements are allowed: the call is then a barrier. Or a sparse array,
                as `allreduce_sparse` takes it.
            op: `SUM`, or `MEAN` for floats; or "sum" or "mean".
            name: for messages; the same on all ranks.
            out: a C-contiguous array of the same shape and dtype for the result; `array` itself
                to work in place. None: a new one, sparse if `array` is.
            timeout: seconds; None: that of `init`.
            precision: "int32", "int16", "int8" or "int4": what floats travel as; the same on all
                ranks. None: "int32". For int32 arrays: "wrap32", or None; for int8 arrays: "int4",
                or None.
            seed: of the random rounding. The same seed gives the same results for the same calls
                on the same ranks. It may be the same for all ranks and calls, which still draw
                independent numbers. None: other numbers each time. Without effect if nothing is
                rounded at random.
            priority: 0 to 7, `Priority.BULK` or "bulk" (0), `URGENT` or "urgent" (1). Those above
                0 use the slots that `init(urgent_slots=)` keeps for each. A call overtakes those of
                lower priorities that were called before. The same on all ranks.
            residual: for error feedback (Karimireddy et al., ICML 2019), of floats with precision
                "int16", "int8" or "int4". An array like `array`, of this rank's own, zeros at
                first. It is added to `array` before rounding, and afterwards holds what rounding
                left out: give it again with the next step's numbers. In a block that is not finite
                on some rank, this rank's finite numbers wait in it. After an error each of its
                blocks is the old or the new one. None: rounding errors are dropped.
            deadline: seconds from the first rank's call, after which the sum continues without
                late ranks; the same on all ranks. Such sums have an order of their own, and accept
                neither `seed` nor `priority`. `partial_sums` is for ranks that are late. None: the
                sum waits for all ranks.
            at_least: with a deadline: the least number of ranks in the sum.
            feedback: with a deadline: whether numbers that are left out are added to this rank's
                next ones of the same name, shape and dtype.

        Returns:
            `out`, or a new array. With a deadline: a `PartialSum`, which names the ranks in the
            sum and the missing ones. MEAN divides by the number of ranks in it.

        Raises:
            TypeError: `array` is not an array, cannot be converted to one, or has another dtype;
                MEAN or a precision for integers, "wrap32" for other numbers than int32, "int4" for
                other integers than int8. Nothing has begun, as after a ValueError.
            ValueError: `out` does not fit, or overlaps `array` without being the same. The
                operation, precision or priority does not exist. The precision is too narrow for
                the number of ranks. No slots are kept for the priority.
            ValueRangeError: a float64 number of 2^128 or more, or for "int4" an integer beyond -7
                to 7. Only this rank notices.
            LaneOverflowError: a sum of integers left the lanes' range, on all ranks.
            MismatchError: the ranks called different collectives.
            P4ReduceTimeoutError: not complete in time; names the ranks that are missing.
            WorkerLostError: a rank died or left.
            SwitchUnreachableError: the switch does not answer.
            JobEndedError: the job was deleted.
            ClosedError: this communicator is closed.
        """
        given: dict[str, Any] = {**options}
        if given.get("deadline") is not None:
            return self._allreduce_by_deadline(array, op, name, out, timeout, **given)
        given.pop("deadline", None)
        if given.pop("at_least", 1) != 1 or given.pop("feedback", False):
            raise ValueError("at_least and feedback need a deadline")
        plan = _allreduce(array, op, name, out, world_size=self.size, **given)
        return self._run(plan, timeout)

    @overload
    def allreduce_async(
        self,
        array: SparseKind,
        op: Op = SUM,
        name: str | None = None,
        out: None = None,
        timeout: float | None = None,
        **options: Unpack[AllreduceOptions],
    ) -> Handle[SparseKind]: ...

    @overload
    def allreduce_async(
        self,
        array: SupportsArray,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[DenseOptions],
    ) -> Handle[Array]: ...

    @overload
    def allreduce_async(
        self,
        array: SparseKind,
        op: Op = SUM,
        name: str | None = None,
        *,
        out: Array,
        timeout: float | None = None,
        **options: Unpack[AllreduceOptions],
    ) -> Handle[Array]: ...

    @_guarded_with(DenseOptions)
    def allreduce_async(
        self,
        array: Any,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[DenseOptions],
    ) -> Handle[Any]:
        """Start an all-reduce and return a handle to wait for it.

        As `allreduce`. Several may be in flight; they share the slots, so small ones cost hardly
        more than their bytes. Until the call is over, do not write to `array`, and do not use
        `out`.
        """
        plan = _allreduce(array, op, name, out, world_size=self.size, **options)
        return self._start(plan, timeout)

    def _allreduce_by_deadline(
        self,
        array: SupportsArray,
        op: Op,
        name: str | None,
        out: Out,
        timeout: float | None,
        *,
        deadline: float,
        seed: None = None,
        priority: int | str = BULK,
        residual: None = None,
        precision: str | None = None,
        at_least: int = 1,
        feedback: bool = False,
    ) -> PartialSum:
        check_deadline(deadline)
        if seed is not None or class_of(priority) or residual is not None:
            raise ValueError("seed, priority and residual are not for sums with a deadline")
        sums = self.partial_sums()
        self._dispatcher.begin()  # an error in the arguments breaks nothing from here on
        return sums.allreduce(
            array,
            op,
            name,
            out,
            timeout,
            precision=precision,
            deadline=deadline,
            at_least=at_least,
            feedback=feedback,
        )

    @_guarded_with(GroupedOptions)
    def grouped_allreduce(
        self,
        arrays: Sequence[SupportsArray],
        op: Op = SUM,
        names: Sequence[str] | None = None,
        outs: Sequence[Out] | None = None,
        timeout: float | None = None,
        **options: Unpack[GroupedOptions],
    ) -> list[Array]:
        """Sum many arrays, each over all ranks, or take their means.

        As `allreduce` of each array in turn, but faster for small arrays: those of one dtype are
        fused. Fusion changes no bit of the results, except of those rounded at random. The whole
        call ends in one error, or none.

        Args:
            arrays: as in `allreduce`; shapes and dtypes may differ. All ranks give as many, in the
                same order, with the same numbers of elements and dtypes.
            op: as in `allreduce`.
            names: one for each array, for messages; the same on all ranks.
            outs: one for each array, as `out` of `allreduce`; `arrays` itself to work in place.
            timeout: seconds, for the whole call; None: that of `init`.
            fusion_threshold: the most bytes that are fused; the same on all ranks. A larger array
                is not fused. 0: none is.
            precision: of the floats among them, as in `allreduce`.
            seed: as `precision`.

        Returns:
            The results in the arrays' order: `outs`, or new arrays.

        Raises:
            ValueError: there are not as many `names` or `outs` as arrays; and as `allreduce`.
            P4ReduceError: as `allreduce`.
        """
        group = fusion.ArrayGroup(operation_of(op), self.size, **options)
        all_plans, results = group.plan(arrays, names, outs)
        return self._dispatcher.start(all_plans, results, timeout, here=True).wait()

    @_guarded_with(GroupedOptions)
    def grouped_allreduce_async(
        self,
        arrays: Sequence[SupportsArray],
        op: Op = SUM,
        names: Sequence[str] | None = None,
        outs: Sequence[Out] | None = None,
        timeout: float | None = None,
        **options: Unpack[GroupedOptions],
    ) -> Handle[list[Array]]:
        """Start a `grouped_allreduce` and return a handle to wait for it; see `allreduce_async`.

        The outputs are complete when the handle's `wait` has returned.
        """
        group = fusion.ArrayGroup(operation_of(op), self.size, **options)
        all_plans, results = group.plan(arrays, names, outs)
        return self._dispatcher.start(all_plans, results, timeout)

    @overload
    def allreduce_sparse(
        self,
        array: Sparse,
        op: Op = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: Literal[False] = False,
        **options: Unpack[SparseOptions],
    ) -> Sparse: ...

    @overload
    def allreduce_sparse(
        self,
        array: SparseArray,
        op: Op = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: Literal[True],
        **options: Unpack[SparseOptions],
    ) -> Array: ...

    @_guarded_with(SparseOptions)
    def allreduce_sparse(
        self,
        array: SparseArray,
        op: Op = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: bool = False,
        **options: Unpack[SparseOptions],
    ) -> Any:
        """Sum a sparse array over all ranks, or take its mean, without making it dense.

        There are two ways, and all ranks take the same one:

        - **By blocks** (`agree=False`): the same collective as `allreduce`, and the same sums bit
          for bit. Ranks with a dense array call `allreduce`, and those with few
          rows, blocks or numbers with this. Memory and time grow with what is not zero, besides 9
          bytes for each block of 256 elements of the dense array, and three times that while the
          call is prepared.
        - **By the union** (`agree=True`): ranks first give their indices, at most
          2 + log2(N / k) bits for each of k among N, or one frame of marks if N is small. Then
          the values of the union are summed as a dense array without gaps. For few elements at
          random places this takes a small part of the bytes. Where the sum by blocks would take
          fewer, all ranks sum by blocks. Sums of integers are the same as the dense ones. Floats
          have the bound of `allreduce`, with 256 (512, 1,024) elements of the union in place of a
          block.

        Args:
            array: `SparseElements`, `SparseRows`, `SparseBlocks`, or a matrix or array of
                scipy.sparse in one or two dimensions; the same number of elements and dtype on
                all ranks. Elements are matched by their place in C order, so shapes may differ.
                dtypes as in `allreduce`.
            op: as in `allreduce`.
            name: as in `allreduce`.
            timeout: as in `allreduce`.
            precision: as in `allreduce`.
            seed: as in `allreduce`.
            dense: return a numpy array, of the dense shape.
            agree: whether ranks agree on the union first; the same on all ranks. None: they do
                for `SparseElements`, and for SciPy's arrays of one row or one column.

        Returns:
            The sum as the input is given: all rows, blocks or numbers of it that are not zero, in
            ascending order. SciPy's formats are kept.

        Raises:
            TypeError: not a sparse array, or a dtype that cannot be reduced.
            ValueError: an index is out of range, shapes do not fit, blocks do not ascend.
            ValueRangeError: repeated rows of integers add up to more than their dtype holds; a
                float64 number of 2^128 or more. Only this rank notices.
            ConfigurationError: with `agree`, where another rank raises one of the above, or has
                numbers that are not finite. The communicator remains usable.
            P4ReduceError: as `allreduce`.

        Example:
            >>> import numpy as np
            >>> from p4reduce import SparseRows
            >>> gradient = SparseRows([7, 3, 7], np.ones((3, 2), np.float32), shape=(1000, 2))
            >>> total = comm.allreduce_sparse(gradient)
            >>> total.indices.tolist(), total.values.tolist()
            ([3, 7], [[1.0, 1.0], [2.0, 2.0]])
        """
        return self._sparse(array, op, name, timeout, here=True, dense=dense, **options).wait()

    @_guarded_with(SparseOptions)
    def allreduce_sparse_async(
        self,
        array: SparseArray,
        op: Op = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: bool = False,
        **options: Unpack[SparseOptions],
    ) -> Handle[Any]:
        """Start an all-reduce of a sparse array and return a handle; see `allreduce_async`.

        With `agree` this waits for the other ranks and returns when the union is known. Only the
        sum of its values is then in flight.
        """
        return self._sparse(array, op, name, timeout, here=False, dense=dense, **options)

    def _sparse(
        self,
        array: SparseArray,
        op: Op,
        name: str | None,
        timeout: float | None,
        *,
        here: bool,
        agree: bool | None = None,
        **options: Any,
    ) -> Handle[Any]:
        options["world_size"] = self.size
        if not union.agrees(array, agree):
            plan = plans.allreduce_sparse(array, op, name, **options)
            return self._start(plan, timeout, here=here)
        left = self._time_left(timeout)
        plan = self._union(array, op, name, left, options)
        return self._start(plan, left(), here=here)

    def _union(
        self,
        array: SparseArray,
        op: Op,
        name: str | None,
        left: TimeLeft,
        options: dict[str, Any],
    ) -> CollectivePlan[Any]:
        """Agree on the union, and return the sum of its values."""
        wrong: Exception | None = None
        asked = None
        try:
            asked = union.sum_of(array, op, name, **options)
        except (TypeError, ValueError, ValueRangeError) as error:
            wrong = error
        facts = self._run(union.telling(asked, name, **self._ranks), left())
        ranks = union.wrong_ranks(facts)
        if ranks:
            words = "" if wrong is None else f"{type(wrong).__name__}: {wrong}"
            texts = self._run(union.complaint(words, name, **self._ranks), left())
            self._dispatcher.begin()  # nothing is under way any more: the error breaks nothing
            raise union.refusal(ranks, texts) if wrong is None else wrong
        assert asked is not None, "else this rank is among the wrong ones"
        if union.is_dense(asked, facts):
            return union.by_blocks(array, asked, name, **options)
        places = self._run(union.agreeing(asked, facts, name, **self._ranks), left())
        return union.summing(asked, places, name, **options)

    @_guarded
    def broadcast(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
    ) -> Array:
        """Give all ranks the root's array, bit for bit.

        Only the root sends data, once: the switch copies it. Blocks of 1,024 zero bytes are not
        sent.

        Args:
            array: of any dtype without Python objects and any shape. On all ranks but the root
                its contents do not matter, only its number of elements and dtype, which have to
                be the same on all.
            root: the rank whose array it is; the same on all ranks.
            name: for messages; the same on all ranks.
            out: a C-contiguous array of the same shape and dtype for the result; `array` itself
                to work in place, as mpi4py's `Bcast` and Horovod's `broadcast_` do. None: a new
                one, on the root as well.
            timeout: seconds; None: that of `init`.

        Returns:
            `out`, or a new array.

        Raises:
            TypeError: not an array, or one of Python objects.
            ValueError: there is no such rank; `out` does not fit.
            P4ReduceError: as `allreduce`.
        """
        return self._run(plans.broadcast(array, root, name, out, **self._ranks), timeout)

    @_guarded
    def broadcast_async(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
    ) -> Handle[Array]:
        """Start a broadcast and return a handle to wait for it; see `allreduce_async`."""
        return self._start(plans.broadcast(array, root, name, out, **self._ranks), timeout)

    @_guarded_with(SumOptions)
    def reduce(
        self,
        array: SupportsArray,
        op: Op = SUM,
        root: int = 0,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[SumOptions],
    ) -> Out:
        """Sum an array over all ranks, or take its mean, for one rank.

        As `allreduce`, but only the root gets the result. The bytes on the wire are the same.

        Args:
            array: as in `allreduce`.
            op: as in `allreduce`.
            name: as in `allreduce`.
            timeout: as in `allreduce`.
            precision: as in `allreduce`.
            seed: as in `allreduce`.
            root: the rank that gets the result; the same on all ranks.
            out: as in `allreduce` on the root; ignored on the others.

        Returns:
            On the root `out`, or a new array; on the others None.

        Raises:
            ValueError: there is no such rank.
            P4ReduceError: as `allreduce`.
        """
        plan = plans.reduce(array, op, root, name, out, **self._ranks, **options)
        return self._run(plan, timeout)

    @_guarded_with(SumOptions)
    def reduce_async(
        self,
        array: SupportsArray,
        op: Op = SUM,
        root: int = 0,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        **options: Unpack[SumOptions],
    ) -> Handle[Out]:
        """Start a reduction and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.reduce(array, op, root, name, out, **self._ranks, **options)
        return self._start(plan, timeout)

    @_guarded_with(SumOptions)
    def reduce_scatter(
        self,
        array: SupportsArray,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        *,
        counts: Counts = None,
        **options: Unpack[SumOptions],
    ) -> Array:
        """Sum an array over all ranks, or take its mean, and give each rank a part of the rows.

        As `allreduce`, but rank 0 gets the first rows (along the first dimension), rank 1 the
        next, and so on. Each part begins with a block of its own. The bytes on the wire are those
        of `allreduce`, except that each part's last block may be short.

        Args:
            array: as in `allreduce`; of at least one dimension.
            op: as in `allreduce`.
            name: as in `allreduce`.
            timeout: as in `allreduce`.
            precision: as in `allreduce`.
            seed: as in `allreduce`.
            out: a C-contiguous array for this rank's rows, apart from `array`. None: a new one.
            counts: how many rows each rank gets, the same on all ranks, as in mpi4py's
                `Reduce_scatter`. None: equally many; if there is a remainder, the first ranks get
                one more, as in Horovod's `reducescatter`.

        Returns:
            `out`, or a new array, of shape (counts[rank], ...).

        Raises:
            ValueError: `counts` or `out` do not fit.
            P4ReduceError: as `allreduce`.
        """
        plan = plans.reduce_scatter(array, op, counts, name, out, **self._ranks, **options)
        return self._run(plan, timeout)

    @_guarded_with(SumOptions)
    def reduce_scatter_async(
        self,
        array: SupportsArray,
        op: Op = SUM,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        *,
        counts: Counts = None,
        **options: Unpack[SumOptions],
    ) -> Handle[Array]:
        """Start a `reduce_scatter` and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.reduce_scatter(array, op, counts, name, out, **self._ranks, **options)
        return self._start(plan, timeout)

    @_guarded
    def allgather(
        self,
        array: SupportsArray,
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
        *,
        counts: Counts = None,
    ) -> Array:
        """Give all ranks the arrays of all, one after the other, bit for bit.

        As Horovod's `allgather`: the arrays are joined along their first dimension, in which they
        may differ; the other dimensions and the dtype have to be the same. Each rank sends its
        own array only, once.

        Args:
            array: of any dtype without Python objects. A number without dimensions is taken as
                an array of one.
            name: for messages; the same on all ranks.
            out: a C-contiguous array for the result; `array` may be its own part of it (MPI's
                `IN_PLACE`). None: a new one.
            timeout: seconds, for the whole call; None: that of `init`.
            counts: how many rows each rank has, the same on all ranks, as in mpi4py's `Allgatherv`.
                None: the ranks exchange them first, which takes two round trips and one block.

        Returns:
            `out`, or a new array, of shape (sum of counts, ...).

        Raises:
            TypeError: not an array, or one of Python objects.
            ValueError: `counts` or `out` do not fit. Without `counts`, the others have got this
                rank's rows then, and the communicator remains usable.
            P4ReduceError: as `allreduce`.
        """
        if counts is not None:
            return self._run(plans.allgather(array, counts, name, out, **self._ranks), timeout)
        left = self._time_left(timeout)
        mine = any_array(array)  # asked for once: it may be another one, or an error, next time
        counts = self._run(plans.allgather_counts(mine, name, **self._ranks), left())
        wrong = None
        try:
            plan = plans.allgather(mine, counts, name, out, **self._ranks)
        except (TypeError, ValueError) as error:  # of `out`; the others wait for this rank's rows
            plan, wrong = plans.allgather(mine, counts, name, None, **self._ranks), error
        result = self._run(plan, left())
        if wrong is not None:
            self._dispatcher.begin()  # nothing is under way any more: the error breaks nothing
            raise wrong
        return result

    @_guarded
    def allgather_async(
        self,
        array: SupportsArray,
        counts: Sequence[int],
        name: str | None = None,
        out: Out = None,
        timeout: float | None = None,
    ) -> Handle[Array]:
        """Start an `allgather` and return a handle to wait for it; see `allreduce_async`.

        `counts` must be given, because exchanging them would wait.
        """
        return self._start(plans.allgather(array, counts, name, out, **self._ranks), timeout)

    @_guarded
    def barrier(self, timeout: float | None = None) -> None:
        """Return when all ranks have called this. Raises what `allreduce` raises."""
        self._run(plans.barrier(), timeout)

    # -- Ranks that are late -----------------------------------------------------------------------

    @short
    def partial_sums(self, *, history: int | None = None) -> PartialSums:
        """Return the sums that `allreduce(deadline=)` uses, with `behind` and `catch_up`.

        The first call is a collective, which makes a `dup`. `allreduce(deadline=)` makes that call
        itself if necessary. The sums are closed with this communicator. See docs/late.md.

        Args:
            history: in the first call: how many sums a rank can be behind before the others wait
                for it; the same on all ranks. None: 16.

        Raises:
            TypeError, ValueError: `history` is invalid, or differs from the first call's.
            P4ReduceError: as `dup`.
        """
        with self._partial_lock:
            if self._partial is None:
                kept = HISTORY if history is None else history
                self._partial = PartialSums(self, history=kept, timeout=self._options.timeout)
            elif history not in (None, self._partial.history):
                raise ValueError(f"history={history!r}: it is {self._partial.history} already")
            return self._partial

    # -- Groups ----------------------------------------------------------------------------------

    @short
    def split(
        self, color: int | None, key: int = 0, **options: Unpack[GroupOptions]
    ) -> Communicator | None:
        """Make communicators of parts of the ranks: a collective, which all ranks must call.

        As MPI's `MPI_Comm_split`. Each group of two or more is a job of its own on the switch,
        with its own slots, over this communicator's connections to switch and controller. A group
        of one rank uses neither. The new communicators are independent: this one may be used at
        the same time, split again, or closed before them. See docs/collectives.md.

        Args:
            color: ranks with the same color are a group; 0 or more. None: this rank is in no group.
            key: the order of the ranks in their group. Ranks with equal keys keep their order.
            timeout: seconds for the whole call, and the default of the new communicator's
                collectives. None: this communicator's.
            slots: to ask for, as in `init`; the same in a group. None: what this communicator
                asked for.
            urgent_slots: as `slots`.

        Returns:
            The communicator of this rank's group, which is closed separately; None for no group.

        Raises:
            TypeError, ValueError: an argument is invalid. The other ranks get ConfigurationError.
            ConfigurationError: another rank's arguments are invalid, or the ranks of a group asked
                for different numbers of slots. This communicator can still be used.
            AdmissionError: the switch has too few slots for a group, and no rank gets a new
                communicator. This communicator can still be used.
            MismatchError: another rank called something else; this communicator is broken.
            WorkerLostError: a rank of this communicator was lost or left meanwhile.
            P4ReduceTimeoutError: ranks are missing; names them.
            P4ReduceError: as `allreduce`, and as `init`.
        """
        return groups.split(self._dispatcher, self.allgather, make_in_thread, color, key, options)

    @short
    def dup(self, **options: Unpack[GroupOptions]) -> Communicator:
        """Make a communicator of the same ranks, with an order of calls of its own.

        As MPI's `MPI_Comm_dup`: for a library's or a thread's own traffic. Calls on the two may
        come in any order. Otherwise as `split`.

        Args:
            timeout: as in `split`.
            slots: as in `split`.
            urgent_slots: as in `split`.

        Raises:
            P4ReduceError: as `split`.
        """
        return groups.dup(self._dispatcher, self.allgather, make_in_thread, options)

    # -- After a loss ----------------------------------------------------------------------------

    @short
    def reform(self, world_size: int | None = None, timeout: float | None = None) -> Communicator:
        """Continue after `WorkerLostError` with the remaining ranks, all of which must call this.

        It closes this communicator. A collective that one of these ranks has completed is complete
        on all of them, and any other one has failed on all. Only replacements lack the state; rank
        0 may broadcast it. docs/faults.md has the pattern.

        Args:
            world_size: of the new job. With the old size or more, the ranks keep their numbers, and
                replacements join with the missing ones by `init`. None: the number of remaining
                ranks, which are renumbered without gaps in the old order.
            timeout: seconds to wait for all remaining ranks to call this, and for replacements.
                None: that of `init`.

        Returns:
            A communicator; `rank` and `size` are the new ones.

        Raises:
            TypeError, ValueError: an argument is invalid.
            AdmissionError: this rank was declared lost while others continue; the job has not
                failed, and a job of one rank never does; the ranks ask for different world sizes.
            P4ReduceTimeoutError: ranks are missing; names them. You may call this again.
            JobEndedError: the job was deleted meanwhile.
            ControllerUnreachableError, SwitchUnreachableError: nobody answers.
            ClosedError: this communicator is closed.
        """
        timeout = self._options.timeout if timeout is None else timeout
        check_timeout(timeout)
        if world_size is not None:
            world_size = number_within("world_size", world_size, 1, MAX_WORLD_SIZE)
        self._dispatcher.check_process()
        session = self._session
        if isinstance(session, Solo):
            raise AdmissionError(f"{self.job!r} has one rank and no job that could have failed")

        def form() -> AnySession:
            new = form_all_anew(session, world_size or 0, timeout, cancelled)
            self._dispatcher.retire()
            self._end_partial_sums(wait=False)
            return new

        cancelled = Latch()
        return make_in_thread(form, self._options, cancelled)

    # -- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the collectives in flight, within their deadlines, and leave the job.

        Closing twice is not an error. Collectives that fail meanwhile raise only from their
        handles.
        """
        self._end(wait=True)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error this rank will not take part in what the others do next: leave at once.
        self._end(wait=kind is None)

    def _end(self, *, wait: bool) -> None:
        if not self._dispatcher.forked:
            self._end_partial_sums(wait=wait)
            self._dispatcher.close(wait=wait)

    def _end_partial_sums(self, *, wait: bool) -> None:
        if self._partial is not None:
            if wait:
                self._partial.close()
            else:
                self._partial.abandon()


def _allreduce(*arguments: Any, priority: int | str = BULK, **options: Any) -> CollectivePlan[Any]:
    plan = plans.allreduce(*arguments, **options)
    return plan.with_priority(class_of(priority))


def make_in_thread(
    join: Callable[[], AnySession], options: CommunicatorOptions, cancelled: Latch
) -> Communicator:
    """Make a communicator in a thread of its own; close it if the caller is gone by then.

    Args:
        join: starts its session.
        options: of the communicator.
        cancelled: set when the caller is gone.
    """
    making = ThreadedCall(
        lambda: Communicator(join(), options),
        cancel=cancelled.set,
        undo=lambda comm: comm._end(wait=False),
    )
    try:
        return making()
    except P4ReduceError:
        raise
    except BaseException:
        making.abandon()
        raise
