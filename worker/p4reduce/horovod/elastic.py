# SPDX-License-Identifier: Apache-2.0
"""Training that continues without lost ranks: `run`, `TorchState`, `ElasticSampler`.

Ranks may leave, but none join: there is no host discovery. `Communicator.reform` renumbers the
remaining ranks without gaps (docs/faults.md).
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import torch

from p4reduce.horovod.context import rank, reform, size
from p4reduce.horovod.errors import HorovodInternalError
from p4reduce.horovod.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class State:
    """State that is equal on all ranks, with a copy of the last commit."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Register functions to call after ranks were lost, such as one that adapts the rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call the registered functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep a copy of the state for `restore`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Do nothing: hosts change only by being lost."""

    def save(self) -> None:
        """Keep a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the kept copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Hook for subclasses, called after ranks were lost and before `sync`."""


class ObjectState(State):
    """Python objects as attributes, which are pickled for the other ranks."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._values = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved = self._now()

    def _now(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self._values}

    def save(self) -> None:
        """Keep a copy of the attributes."""
        self._saved = self._now()

    def restore(self) -> None:
        """Return to the kept attributes."""
        self._take(self._saved)

    def sync(self) -> None:
        """Take rank 0's present attributes."""
        if self._values:
            self._saved = broadcast_object(self._now(), 0, "state")
            self._take(self._saved)

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)


class TorchState(ObjectState):
    """Models, optimisers, samplers and Python objects as attributes.

    Args:
        model: a module. Others may be among `values`.
        optimizer: one of torch's, or a `DistributedOptimizer`.
        values: further attributes by name.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **values: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        kinds = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._stateful = {name: one for name, one in given.items() if isinstance(one, kinds)}
        self._states: dict[str, Any] = {}
        super().__init__(**{name: one for name, one in given.items() if name not in self._stateful})
        for name, one in self._stateful.items():
            setattr(self, name, one)
        self.save()

    def save(self) -> None:
        """Keep a copy of everything in this host's memory."""
        for name in self._stateful:
            self._states[name] = copy.deepcopy(getattr(self, name).state_dict())
        super().save()

    def restore(self) -> None:
        """Return to the kept copy."""
        for name, state in self._states.items():
            getattr(self, name).load_state_dict(copy.deepcopy(state))
        super().restore()

    def sync(self) -> None:
        """Take rank 0's state."""
        for name in self._stateful:
            one = getattr(self, name)
            if isinstance(one, torch.nn.Module):
                broadcast_parameters(one.state_dict(), 0)
            elif isinstance(one, torch.optim.Optimizer):
                broadcast_optimizer_state(one, 0)
            else:
                one.load_state_dict(broadcast_object(one.state_dict(), 0, "sampler"))
        super().sync()
        self.save()


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Distributes a data set among ranks, and again when ranks are lost.

    Put it into a `TorchState`. Call `record_batch` after each batch, and `set_epoch` at the end of
    each epoch.

    Args:
        dataset: its size must not change.
        shuffle: whether to shuffle the samples in each epoch.
        seed: of the order; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has processed a batch of that many samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the progress of the epoch."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from there with the present ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Redistribute the unprocessed samples among the present ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        # All ranks have as many: the first samples come again, however few there are.
        total = self.num_samples * self.num_replicas
        return itertools.islice(
            itertools.cycle(self.remaining_indices), self.rank, total, self.num_replicas
        )

    def __len__(self) -> int:
        return self.num_samples


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function so that it restarts from the last commit after a loss.

    Args:
        func: its first argument is a `State`. It starts with rank 0's state on all ranks.

    Raises:
        HorovodInternalError: a collective failed although no rank is lost.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        while True:
            failed = HorovodInternalError()
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:  # seldom
                failed = error
            reform(failed)
            state.restore()
            state.on_reset()

    return wrapper
