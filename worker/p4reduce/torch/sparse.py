# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors through the switch, such as an embedding's gradients: never made dense.

A frame holds 256 numbers: four rows of an embedding of 64 columns, of which mostly one is not all
zeros. So the ranks first sum marks, a few bits for each row of the whole tensor, that say which
rows any of them has. Then they sum those rows alone, close together, as a dense array. In a step of
the model in `bench/pytorch/accuracy_rank.py` with 8 ranks, a rank then receives 138 KB instead of
the 359 KB of whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from p4reduce.communicator import Communicator
from p4reduce.handle import Handle
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.sparse import SparseRows, rows_to_runs
from p4reduce.tensors.union import agreement, agrees_by_shape
from p4reduce.time_left import TimeLeft
from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import REDUCIBLE, memory_of, tensor_from, write
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


def sparse_reason(tensor: torch.Tensor) -> str | None:
    """Return why the switch cannot sum a sparse tensor, or None if it can."""
    if tensor.layout != torch.sparse_coo:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.sparse_dim() != 1 or tensor.dtype not in REDUCIBLE:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"sparse {dtype} of {tensor.sparse_dim()} sparse dimensions"
    return None


def rows_of(tensor: torch.Tensor) -> SparseRows:
    """Return a sparse tensor's rows, coalesced or not. They may share its memory."""
    tensor = tensor.detach()
    # Rows of equal index are added up on the way, so the tensor need not be coalesced first.
    indices, values = tensor._indices()[0].cpu(), tensor._values().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    shape = tuple(tensor.shape)
    dense = values.contiguous()
    numbers = memory_of(dense).reshape(tuple(dense.shape))
    return SparseRows(memory_of(indices.contiguous()), numbers, shape)


def tensor_of(rows: SparseRows, like: torch.Tensor) -> torch.Tensor:
    """Return rows as a coalesced tensor of another one's dtype and device."""
    return torch.sparse_coo_tensor(
        tensor_from(rows.indices)[None],
        tensor_from(rows.values),
        like.shape,
        dtype=like.dtype,
        device=like.device,
        is_coalesced=True,
        check_invariants=False,  # the core has made them; None would warn that they are unchecked
    )


class SparseSum:
    """One all-reduce of a sparse tensor.

    Args:
        comm: of the group.
        tensor: of this rank, coalesced or not.
        operation: sum or mean.
        name: of the collective.
        precision: as for `Communicator.allreduce`.
        seed: as for `Communicator.allreduce`.

    Attributes:
        agrees: whether ranks agree on rows first.
        bytes: of this rank's rows and their numbers.
    """

    def __init__(
        self,
        comm: Communicator,
        tensor: torch.Tensor,
        operation: Operation,
        name: str | None = None,
        precision: str | None = None,
        seed: int | None = None,
    ) -> None:
        self._comm = comm
        self._tensor = tensor
        self._rows = rows_of(tensor)
        self._operation = operation
        self._name = name
        self._options: dict[str, Any] = {"precision": precision, "seed": seed}
        self._union: Indices | None = None
        self._handle: Handle[Any] | None = None
        self.agrees = agrees_by_shape(self._rows.shape, comm.size)
        self.bytes = self._rows.values.nbytes + self._rows.indices.nbytes

    def begin(self, timeout: float | None) -> Handle[Any]:
        """Start it, of which all has `timeout` seconds; None: the communicator's for each part.

        If it `agrees`, wait for the other ranks' marks first.
        """
        if self.agrees:
            self._handle = self._begin_agreed(timeout)
        else:
            self._handle = self._comm.allreduce_async(
                self._rows, self._operation, self._name, timeout=timeout, **self._options
            )
        return self._handle

    def result(self) -> torch.Tensor:
        """Wait for the sum, and return it coalesced on the tensor's device."""
        assert self._handle is not None, "begin was called"
        sums = self._handle.wait()
        if self._union is not None:
            sums = SparseRows(self._union, sums, self._rows.shape)
        return tensor_of(sums, self._tensor)

    def _begin_agreed(self, timeout: float | None) -> Handle[Any]:
        comm, shape = self._comm, self._rows.shape
        runs = rows_to_runs(self._rows)  # checked, in order, each row once
        name = f"{self._name or 'sparse'}, rows of {shape}"
        mine, union = agreement(runs, rank=comm.rank, world_size=comm.size)
        left: Callable[[], float | None] = (lambda: None) if timeout is None else TimeLeft(timeout)
        self._union = union(comm.allreduce_async(mine, name=name, timeout=left()).wait())
        values = runs.packed(self._union).reshape(-1, *shape[1:])
        return comm.allreduce_async(values, self._operation, name, values, left(), **self._options)


def all_reduce_sparse(
    channel: Channel,
    tensor: torch.Tensor,
    operation: Operation,
    options: Any,
    name: str | None = None,
) -> OutcomeWork:
    """Sum a sparse tensor in place, which makes it coalesced. The ranks agree on the name."""
    sparse = SparseSum(channel.comm, tensor, operation, name)

    return channel.start(
        "all_reduce",
        sparse.bytes,
        sparse.begin,
        options=options,
        result=[tensor],
        finish=lambda: write(tensor, sparse.result()),
        agrees=sparse.agrees,
    )
