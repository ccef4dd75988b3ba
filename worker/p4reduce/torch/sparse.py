# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors through the switch, such as an embedding's gradients: never made dense."""

from __future__ import annotations

from typing import Any

import torch

from p4reduce.handle import Handle
from p4reduce.tensors.sparse import SparseRows
from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import REDUCIBLE
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


def sparse_reason(tensor: torch.Tensor) -> str | None:
    """Return why a sparse tensor is nothing for the switch, or None if it is."""
    if tensor.layout != torch.sparse_coo:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.sparse_dim() != 1 or tensor.dtype not in REDUCIBLE:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"sparse {dtype} of {tensor.sparse_dim()} sparse dimensions"
    return None


def rows_of(tensor: torch.Tensor) -> SparseRows:
    """Return a sparse tensor's rows, coalesced or not; the array's values may be its memory."""
    tensor = tensor.detach()
    # Rows of equal index are added up on the way, so the tensor need not be coalesced first.
    indices, values = tensor._indices()[0].cpu(), tensor._values().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    return SparseRows(indices.numpy(), values.contiguous().numpy(), tuple(tensor.shape))


def tensor_of(rows: SparseRows, like: torch.Tensor) -> torch.Tensor:
    """Return rows as a coalesced tensor of another one's dtype and device."""
    return torch.sparse_coo_tensor(
        torch.from_numpy(rows.indices)[None],
        torch.from_numpy(rows.values),
        like.shape,
        dtype=like.dtype,
        device=like.device,
        is_coalesced=True,
        check_invariants=False,  # the core has made them; None would warn that nobody checks
    )


def bytes_of_rows(rows: SparseRows) -> int:
    """Return how many bytes the rows and their numbers have."""
    return rows.values.nbytes + rows.indices.nbytes


def all_reduce_sparse(
    channel: Channel, tensor: torch.Tensor, operation: Operation, options: Any
) -> OutcomeWork:
    """Sum a sparse tensor in place; it is coalesced then."""
    rows = rows_of(tensor)
    started: list[Handle[Any]] = []

    def begin(timeout: float | None) -> Handle[Any]:
        started.append(channel.comm.allreduce_async(rows, operation, timeout=timeout))
        return started[0]

    def finish() -> None:
        # Not to a detached one: that would get indices of its own, and this one keep the old.
        with torch.no_grad():
            tensor.copy_(tensor_of(started[0].wait(), tensor))

    return channel.start(
        "all_reduce", bytes_of_rows(rows), begin, options=options, result=[tensor], finish=finish
    )
