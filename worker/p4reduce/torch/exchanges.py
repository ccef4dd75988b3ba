# SPDX-License-Identifier: Apache-2.0
"""Collectives that only Gloo does: gather, scatter, all_to_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from p4reduce.torch.calls import Finish, Place, Tensors, TorchCall
from p4reduce.torch.copies import put_back, result_of
from p4reduce.torch.options import shape_of
from p4reduce.torch.tensors import Dense, write

_REASON = "no sum"


def gather_call(
    place: Place, outputs: Sequence[Tensors], inputs: Tensors, options: Any
) -> TorchCall:
    """Return the call that copies all ranks' tensors to one."""

    def run(group: Any) -> tuple[Any, Finish]:
        rows = [Dense(row) for row in outputs]
        work = group.gather([row.tensors for row in rows], Dense(inputs).tensors, options)
        return work, lambda: put_back(rows)

    return TorchCall(
        "gather",
        options,
        _REASON,
        run,
        None,
        reads=inputs,
        writes=[one for row in outputs for one in row],
        result=result_of(outputs),
        agreed=inputs,
        counted=inputs,
    )


def scatter_call(
    place: Place, outputs: Tensors, inputs: Sequence[Tensors], options: Any
) -> TorchCall:
    """Return the call that sends each rank one of one rank's tensors."""

    def run(group: Any) -> tuple[Any, Finish]:
        dense = Dense(outputs)
        lists = [Dense(row).tensors for row in inputs]
        return group.scatter(dense.tensors, lists, options), dense.put_back

    return TorchCall(
        "scatter",
        options,
        _REASON,
        run,
        None,
        reads=[one for row in inputs for one in row],
        writes=outputs,
        result=outputs,
        agreed=outputs,
        counted=outputs,
    )


def all_to_all_lists_call(
    place: Place, outputs: Tensors, inputs: Tensors, options: Any
) -> TorchCall:
    """Return the call that sends each rank one of every rank's tensors.

    Raises:
        ValueError: there is not one of each for each rank, or they have several dtypes.
    """
    if len({tensor.dtype for tensor in (*outputs, *inputs)}) > 1:
        raise ValueError(
            f"all_to_all: tensors of {shape_of([*outputs, *inputs])}: one dtype is needed"
        )
    for what, tensors in (("outputs", outputs), ("inputs", inputs)):
        if len(tensors) != place.size:
            raise ValueError(f"all_to_all: {len(tensors)} {what} for {place.size} ranks")
    counts = [one.numel() for one in outputs]

    def run(group: Any) -> tuple[Any, Finish]:
        # In one piece, as the Gloo of torch 2.10 has no lists.
        mine = torch.cat([one.reshape(-1) for one in Dense(inputs).tensors])
        room = mine.new_empty(sum(counts))

        def finish() -> None:
            for output, part in zip(outputs, room.split(counts), strict=True):
                write(output, part)

        splits = counts, [one.numel() for one in inputs]
        return group.alltoall_base(room, mine, *splits, options), finish

    return TorchCall(
        "all_to_all",
        options,
        _REASON,
        run,
        None,
        reads=inputs,
        writes=outputs,
        result=outputs,
        agreed=[],
        counted=inputs,
    )


def all_to_all_tensor_call(
    place: Place,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: list[int],
    input_splits: list[int],
    options: Any,
) -> TorchCall:
    """Return the call that sends each rank a part of every rank's tensor."""

    def run(group: Any) -> tuple[Any, Finish]:
        room, (mine,) = Dense([output]), Dense([tensor]).tensors
        work = group.alltoall_base(room.tensors[0], mine, output_splits, input_splits, options)
        return work, room.put_back

    return TorchCall(
        "all_to_all_single",
        options,
        _REASON,
        run,
        None,
        reads=[tensor],
        writes=[output],
        result=[output],
        agreed=[],
        counted=[tensor],
    )
