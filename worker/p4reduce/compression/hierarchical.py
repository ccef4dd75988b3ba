# SPDX-License-Identifier: Apache-2.0
"""Top-k in two levels, for switches in a tree whose uplinks are slow: HiTopKComm.

Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
MLSys 2021, section 3.2. Each rank of a leaf has a *shard* of the gradient:

1. The leaf's ranks sum the gradient by a reduce-scatter: each gets the leaf's sum of its shard.
2. It chooses the largest elements of that, or the blocks of most energy, and keeps the rest for the
   next step.
3. The ranks that have this shard, one of each leaf, sum what they chose over the root.
4. The leaf's ranks gather the shards' sums.

A leaf with m ranks chooses once per element, not m times. So its uplink carries the union of one
choice of each leaf, where ranks that choose by themselves have the union of all ranks' choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, lanes_of
from p4reduce.errors import ConfigurationError
from p4reduce.handle import Handle
from p4reduce.tensors.arguments import operation_of
from p4reduce.tensors.copy_pool import CopyPool
from p4reduce.tensors.sparse import SparseElements
from p4reduce.time_left import TimeLeft
from p4reduce.wire.calls import MEAN, SUM, Operation
from p4reduce.wire.rank_sets import describe_ranks

if TYPE_CHECKING:
    from p4reduce.communicator import Communicator

_SLOTS = 16


@dataclass(frozen=True)
class Sent:
    """The part of its shard that a rank last sent across the root.

    Attributes:
        chosen: elements that this rank chose.
        union: elements whose sum over the leaves is not zero.
        shard: elements of the shard.
    """

    chosen: int
    union: int
    shard: int


@dataclass
class _ShardState:
    """What is kept of one tensor: the shard's residual, in units of what the leaf computes."""

    op: Operation
    kept: Array


