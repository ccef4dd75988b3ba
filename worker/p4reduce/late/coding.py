# SPDX-License-Identifier: Apache-2.0
"""Gradient coding by fractional repetition (Tandon et al., ICML 2017, section 4.1).

n ranks are in groups, whose ranks all compute the same parts of a sum. One of each group is
enough, so with groups of r any r - 1 ranks can be late or lost, and more if they are of different
groups. Each rank computes r parts for that instead of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.checks import number_within
from p4reduce.errors import LaneOverflowError
from p4reduce.late.negotiation import wide
from p4reduce.late.outcome import PartialSum
from p4reduce.late.policies import OneOfEachGroup
from p4reduce.late.sums import HISTORY, Sums, row_of
from p4reduce.tensors import plans
from p4reduce.tensors.arguments import SupportsArray, operation_of, reducible_array
from p4reduce.wire.calls import Operation

Array = npt.NDArray[Any]

SWITCHES = "switches"
"""As `groups`: the ranks at one switch are a group."""


class FractionalRepetition(Sums):
    """Sums of parts that several ranks compute. The first rank of each group counts.

    The work has as many parts as there are ranks. Each rank of a group computes all parts with the
    numbers of the group's ranks. So the sum has each part once, whichever rank of a group comes
    first. The ranks of a group must compute the same bits.

    All ranks make it at the same place in their order of collectives. That makes a `dup`.

    Args:
        comm: the ranks that take part. It may be used meanwhile, and closed before this.
        copies: ranks per group, consecutive ones. It divides the number of ranks.
        groups: instead of `copies`: the ranks of each group, or "switches": the ranks below one
            leaf of a tree are a group. Each rank is in one group. The same for all ranks.
        history: how many sums a rank can be behind; see `PartialSums`.
        timeout: seconds for each sum, and to continue after a loss.
        slots: of the switch; None: as many as `comm`.

    Attributes:
        groups: the ranks of each group.
        parts: what this rank computes, in ascending order.

    Raises:
        TypeError, ValueError: an argument is invalid.
        P4ReduceError: as `Communicator.dup`.

    Example:
        >>> import numpy as np
        >>> from p4reduce.late import FractionalRepetition
        >>> with FractionalRepetition(comm, copies=1) as coded:
        ...     total = coded.sum(lambda part: np.full(8, part + 1, np.int32))
        >>> int(total.result[0]) == sum(range(comm.size + 1))
        True
    """

    def __init__(
        self,
        comm: Any,
        copies: int = 2,
        *,
        groups: Sequence[Sequence[int]] | str | None = None,
        history: int = HISTORY,
        timeout: float = 30.0,
        slots: int | None = None,
    ) -> None:
        self._size = comm.size
        if isinstance(groups, str):
            if groups != SWITCHES:
                raise ValueError(f"groups={groups!r}: {SWITCHES!r} is needed, or ranks by group")
            groups = _by_switch(comm)
        elif groups is None:
            groups = _in_order(self._size, copies)
        self.groups = check_groups(groups, self._size)
        self._group = next(group for group in self.groups if comm.rank in group)
        policy = OneOfEachGroup(self.groups)
        super().__init__(comm, policy, history=history, timeout=timeout, slots=slots)

    def __enter__(self) -> FractionalRepetition:
        return self

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that this rank computes."""
        return self._group

    def sum(
        self,
        compute: Callable[[int], SupportsArray],
        op: Operation | str = Operation.SUM,
        name: str | None = None,
        out: Array | None = None,
        timeout: float | None = None,
        *,
        precision: str | None = None,
    ) -> PartialSum:
        """Compute this rank's parts, and return the sum of all parts.

        A late rank skips work: if the sum is over before it starts, or after one of its parts, it
        gets the result at once.

        Args:
            compute: gets a part's number, and returns its array; of the same shape and dtype for
                all parts, and the same bits on all ranks of a group.
            op: SUM, or MEAN, which divides by the number of parts.
            name: the same on all ranks.
            out: a C-contiguous array of that shape and dtype for the result. None: a new one.
            timeout: seconds for the sum, from the last part on; None: that of these sums.
            precision: as for `Communicator.allreduce`.

        Returns:
            The sum. `members` are the ranks whose parts were added, one of each group; `missing`
            those that were late or lost.

        Raises:
            TypeError, ValueError: as `Communicator.allreduce`.
            LaneOverflowError: integers left their dtype's range.
            WorkerLostError: all ranks of a group are lost. Names the group.
            P4ReduceTimeoutError: no rank of a group came in time. Names the group.
            P4ReduceError: as `Communicator.allreduce`. Nothing can be summed after these any more.
        """
        operation = operation_of(op)
        with self._one_at_a_time(timeout) as left:
            computed = self._computed(compute, op)
            if computed is None:
                total = self._proxy.take()
                assert total is not None, "the sum is over"
            else:
                own, dtype = computed
                with np.errstate(over="ignore"):
                    like = own.astype(dtype, copy=False)
                plans.allreduce(like, op, name, out, precision, world_size=self._size)
                row = row_of(like, precision, (int(operation), name or ""))
                total = self._called(own, row, left)
        return self._finished(total, out, self._size if operation is Operation.MEAN else 1)

    def _computed(
        self, compute: Callable[[int], SupportsArray], op: Operation | str
    ) -> tuple[Array, np.dtype[Any]] | None:
        """Return the sum of this rank's parts, in the dtype that is summed, and the parts' dtype.

        None: the sum of all ranks is over already.
        """
        total: Array | None = None
        dtype: np.dtype[Any] | None = None
        for part in self.parts:
            if self.behind:
                return None
            array, _ = reducible_array(compute(part), op)
            if total is None:
                dtype = array.dtype
                total = np.array(array, _of_parts(dtype), order="C")
                continue
            if array.shape != total.shape or array.dtype != dtype:
                raise ValueError(
                    f"part {part} has shape {array.shape} and dtype {array.dtype}, and part "
                    f"{self.parts[0]} has {total.shape} and {dtype}"
                )
            total += array
        assert total is not None
        assert dtype is not None
        return _narrowed(total, dtype), dtype


