# SPDX-License-Identifier: Apache-2.0
"""The collectives as methods: the part of a `Communicator` that moves data."""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast, overload

import numpy.typing as npt

from p4reduce.checks import check_deadline, check_timeout
from p4reduce.errors import ValueRangeError
from p4reduce.handle import Handle
from p4reduce.late.outcome import PartialSum
from p4reduce.late.sums import PartialSums
from p4reduce.tensors import fusion, plans, union
from p4reduce.tensors.arguments import SupportsArray, any_array, class_of, operation_of
from p4reduce.tensors.fusion import FUSION_THRESHOLD
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.sparse import SparseArray, SparseBlocks, SparseElements, SparseRows
from p4reduce.tracebacks import can_be_short
from p4reduce.wire.calls import Operation, Priority

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Sparse = TypeVar("Sparse")
Rows = TypeVar("Rows", SparseRows, SparseBlocks, SparseElements)

SUM = Operation.SUM
MEAN = Operation.MEAN
BULK = Priority.BULK

_LEAST_TIMEOUT = 1e-3  # seconds; lets a call fail that has none left


class _Left:
    """What is left of a call's time, in seconds, for one collective after the other.

    Args:
        timeout: from the first collective on, which gets all of it.
    """

    def __init__(self, timeout: float) -> None:
        check_timeout(timeout)
        self._timeout = timeout
        self._start: float | None = None

    def __call__(self) -> float:
        now = time.monotonic()
        if self._start is None:
            self._start = now
        return max(self._timeout - (now - self._start), _LEAST_TIMEOUT)


def _whole(method: Method) -> Method:
    """Let the communicator judge each exception that leaves a call, wherever it came from."""

    @functools.wraps(method)
    def call(self: Collectives, *args: Any, **kwargs: Any) -> Any:
        try:
            self._begin()
            return method(self, *args, **kwargs)
        except BaseException as error:
            self._left_by(error)
            if can_be_short(error):
                raise error.with_traceback(None) from error.__cause__
            raise

    return cast(Method, call)