class HierarchicalTopK:
    """Sums tensors over all ranks; each leaf sends the largest elements of its own sum.

    Every rank makes the same calls in the same order. Making one is a collective, by `split`: each
    leaf is a job of its own on its switch, and so are the ranks that have the same shard.

    NaN or infinity on a rank makes the shard that it is in NaN on all ranks, in that step. What
    was kept before stays for the next one.

    Attributes:
        latest: what this rank sent of each tensor.

    Example:
        reduce = HierarchicalTopK(communicator, density=0.01)
        mean = reduce.mean(gradient, "layer1.weight")
    """

    def __init__(
        self,
        communicator: Communicator,
        density: float = 0.01,
        *,
        blocks: bool = False,
        leaf: int | None = None,
        precision: str | None = None,
        seed: int | None = None,
        slots: int | None = _SLOTS,
    ) -> None:
        """Split the ranks into leaves and shards.

        Args:
            communicator: of all ranks.
            density: share of the leaf's sum to send, above 0 and up to 1; at least one element or
                block of each shard is sent.
            blocks: choose blocks of 1,024 bytes by their energy, not elements. No index travels;
                no rank waits for what others chose.
            leaf: a number that ranks of the same leaf have in common, from 0 on. None: ranks at
                one switch of the tree are a leaf. On a single switch that is all ranks.
            precision: of the sums across the root, as of `Communicator.allreduce`.
            seed: as for `Communicator.allreduce`.
            slots: of a shard's job, as of `Communicator.split`. It has few blocks, and a root has
                as many of these jobs as a leaf has ranks.

        Raises:
            ValueError: `density` or `leaf` is out of range.
            ConfigurationError: leaves have different numbers of ranks.
            P4ReduceError: as `Communicator.split`.
        """
        if not 0 < density <= 1:
            raise ValueError(f"density={density!r}: above 0 and up to 1 is needed")
        self.density = density
        self.latest: dict[str, Sent] = {}
        self._precision, self._seed = precision, seed
        self._lanes = _lanes(precision) if blocks else 0
        self._tensors: dict[str, _ShardState] = {}
        self._spare = CopyPool()
        mine = min(communicator.leaf) if leaf is None else leaf
        within = communicator.split(mine)
        assert within is not None, "a color is given"
        try:
            _check_sizes(communicator, mine)
            across = communicator.split(within.rank, slots=slots)
        except BaseException:
            within.close()
            raise
        assert across is not None, "a color is given"
        self.within, self.across = within, across

    def sum(self, gradient: Array, name: str) -> Array:
        """Return the sum over the leaves of what each chose; shape and dtype of the gradient.

        Args:
            gradient: of numbers that can be all-reduced, any shape. It is not changed.
            name: of the tensor: its residual is kept under it.

        Raises:
            TypeError, ValueError: no such array; another size or operation than before under this
                name.
            P4ReduceError: as `Communicator.allreduce`.
        """
        return self.start(gradient, name, SUM).wait()

    def mean(self, gradient: Array, name: str) -> Array:
        """Return the sum divided by the number of ranks. For floats only."""
        return self.start(gradient, name, MEAN).wait()

    def start(
        self, gradient: Array, name: str, op: Operation | str = SUM, timeout: float | None = None
    ) -> Handle[Array]:
        """Start a sum or mean, and return when only its last collective is in flight.

        Args:
            gradient: as for `sum`.
            name: as for `sum`.
            op: the sum or the mean.
            timeout: seconds, for all of it; None: what the communicator was given.
        """
        if not isinstance(gradient, np.ndarray):
            raise TypeError(
                f"tensor {name!r} is a {type(gradient).__name__}; a numpy array is needed"
            )
        op = operation_of(op, gradient.dtype)
        left: Callable[[], float | None] = (lambda: None) if timeout is None else TimeLeft(timeout)
        shard = self.within.reduce_scatter(gradient.reshape(-1), op, name, timeout=left())
        before = self._tensor(name, shard, op)
        if self._lanes:
            total = self._sum_blocks(shard, before, name, left)
            counts = _shares(gradient.size, self.within.size)
            whole = self.within.allgather_async(total, counts, name, timeout=left())
            return Handle([whole], lambda: whole.wait().reshape(gradient.shape))
        places, values = self._sum_elements(shard, before, name, left)
        mine = np.empty(len(places), [("place", np.uint32), ("value", gradient.dtype)])
        mine["place"], mine["value"] = places, values
        gathered = self.within.allgather(
            np.array([len(mine)]), name, timeout=left(), counts=[1] * self.within.size
        )
        counts = gathered.tolist()
        elements = self.within.allgather_async(mine, counts, name, timeout=left())
        return Handle([elements], lambda: _dense(elements.wait(), counts, gradient))

    def _sum_elements(
        self, shard: Array, before: _ShardState, name: str, left: Callable[[], float | None]
    ) -> tuple[Array, Array]:
        """Sum the largest elements of a shard across the root; return which there are, and them."""
        wanted, finite = self._wanted(shard, before)
        places = _largest(wanted, self.density) if finite else np.empty(0, np.int64)
        # Zeros are not on the wire: ranks whose numbers are all finite meet in empty frames.
        trouble = self.across.allreduce_async(
            np.full(1, 0 if finite else np.nan, np.float32), name=f"{name}/finite", timeout=left()
        )
        total = self.across.allreduce_sparse(
            SparseElements(places, wanted[places], shard.size),
            before.op,
            name,
            left(),
            precision=self._precision,
            seed=self._seed,
            agree=True,
        )
        self.latest[name] = Sent(len(places), len(total.indices), shard.size)
        if np.isnan(trouble.wait()[0]):
            if finite:
                before.kept = wanted  # no rank got what was sent of it
            return np.arange(shard.size), np.full(shard.size, np.nan, shard.dtype)
        wanted[places] = 0
        before.kept = wanted
        return total.indices, total.values

    def _sum_blocks(
        self, shard: Array, before: _ShardState, name: str, left: Callable[[], float | None]
    ) -> Array:
        """Sum the blocks of most energy across the root; the others are zeros."""
        wanted, finite = self._wanted(shard, before)
        sent = self._largest_blocks(wanted) if finite else shard
        options: dict[str, Any] = {"timeout": left(), "precision": self._precision}
        total = self.across.allreduce(sent, before.op, name, seed=self._seed, **options)
        self.latest[name] = Sent(
            int(np.count_nonzero(sent)), int(np.count_nonzero(total)), shard.size
        )
        if finite:  # where the sum is not, no rank got what was sent
            before.kept = np.where(np.isfinite(total), wanted - sent, wanted)
        return total

    def _wanted(self, shard: Array, before: _ShardState) -> tuple[Array, bool]:
        """Add what was kept to a shard. Return also whether the sum is finite; else it is none."""
        wanted = kernels.lend(self._spare, shard.size, shard.dtype)
        if shard.dtype.kind != "f":
            return np.add(shard, before.kept, out=wanted), True
        return wanted, kernels.want(shard, before.kept, 1, wanted=wanted)

    def _largest_blocks(self, wanted: Array) -> Array:
        """Return zeros with the blocks of most energy."""
        lanes, floats = self._lanes, wanted
        if wanted.dtype.kind != "f":
            floats = wanted.astype(np.float64)
        energies = np.empty(-(-wanted.size // lanes))
        kernels.want(floats, None, lanes, energies=energies)
        sent = np.zeros_like(wanted)
        for first in (_largest(energies, self.density) * lanes).tolist():
            sent[first : first + lanes] = wanted[first : first + lanes]
        return sent

    def _tensor(self, name: str, shard: Array, op: Operation) -> _ShardState:
        """Return what is kept of a tensor, at first zeros."""
        known = self._tensors.setdefault(name, _ShardState(op, np.zeros_like(shard)))
        if known.kept.shape != shard.shape or known.kept.dtype != shard.dtype:
            raise ValueError(
                f"tensor {name!r} has a shard of {shard.size} {shard.dtype}, but its residual has "
                f"{known.kept.size} {known.kept.dtype}; reset() drops it"
            )
        if known.op is not op:
            raise ValueError(
                f"tensor {name!r} has the residual of a {known.op.name.lower()}, not of a "
                f"{op.name.lower()}; reset() drops it"
            )
        return known

    def reset(self, name: str | None = None) -> None:
        """Forget the residual of one tensor, or of all. All ranks do the same."""
        if name is None:
            self._tensors.clear()
        else:
            self._tensors.pop(name, None)

    def close(self) -> None:
        """Leave the jobs of leaf and shard."""
        self.within.close()
        self.across.close()

    def __enter__(self) -> HierarchicalTopK:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_sizes(communicator: Communicator, leaf: int) -> None:
    """See that the leaves are equally large: a shard needs a rank on each of them."""
    leaves = communicator.allgather(np.array([leaf]), "leaves", counts=[1] * communicator.size)
    numbers, counts = np.unique(leaves, return_counts=True)
    if len(set(counts.tolist())) > 1:
        parts = (describe_ranks(np.flatnonzero(leaves == one).tolist()) for one in numbers)
        raise ConfigurationError(
            f"leaves have different numbers of ranks: {'; '.join(parts)}. Each shard of a tensor "
            "needs a rank on each leaf"
        )


def _lanes(precision: str | None) -> int:
    """Return the elements of a block, in lanes of this precision or of 32 bits."""
    return lanes_of(int(precision.removeprefix("int")) if precision else 32)


def _largest(values: Array, density: float) -> Array:
    """Return the places of the largest magnitudes, at least one."""
    return kernels.largest(values, min(max(math.ceil(density * values.size), 1), values.size))


def _shares(size: int, ranks: int) -> list[int]:
    """Return the sizes of the shards, as `Communicator.reduce_scatter` has them."""
    share, more = divmod(size, ranks)
    return [share + (rank < more) for rank in range(ranks)]


def _dense(elements: Array, counts: list[int], like: Array) -> Array:
    """Put the elements of all shards where they belong, into a new array."""
    starts = np.cumsum([0, *_shares(like.size, len(counts))])[:-1]
    whole = np.zeros(like.size, like.dtype)
    whole[elements["place"] + np.repeat(starts, counts)] = elements["value"]
    return whole.reshape(like.shape)