def check_groups(groups: Any, size: int) -> tuple[tuple[int, ...], ...]:
    """Return groups such that each rank is in exactly one. Raises TypeError, ValueError."""
    needed = f"each of the ranks 0 to {size - 1} has to be in one group"
    try:
        checked = tuple(
            tuple(sorted(number_within("groups", rank, 0, size - 1) for rank in group))
            for group in groups
        )
    except TypeError:
        raise TypeError(f"groups={groups!r}: {needed}") from None
    if sorted(rank for group in checked for rank in group) != list(range(size)) or not all(checked):
        raise ValueError(f"groups={groups!r}: {needed}")
    return checked


def _in_order(size: int, copies: int) -> list[range]:
    copies = number_within("copies", copies, 1, size, ", the number of ranks")
    if size % copies:
        raise ValueError(f"copies={copies}: it has to divide the number of ranks, {size}")
    return [range(first, first + copies) for first in range(0, size, copies)]


def _by_switch(comm: Any) -> list[list[int]]:
    """Ask all ranks who is at their switch; each says who is the first one there."""
    mine = np.zeros(comm.size, np.int32)
    mine[comm.rank] = min(comm.leaf)
    firsts = comm.allreduce(mine, name="groups by switch").tolist()
    return [
        [rank for rank in range(comm.size) if firsts[rank] == first]
        for first in sorted(set(firsts))
    ]


def _of_parts(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that parts are added up in."""
    return np.dtype(np.int64) if dtype.kind == "i" else wide(dtype)


def _narrowed(total: Array, dtype: np.dtype[Any]) -> Array:
    if total.dtype.kind != "i":
        return total
    info = np.iinfo(dtype)
    if total.size and (total.min() < info.min or total.max() > info.max):
        raise LaneOverflowError(f"the sum of this rank's parts leaves the range of {dtype}")
    return total.astype(dtype)