class Collectives(ABC):
    """The collectives of a job.

    All of them are one operation of the switch, a sum that leaves out blocks of zeros.
    docs/collectives.md has the cost of each. The switch sends each sum to all ranks, so a rank that
    does not need it (`reduce`, `reduce_scatter`) saves no bytes on the way down.
    """

    _timeout: float  # seconds, where a call says nothing else

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank of this process, from 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ranks."""

    @abstractmethod
    def _begin(self) -> None:
        """This thread begins a call, and has started nothing in it yet."""

    @abstractmethod
    def _left_by(self, error: BaseException) -> None:
        """An exception leaves a call; unless it is one of the call's own, nothing is sure."""

    @abstractmethod
    def _start_all(
        self,
        plans: Sequence[CollectivePlan[Any]],
        result: Callable[[], T],
        timeout: float | None,
        *,
        here: bool = False,
    ) -> Handle[T]:
        """Run plans as this rank's next collectives; `result` is called when all are over.

        Args:
            plans: in the order in which all ranks start them.
            result: makes what the handle's `wait` returns.
            timeout: seconds, for all of them; None: that of `init`.
            here: whether this thread will wait for them at once. It may run them then.
        """

    @abstractmethod
    def partial_sums(self) -> PartialSums:
        """The sums with a deadline."""

    def _start(self, plan: CollectivePlan[T], timeout: float | None) -> Handle[T]:
        return self._start_all([plan], plan.result, timeout)

    def _run(self, plan: CollectivePlan[T], timeout: float | None) -> T:
        return self._start_all([plan], plan.result, timeout, here=True).wait()

    @overload
    def allreduce(
        self,
        array: Rows,
        op: Operation | str = SUM,
        name: str | None = None,
        out: None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
    ) -> Rows: ...

    @overload
    def allreduce(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
        residual: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]: ...

    @overload
    def allreduce(
        self,
        array: Rows,
        op: Operation | str = SUM,
        name: str | None = None,
        *,
        out: npt.NDArray[Any],
        timeout: float | None = None,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
    ) -> npt.NDArray[Any]: ...

    @overload
    def allreduce(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        deadline: float,
        at_least: int = 1,
        feedback: bool = False,
    ) -> PartialSum: ...

    @_whole
    def allreduce(
        self,
        array: Any,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
        residual: npt.NDArray[Any] | None = None,
        deadline: float | None = None,
        at_least: int = 1,
        feedback: bool = False,
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
        if deadline is not None:
            check_deadline(deadline)
            if seed is not None or class_of(priority) or residual is not None:
                raise ValueError("seed, priority and residual are not for sums with a deadline")
            options: dict[str, Any] = {"deadline": deadline, "at_least": at_least}
            options |= {"feedback": feedback, "precision": precision}
            sums = self.partial_sums()
            self._begin()  # nothing is under way any more: an error in the arguments breaks nothing
            return sums.allreduce(array, op, name, out, timeout, **options)
        if at_least != 1 or feedback:
            raise ValueError("at_least and feedback need a deadline")
        plan = plans.allreduce(
            array, op, name, out, precision, seed, residual, world_size=self.size
        )
        plan = plan.with_priority(class_of(priority))
        return self._run(plan, timeout)

    @overload
    def allreduce_async(
        self,
        array: Rows,
        op: Operation | str = SUM,
        name: str | None = None,
        out: None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
    ) -> Handle[Rows]: ...

    @overload
    def allreduce_async(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
        residual: npt.NDArray[Any] | None = None,
    ) -> Handle[npt.NDArray[Any]]: ...

    @overload
    def allreduce_async(
        self,
        array: Rows,
        op: Operation | str = SUM,
        name: str | None = None,
        *,
        out: npt.NDArray[Any],
        timeout: float | None = None,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
    ) -> Handle[npt.NDArray[Any]]: ...

    @_whole
    def allreduce_async(
        self,
        array: Any,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
        priority: int | str = BULK,
        residual: npt.NDArray[Any] | None = None,
    ) -> Handle[Any]:
        """Start an all-reduce and return a handle to wait for it.

        As `allreduce`. Several may be in flight; they share the slots, so small ones cost hardly
        more than their bytes. Until the call is over, do not write to `array`, and do not use
        `out`.
        """
        plan = plans.allreduce(
            array, op, name, out, precision, seed, residual, world_size=self.size
        )
        plan = plan.with_priority(class_of(priority))
        return self._start(plan, timeout)

    @_whole
    def grouped_allreduce(
        self,
        arrays: Sequence[SupportsArray],
        op: Operation | str = SUM,
        names: Sequence[str] | None = None,
        outs: Sequence[npt.NDArray[Any] | None] | None = None,
        timeout: float | None = None,
        *,
        fusion_threshold: int = FUSION_THRESHOLD,
        precision: str | None = None,
        seed: int | None = None,
    ) -> list[npt.NDArray[Any]]:
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
        handle = self.grouped_allreduce_async(
            arrays,
            op,
            names,
            outs,
            timeout,
            fusion_threshold=fusion_threshold,
            precision=precision,
            seed=seed,
        )
        return handle.wait()

    @_whole
    def grouped_allreduce_async(
        self,
        arrays: Sequence[SupportsArray],
        op: Operation | str = SUM,
        names: Sequence[str] | None = None,
        outs: Sequence[npt.NDArray[Any] | None] | None = None,
        timeout: float | None = None,
        *,
        fusion_threshold: int = FUSION_THRESHOLD,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Handle[list[npt.NDArray[Any]]]:
        """Start a `grouped_allreduce` and return a handle to wait for it; see `allreduce_async`.

        The outputs are complete when the handle's `wait` has returned.
        """
        group = fusion.ArrayGroup(operation_of(op), fusion_threshold, precision, seed, self.size)
        streams, results = group.plan(arrays, names, outs)
        return self._start_all(streams, results, timeout)

    @overload
    def allreduce_sparse(
        self,
        array: Sparse,
        op: Operation | str = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: Literal[False] = False,
        precision: str | None = None,
        seed: int | None = None,
        agree: bool | None = None,
    ) -> Sparse: ...

    @overload
    def allreduce_sparse(
        self,
        array: SparseArray,
        op: Operation | str = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: Literal[True],
        precision: str | None = None,
        seed: int | None = None,
        agree: bool | None = None,
    ) -> npt.NDArray[Any]: ...

    @_whole
    def allreduce_sparse(
        self,
        array: SparseArray,
        op: Operation | str = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: bool = False,
        precision: str | None = None,
        seed: int | None = None,
        agree: bool | None = None,
    ) -> Any:
        """Sum a sparse array over all ranks, or take its mean, without making it dense.

        There are two ways, and all ranks take the same one:

        - **By blocks** (`agree=False`): the same collective as `allreduce`, and the same sums bit
          for bit. Ranks with a dense array call `allreduce`, and those with few
          rows, blocks or numbers with this. Memory and time grow with what is not zero, besides 9
          bytes for each block of 256 elements of the dense array, and three times that while the
          call is prepared.
        - **By the union** (`agree=True`): ranks first give their indices, at most
          2 + log2(N / k) bits for each of k among N. Then the values of the union are summed as
          a dense array without gaps. For few elements at random places this takes a small part of
          the bytes. Where the sum by blocks would take fewer, all ranks sum by blocks. Sums of
          integers are the same as the dense ones. Floats have the bound of `allreduce`, with 256
          (512, 1,024) elements of the union in place of a block.

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
        handle = self.allreduce_sparse_async(
            array, op, name, timeout, dense=dense, precision=precision, seed=seed, agree=agree
        )
        return handle.wait()

    @_whole
    def allreduce_sparse_async(
        self,
        array: SparseArray,
        op: Operation | str = SUM,
        name: str | None = None,
        timeout: float | None = None,
        *,
        dense: bool = False,
        precision: str | None = None,
        seed: int | None = None,
        agree: bool | None = None,
    ) -> Handle[Any]:
        """Start an all-reduce of a sparse array and return a handle; see `allreduce_async`.

        With `agree` this waits for the other ranks and returns when the union is known. Only the
        sum of its values is then in flight.
        """
        if union.agrees(array, agree):
            return self._start_union(array, op, name, timeout, dense, precision, seed)
        plan = plans.allreduce_sparse(
            array, op, name, precision, seed, dense=dense, world_size=self.size
        )
        return self._start(plan, timeout)

    def _start_union(
        self,
        array: SparseArray,
        op: Operation | str,
        name: str | None,
        timeout: float | None,
        dense: bool,
        precision: str | None,
        seed: int | None,
    ) -> Handle[Any]:
        """Agree on the union, and start the sum of its values."""
        rank, size = self.rank, self.size
        wrong: Exception | None = None
        elements = None
        try:
            elements = union.elements_of(array, op, name, precision, seed, dense, size)
        except (TypeError, ValueError, ValueRangeError) as error:
            wrong = error
        left = _Left(self._timeout if timeout is None else timeout)
        facts = self._run(union.telling(elements, name, rank=rank, world_size=size), left())
        ranks = union.wrong_ranks(facts)
        if ranks:
            words = "" if wrong is None else f"{type(wrong).__name__}: {wrong}"
            telling = union.complaint(words, name, rank=rank, world_size=size)
            texts = self._run(telling, left())
            self._begin()  # nothing is under way any more: the error breaks nothing
            raise union.refusal(ranks, texts) if wrong is None else wrong
        assert elements is not None, "else this rank is among the wrong ones"
        options: dict[str, Any] = {"dense": dense, "world_size": size}
        if union.is_dense(elements, facts):
            plan = union.by_blocks(array, elements, name, precision, seed, **options)
        else:
            places = self._run(union.agreeing(elements, facts, name, rank=rank), left())
            plan = union.summing(elements, places, name, precision, seed, **options)
        return self._start(plan, left())

    @_whole
    def broadcast(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> npt.NDArray[Any]:
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
        return self.broadcast_async(array, root, name, out, timeout).wait()

    @_whole
    def broadcast_async(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> Handle[npt.NDArray[Any]]:
        """Start a broadcast and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.broadcast(array, root, name, out, rank=self.rank, world_size=self.size)
        return self._start(plan, timeout)

    @_whole
    def reduce(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[Any] | None:
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
        handle = self.reduce_async(
            array, op, root, name, out, timeout, precision=precision, seed=seed
        )
        return handle.wait()

    @_whole
    def reduce_async(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Handle[npt.NDArray[Any] | None]:
        """Start a reduction and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.reduce(
            array, op, root, name, out, precision, seed, rank=self.rank, world_size=self.size
        )
        return self._start(plan, timeout)

    @_whole
    def reduce_scatter(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        counts: Sequence[int] | None = None,
        precision: str | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[Any]:
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
        handle = self.reduce_scatter_async(
            array, op, name, out, timeout, counts=counts, precision=precision, seed=seed
        )
        return handle.wait()

    @_whole
    def reduce_scatter_async(
        self,
        array: SupportsArray,
        op: Operation | str = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        counts: Sequence[int] | None = None,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Handle[npt.NDArray[Any]]:
        """Start a `reduce_scatter` and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.reduce_scatter(
            array, op, counts, name, out, precision, seed, rank=self.rank, world_size=self.size
        )
        return self._start(plan, timeout)

    @_whole
    def allgather(
        self,
        array: SupportsArray,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
        *,
        counts: Sequence[int] | None = None,
    ) -> npt.NDArray[Any]:
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
            return self.allgather_async(array, counts, name, out, timeout).wait()
        left = _Left(self._timeout if timeout is None else timeout)
        mine = any_array(array)  # asked for once: it may be another one, or an error, next time
        rank = {"rank": self.rank, "world_size": self.size}
        counts = self._start(plans.allgather_counts(mine, name, **rank), left()).wait()
        wrong = None
        try:
            plan = plans.allgather(mine, counts, name, out, **rank)
        except (TypeError, ValueError) as error:  # of `out`; the others wait for this rank's rows
            plan, wrong = plans.allgather(mine, counts, name, None, **rank), error
        result = self._start(plan, left()).wait()
        if wrong is not None:
            self._begin()  # nothing is under way any more: the error breaks nothing
            raise wrong
        return result

    @_whole
    def allgather_async(
        self,
        array: SupportsArray,
        counts: Sequence[int],
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> Handle[npt.NDArray[Any]]:
        """Start an `allgather` and return a handle to wait for it; see `allreduce_async`.

        `counts` must be given, because exchanging them would wait.
        """
        plan = plans.allgather(array, counts, name, out, rank=self.rank, world_size=self.size)
        return self._start(plan, timeout)

    @_whole
    def barrier(self, timeout: float | None = None) -> None:
        """Return when all ranks have called this. Raises what `allreduce` raises."""
        self._run(plans.barrier(), timeout)
