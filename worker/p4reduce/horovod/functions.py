# SPDX-License-Identifier: Apache-2.0
"""What a program does at its start: give all ranks the same model, optimiser and objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from p4reduce.horovod.collectives import allgather, broadcast_
from p4reduce.horovod.context import ProcessSet, global_process_set, integers, rank
from p4reduce.horovod.handles import synchronize
from p4reduce.horovod.operations import broadcast_async_


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks one rank's parameters, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
        root_rank: the rank that sends.

    Raises:
        ValueError: `params` is something else.
    """
    if isinstance(params, Mapping):
        entries = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor):
        entries = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"params of {type(params)}: a dict or a list of parameters is needed")
    with torch.no_grad():
        handles = [
            broadcast_async_(tensor, root_rank, name)
            for name, tensor in entries
            if isinstance(tensor, torch.Tensor)
        ]
        for handle in handles:
            synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks the state of one rank's optimiser, with options such as the learning rate.

    The other ranks' optimisers may be new, with no state yet.

    Args:
        optimizer: one of torch's, or a `DistributedOptimizer`.
        root_rank: the rank that sends.
        model: ignored; Horovod needs it for a step with zero gradients.

    Raises:
        ValueError: the optimiser is LBFGS, which Horovod does not support either.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    tensors: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> _Hole:
        tensors.append(tensor.detach().clone())
        return _Hole(tensor)

    def fill(hole: _Hole) -> torch.Tensor:
        tensors.append(torch.empty(hole.shape, dtype=hole.dtype))
        return tensors[-1]

    if rank() == root_rank:
        broadcast_object(_replaced(optimizer.state_dict(), torch.Tensor, take), root_rank)
        broadcast_parameters(tensors, root_rank)
    else:
        state = _replaced(broadcast_object(None, root_rank), _Hole, fill)
        broadcast_parameters(tensors, root_rank)
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return one rank's object on all ranks. It is pickled; the root gets its own back.

    Args:
        obj: the root's object; ignored on other ranks.
        root_rank: the rank that sends.
        name: the same on all ranks.
        process_set: the ranks that take part.
    """
    name = name or "object"
    is_root = rank() == root_rank
    packed = _packed(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = integers([packed.numel()])
    broadcast_(length, root_rank, f"{name}.length", process_set)
    if not is_root:
        packed = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(packed, root_rank, name, process_set)
    return obj if is_root else _unpacked(packed)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return all ranks' objects in the order of ranks. They are pickled."""
    name = name or "object"
    packed = _packed(obj)
    lengths = allgather(integers([packed.numel()]), f"{name}.length", process_set)
    whole = allgather(packed, name, process_set)
    return [_unpacked(part) for part in torch.split(whole, lengths.tolist())]


class _Hole:
    """Where a tensor was."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _replaced(state: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Return nested dicts and lists with `by` of each value of a type in its place, in order."""
    if isinstance(state, kind):
        return by(state)
    if isinstance(state, Mapping):
        return {key: _replaced(one, kind, by) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_replaced(one, kind, by) for one in state)
    return state


def _packed(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> Any:
    return pickle.loads(packed.numpy().tobytes())
