# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: each rank trains by itself for some steps, then the models are averaged.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv 1805.09767; Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105.
`p4reduce.methods.local_sgd` is the same in numpy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from p4reduce.communicator import Communicator
from p4reduce.compression import CompressedAllreduce, Compressor, compressor_by_name
from p4reduce.compression.base import Array
from p4reduce.handle import Handle
from p4reduce.torch.hooks.state import channel_of
from p4reduce.torch.same_start import take_rank_0s
from p4reduce.torch.tensors import array_of, nothing
from p4reduce.wire.calls import Operation


class _DeadlineSums:
    """A communicator's all-reduce within a deadline, as `CompressedAllreduce` calls it."""

    def __init__(self, comm: Communicator, timeout: float | None) -> None:
        self.size = comm.size
        self._comm, self._timeout = comm, timeout

    def allreduce(
        self,
        array: Array,
        op: Operation = Operation.SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Array:
        """Return the sum over all ranks, within the deadline."""
        timeout = self._timeout
        return self._comm.allreduce(
            array, op, name, timeout=timeout, precision=precision, seed=seed
        )


class LocalSGD(torch.optim.Optimizer):
    """An optimiser's steps on this rank alone, and an average of all ranks' models every few.

    After `every` steps, with Δ the mean over the ranks of the change of their parameters:

        v ← outer_momentum·v + Δ,    θ ← θ + outer_rate·(Δ + outer_momentum·v)

    which with the defaults makes θ the mean of the models: local SGD. DiLoCo's authors use
    `outer_rate=0.7`, outer_momentum=0.9, and AdamW as the optimiser. Do not wrap the model in
    DistributedDataParallel, which would sum gradients as well. Its state starts as rank 0's.

    It is an `Optimizer` with the inner one's `param_groups`, `state` and `defaults`, so schedulers
    and `GradScaler` take it. A step that `GradScaler` leaves out on one rank counts on it as well.

    Between two averages the ranks' models differ. Call `average` on all ranks before one of them
    saves or evaluates: `state_dict` warns if that is missing, and with `model` so do saving and
    evaluating the model.

    For example:

        optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=16)

    Args:
        optimizer: any of torch's; the inner one.
        every: steps between two averages, 1 or more.
        outer_rate: above 0.
        outer_momentum: Nesterov's, from 0 to below 1.
        buffers: tensors of floats that are averaged as well, such as a BatchNorm's statistics.
        precision: of the switch's lanes for the change of the parameters: "int16" or "int8"
            for a half or a quarter of the bytes (docs/lanes.md). None: 32 bits.
        compressor: what is sent of the change of the parameters: a name, such as
            "powersgd:2/int16" (docs/compression.md), or a `p4reduce.compression.Compressor`. The
            parameters are of one dtype then. What is not sent waits for the next average. None:
            all of it.
        group: a process group of the backend "p4reduce", or a communicator that `p4reduce.init`
            made. None: the default group.
        model: whose `state_dict` and forward pass in `eval` mode warn while the ranks differ.

    Attributes:
        optimizer: the inner one.
        averages: their number so far.

    Raises:
        TypeError, ValueError: an argument is invalid; names it.
        DistBackendError: a rank is lost, or the ranks' parameters differ in shape.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        every: int,
        *,
        outer_rate: float = 1.0,
        outer_momentum: float = 0.0,
        buffers: Iterable[torch.Tensor] = (),
        precision: str | None = None,
        compressor: str | Compressor | None = None,
        group: Any = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r}: 1 step or more between two averages")
        if not outer_rate > 0:
            raise ValueError(f"outer_rate={outer_rate!r}: a number above 0 is needed")
        if not 0 <= outer_momentum < 1:
            raise ValueError(f"outer_momentum={outer_momentum!r}: 0 to below 1 is needed")
        if compressor is not None and precision is not None:
            raise ValueError(f"precision={precision!r}: a compressor has lanes of its own")
        self._channel = channel_of(group)
        if isinstance(compressor, str):
            compressor = compressor_by_name(compressor, self._channel.size)
        self._compressor = compressor
        self.optimizer = optimizer
        self.__setstate__({})  # the base class's hooks: its constructor would copy the groups
        self._warned = False
        self.averages = 0
        self._every = every
        self._rate = outer_rate
        self._momentum = outer_momentum
        self._precision = precision
        self._left = every
        self._parameters = [
            one for part in optimizer.param_groups for one in part["params"] if one.requires_grad
        ]
        self._buffers = list(buffers)
        if not self._parameters:
            raise ValueError("the optimizer has no parameters that take part in training")
        for tensor in [*self._parameters, *self._buffers]:
            if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                raise ValueError(f"a parameter or buffer is of {tensor.dtype}: floats are averaged")
        if compressor is not None and len({one.dtype for one in self._parameters}) > 1:
            raise ValueError("the parameters have several dtypes: a compressor takes one")
        take_rank_0s(self._channel, [*self._parameters, *self._buffers], "LocalSGD")
        self._start = [one.detach().clone() for one in self._parameters]
        self._speed = [torch.zeros_like(one) for one in self._start]
        if model is not None:
            model.register_forward_pre_hook(self._on_forward)
            model.register_state_dict_pre_hook(lambda *_: self._warn_of_difference("saved"))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimiser's."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:
        """The inner optimiser's."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        """The inner optimiser's."""
        defaults: dict[str, Any] = self.optimizer.defaults
        return defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise NotImplementedError: the averaged parameters are those of the beginning."""
        raise NotImplementedError("LocalSGD: add the group to the inner optimizer before wrapping")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step of the inner optimiser and return its result; average if it is time."""
        loss = None
        if self._scaled_back():
            loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self._left -= 1
        if self._left == 0:
            self.average()
        return loss

    def average(self) -> None:
        """Average now: all ranks call it, for example after the last step."""
        self._left = self._every
        with torch.no_grad():
            moved = [
                one.detach() - start
                for one, start in zip(self._parameters, self._start, strict=True)
            ]
            if self._compressor is None:
                self._mean(moved, "moved", self._precision)
            else:
                self._compressed_mean(self._compressor, moved)
            for one, start, speed, delta in zip(
                self._parameters, self._start, self._speed, moved, strict=True
            ):
                if self._momentum:  # without it these are passes over memory for nothing
                    speed.mul_(self._momentum).add_(delta)
                    delta.add_(speed, alpha=self._momentum)
                start.add_(delta, alpha=self._rate)
                one.copy_(start)
            if self._buffers:
                self._mean([one.detach() for one in self._buffers], "buffers", None)
        self.averages += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimiser's state, with this one's as "local_sgd", of this rank only.

        Warns if the ranks' models differ now.
        """
        self._warn_of_difference("saved")
        state: dict[str, Any] = self.optimizer.state_dict()
        state["local_sgd"] = {
            "start": [one.clone() for one in self._start],
            "speed": [one.clone() for one in self._speed],
            "left": self._left,
            "averages": self.averages,
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state. The model's state is loaded separately.

        Raises ValueError: it is not of a LocalSGD.
        """
        inner = dict(state_dict)
        own = inner.pop("local_sgd", None)
        if own is None:
            raise ValueError(
                "the state has no 'local_sgd': give one of LocalSGD.state_dict(), or load it into "
                "the inner optimizer before wrapping"
            )
        self.optimizer.load_state_dict(inner)
        for name, mine in (("start", self._start), ("speed", self._speed)):
            for one, saved in zip(mine, own[name], strict=True):
                one.copy_(saved)
        self._left, self.averages = own["left"], own["averages"]

    # `GradScaler` then leaves it to `step` what to do if gradients are not finite. By itself it
    # would leave out the whole step on one rank, and the others would wait for its average.
    _step_supports_amp_scaling = True

    def _scaled_back(self) -> bool:
        """Take `GradScaler`'s scale off the gradients. Return False if they are not finite."""
        scale, not_finite = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if not_finite is not None and bool(not_finite):
            return False
        if scale is not None:
            for one in self._parameters:
                if one.grad is not None:
                    one.grad.div_(scale.to(one.grad.device))
        return True

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if not model.training:
            self._warn_of_difference("evaluated")

    def _warn_of_difference(self, what: str) -> None:
        if self._left != self._every and not self._warned:
            self._warned = True
            warnings.warn(
                f"LocalSGD: {what} {self._every - self._left} steps after the last average, when "
                "the ranks' models differ. Call average() on all ranks before.",
                stacklevel=3,
            )

    def _mean(self, tensors: list[torch.Tensor], what: str, precision: str | None) -> None:
        """Take the mean of each over all ranks, in place, in one collective."""
        lent = [array_of(one) for one in tensors]
        arrays = [one.array for one in lent]
        names = [f"LocalSGD {what} {number}" for number in range(len(arrays))]

        def put_back() -> None:
            for one in lent:
                one.put_back()

        self._channel.start(
            "LocalSGD",
            sum(array.nbytes for array in arrays),
            lambda timeout: self._channel.comm.grouped_allreduce_async(
                arrays, Operation.MEAN, names, arrays, timeout, precision=precision
            ),
            options=None,
            result=tensors,
            finish=put_back,
        ).wait()

    def _compressed_mean(self, compressor: Compressor, moved: list[torch.Tensor]) -> None:
        """Take the mean of what a compressor sends of each, in place, as one tensor."""
        lent = [array_of(one) for one in moved]
        whole = np.concatenate([one.array.reshape(-1) for one in lent])
        compressor.describe("moved", [tuple(one.shape) for one in moved])
        ended: list[Any] = []

        def begin(timeout: float | None) -> Handle[Any]:
            summing = _DeadlineSums(self._channel.comm, timeout)
            ended.append(CompressedAllreduce(summing, compressor).mean(whole, "moved"))
            return Handle([], nothing)

        def put_back() -> None:
            parts = np.split(ended[0], np.cumsum([one.array.size for one in lent])[:-1])
            for one, part in zip(lent, parts, strict=True):
                one.array[...] = part.reshape(one.array.shape)
                one.put_back()

        self._channel.start(
            "LocalSGD",
            whole.nbytes,
            begin,
            options=None,
            result=moved,
            finish=put_back,
            agrees=True,
            waits=True,
        ).wait()
