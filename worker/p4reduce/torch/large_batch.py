# SPDX-License-Identifier: Apache-2.0
"""Large batches: rates that grow with the batch, a warm-up, and LARS.

Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2: with a batch k times as
large the rate is k times as large, reached gradually. Krizhevsky, arXiv 1404.5997, section 3.2: by
√k, which keeps the variance of a step. You, Gitman and Ginsburg, "Large Batch Training of
Convolutional Networks", arXiv 1708.03888, algorithm 1: a rate for each layer (LARS).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p4reduce.torch.hooks.state import channel_of
from p4reduce.torch.tensors import memory_of
from p4reduce.wire.calls import Operation

_BASE = 2.0**19  # so that the sum of a digit over 4,096 ranks, the most of a job, is an int32
_PLACES = _BASE ** np.arange(7, -9, -1)  # what digits stand for, the largest first


def linear_rate(rate: float, batch: int, base_batch: int) -> float:
    """Return the rate for a batch over all ranks, from one that is good for another batch.

    Raises:
        ValueError: a batch of no samples, or a rate that is not above 0.
    """
    return _checked(rate, batch, base_batch) * batch / base_batch


def sqrt_rate(rate: float, batch: int, base_batch: int) -> float:
    """Return the rate by the square root of the batches' ratio; as `linear_rate`."""
    return _checked(rate, batch, base_batch) * math.sqrt(batch / base_batch)


def warm_up(
    optimizer: torch.optim.Optimizer, steps: int, base_rate: float
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return torch's scheduler that goes from one rate to the optimiser's, in equal parts.

    Args:
        optimizer: with the rate for the large batch in its first group.
        steps: calls of the scheduler's `step`, 1 or more.
        base_rate: to begin with, above 0 and not above the optimiser's.

    Raises:
        ValueError: the steps or the rate do not fit.
    """
    rate = float(optimizer.param_groups[0]["lr"])
    if steps < 1:
        raise ValueError(f"steps={steps}: 1 or more are needed")
    if not 0 < base_rate <= rate:
        raise ValueError(f"base_rate={base_rate}: above 0, and at most the optimizer's {rate}")
    return torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=base_rate / rate, total_iters=steps
    )


class LARS(torch.optim.Optimizer):
    """SGD with momentum and a rate for each parameter: trust·‖w‖ / (‖g‖ + weight_decay·‖w‖).

    Parameters of fewer than two dimensions, which are biases and those of norms, have the plain
    rate and no weight decay.

    Args:
        params: of the model, or groups of them.
        lr: the global rate, above 0.
        momentum: from 0 to below 1.
        weight_decay: 0 or above.
        trust: the paper's η.
        shards: a process group or communicator over whose ranks each parameter is spread, by rows
            or otherwise: then norms are those of the whole parameters. All squares are summed in
            one collective, exactly: 136 bytes per parameter. None: each rank has all of them.

    Raises:
        ValueError: a number is out of its range; names it.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        *,
        shards: Any = None,
    ) -> None:
        for name, value in (("lr", lr), ("trust", trust)):
            if not value > 0:
                raise ValueError(f"{name}={value!r}: a number above 0 is needed")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r}: 0 to below 1 is needed")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay!r}: 0 or above is needed")
        self._channel = None if shards is None else channel_of(shards)
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust},
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step; all ranks of `shards` call it. Return what the closure returned.

        Raises:
            ValueError: a gradient is sparse; no parameter was changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step()
        return loss

    def _step(self) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None and one.grad.layout != torch.strided:
                    raise ValueError(
                        f"LARS: the gradient of a parameter of shape {tuple(one.shape)} is "
                        "sparse; dense ones are needed (nn.Embedding(sparse=False))"
                    )
        chosen = [
            (group, one) for group in self.param_groups for one in group["params"] if one.dim() > 1
        ]
        norms = dict(zip([one for _, one in chosen], self._norms(chosen), strict=True))
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                rate, change = group["lr"], one.grad
                if one.dim() > 1:
                    weight, gradient = norms[one]
                    decay = group["weight_decay"]
                    change = one.grad.add(one, alpha=decay)
                    if weight > 0 and gradient > 0:
                        trust = group["trust"] * weight / (gradient + decay * weight)
                        rate = rate * trust  # not in place: it may be the group's tensor
                state = self.state[one]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(one)
                speed = state["momentum_buffer"]
                speed.mul_(group["momentum"]).add_(change, alpha=rate)
                one.sub_(speed)

    def _norms(self, chosen: list[tuple[Any, torch.Tensor]]) -> list[tuple[float, float]]:
        """Return ‖w‖ and ‖g‖ of each parameter, over all its shards."""
        squares = torch.tensor(
            [
                [
                    float(one.double().square().sum()),
                    0.0 if one.grad is None else float(one.grad.double().square().sum()),
                ]
                for _, one in chosen
            ],
            dtype=torch.float64,
            device="cpu",
        )
        if self._channel is not None and len(chosen):
            squares = self._summed(squares)
        return [(math.sqrt(weight), math.sqrt(gradient)) for weight, gradient in squares.tolist()]

    def _summed(self, squares: torch.Tensor) -> torch.Tensor:
        """Sum over the shards, exactly."""
        channel = self._channel
        assert channel is not None
        sent = to_digits(memory_of(squares))
        channel.start(
            "LARS",
            sent.nbytes,
            lambda timeout: channel.comm.allreduce_async(
                sent, Operation.SUM, "LARS", sent, timeout
            ),
            options=None,
            result=None,
        ).wait()
        return torch.from_numpy(from_digits(sent)).view(squares.shape)


def to_digits(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Return numbers from 0 on as integers, for a sum without rounding.

    Floats of one block share an exponent on the way, so the norms of a layer with small gradients
    would be lost beside those of a layer with large ones.

    Returns:
        Shape (numbers, 17). Column c counts multiples of 2^(133 - 19c), each below 2^19: what is
        below 2^-152 is cut off. The last one counts numbers that are infinite, NaN, or 2^152 and
        more.
    """
    fits = numbers < _BASE * _PLACES[0]
    rest = np.where(fits, numbers, 0.0)
    found = np.empty((len(numbers), len(_PLACES) + 1), np.int32)
    for column, place in enumerate(_PLACES):
        digit = np.floor(rest / place)
        rest = rest - digit * place  # exact, as it takes away leading bits
        found[:, column] = digit
    found[:, -1] = ~fits
    return found


def from_digits(digits: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return the numbers whose digits `to_digits` has made, summed; NaN where one was too large."""
    total = digits[:, -2::-1].astype(np.float64) @ _PLACES[::-1]
    return np.where(digits[:, -1] > 0, np.nan, total)


def _checked(rate: float, batch: int, base_batch: int) -> float:
    if not rate > 0:
        raise ValueError(f"rate={rate!r}: a number above 0 is needed")
    if batch < 1 or base_batch < 1:
        raise ValueError(f"batch={batch!r}, base_batch={base_batch!r}: 1 sample or more")
    return rate
