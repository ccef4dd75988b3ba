# SPDX-License-Identifier: Apache-2.0
"""A network whose layers wait as if an accelerator computed, on ranks of a switch."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE
from torch import nn

from bench.pytorch.over_links import join
from bench.ranks import run_ranks


def run_layers(
    function: Callable[..., Any], workers: int, bandwidth: float | None, **given: Any
) -> list[Any]:
    """Call a function in each rank, on Mininet links where there is a bandwidth, in Mbit/s.

    Its keyword `meeting` is for `meet`.
    """
    with tempfile.TemporaryDirectory() as directory:
        meeting = [f"{directory}/store", None if bandwidth is None else HOST_INTERFACE]
        return run_ranks(function, workers, bandwidth=bandwidth, meeting=meeting, **given)


def meet(meeting: list[Any]) -> None:
    """Make torch's default group."""
    store, interface = meeting
    if interface is not None:  # by its host's name Gloo would find loopback
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    join("p4reduce", store, one_bucket=False)


class Waiting(torch.autograd.Function):
    """Sleeps in the forward pass, and twice as long in the backward pass."""

    @staticmethod
    def forward(ctx: Any, numbers: Any, seconds: float) -> Any:
        """Wait."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Wait."""
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Layer(nn.Linear):
    """A square layer that waits.

    `device` are milliseconds of the forward pass; 0: it only computes. `squash`: a tanh follows.
    """

    def __init__(self, width: int, device: float, *, squash: bool = False) -> None:
        super().__init__(width, width)
        self._seconds, self._squash = device / 1e3, squash

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Compute, and wait."""
        result = super().forward(numbers)
        result = result.tanh() if self._squash else result
        return Waiting.apply(result, self._seconds) if self._seconds else result
