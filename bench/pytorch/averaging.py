# SPDX-License-Identifier: Apache-2.0
"""What a rival can do as well: averages of models every few steps, compressed or not, over Gloo.

The algorithm and the compressors are those of `p4reduce.torch.LocalSGD`. Sums are Gloo's. Gloo has
no lanes of 16 or 8 bits: what would travel in them is of float16 there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from p4reduce.compression import CompressedAllreduce, compressor_by_name
from p4reduce.wire.calls import MEAN, SUM, Operation


class GlooSums:
    """Sums of numpy arrays by torch's default group."""

    @property
    def size(self) -> int:
        """World size."""
        return int(dist.get_world_size())

    def allreduce(
        self,
        array: npt.NDArray[Any],
        op: Operation = SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[Any]:
        """The sum or mean; in float16 where narrow lanes are asked for."""
        tensor = torch.from_numpy(array if precision is None else array.astype(np.float16)).clone()
        if op is MEAN:
            tensor /= self.size  # first, or float16 may not hold the sum
        dist.all_reduce(tensor)
        result: npt.NDArray[Any] = tensor.numpy().astype(array.dtype)
        return result


class GlooLocalSGD:
    """As `p4reduce.torch.LocalSGD` with its defaults."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: int, compressor: str) -> None:
        self.optimizer = optimizer
        self._every, self._left = every, every
        sums = GlooSums()
        self._compressor = compressor_by_name(compressor, sums.size)
        self._reduce = CompressedAllreduce(sums, self._compressor)
        self._parameters = [one for part in optimizer.param_groups for one in part["params"]]
        self._start = torch.nn.utils.parameters_to_vector(self._parameters).detach().clone()
        self._compressor.describe("moved", [tuple(one.shape) for one in self._parameters])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Do a step, and average if it is time."""
        self.optimizer.step()
        self._left -= 1
        if self._left:
            return
        self._left = self._every
        here = torch.nn.utils.parameters_to_vector(self._parameters).detach()
        mean = self._reduce.mean((here - self._start).numpy(), "moved")
        self._start += torch.from_numpy(mean)
        torch.nn.utils.vector_to_parameters(self._start.clone(), self._parameters)
