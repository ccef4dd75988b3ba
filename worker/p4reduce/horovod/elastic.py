# SPDX-License-Identifier: Apache-2.0
"""Training that goes on without ranks that are lost: `run`, `TorchState`, `ElasticSampler`.

Ranks may go, and none comes: no host discovery is asked for new ones. Those that are left are
numbered anew, without gaps, by the switch's `Communicator.reform` (docs/faults.md).
"""

from __future__ import annotations

import copy
import functools
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
    """What all ranks have alike, with a copy of when it was last committed."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Have functions called after ranks were lost, such as one that sets another rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Do what is to be done after ranks were lost."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Remember the state as it is, for `restore`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Nothing: no hosts come or go but those that are lost."""

    def save(self) -> None:
        """Remember the state as it is."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was remembered."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: after ranks were lost, before `sync`."""


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
        """Remember the attributes."""
        self._saved = self._now()

    def restore(self) -> None:
        """Go back to the attributes that were remembered."""
        self._take(self._saved)

    def sync(self) -> None:
        """Take rank 0's attributes, as it has them now."""
        if self._values:
            self._saved = broadcast_object(self._now(), 0, "state")
            self._take(self._saved)

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)


class TorchState(ObjectState):
    """Models, optimisers, samplers and Python objects as attributes.

    Args:
        model: a module; more of them, or none, may be among `values`.
        optimizer: one of torch's, or a `DistributedOptimizer`.
        values: each is an attribute of its name.
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
        """Remember all of it, in this host's memory."""
        for name in self._stateful:
            self._states[name] = copy.deepcopy(getattr(self, name).state_dict())
        super().save()

    def restore(self) -> None:
        """Go back to what was remembered."""
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
    """Deals a data set out to the ranks, and what is left of an epoch anew when ranks are lost.

    It belongs into a `TorchState`. Call `record_batch` after each batch, and `set_epoch` at the
    end of each epoch.

    Args:
        dataset: of a size that does not change.
        shuffle: whether each epoch has an order of its own.
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
        """Begin an epoch, of which nothing has been processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Say that each rank has processed a batch of so many samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return how far the epoch is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there, with the ranks that there are now."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal what has not been processed out to the ranks that there are."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        total = self.num_samples * self.num_replicas
        filled = left + left[: total - len(left)]  # all ranks have as many
        return iter(filled[self.rank : total : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, so that it begins again from the last commit on a loss.

    Args:
        func: its first argument is a `State`. It begins with rank 0's state on all ranks.

    Raises:
        HorovodInternalError: a collective failed for another reason than a rank that is lost.
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
