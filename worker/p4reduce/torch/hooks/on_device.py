# SPDX-License-Identifier: Apache-2.0
"""Buckets that an accelerator makes smaller, so that only what is sent is copied.

Rounded to narrow lanes:

    device: exponents ──▸ host: the ranks' largest ──▸ device: lanes ──▸ host: their sums
                                                                             │
    device: the mean ◂───────────────────────────────────────────────────────┘

Exponents are a byte per block. In machine code on the host the ranks agree on them beside the sums
(`tensors.quantise`); here they do before, by an all-gather of their own.

The blocks of most energy:

    device: chosen blocks, and their numbers ──▸ host: the sum of the blocks that any rank chose
                                                                             │
    device: the mean ◂───────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p4reduce.handle import Handle
from p4reduce.tensors.noise import Noise
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.sparse import SparseBlocks
from p4reduce.torch.accelerators import Accelerator, to_device
from p4reduce.torch.calls import PART
from p4reduce.torch.hooks.sending import send, start_beside
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.narrow import LANES, NarrowLanes, block_exponents, to_rows
from p4reduce.torch.staging import StagedPart, StagedWork
from p4reduce.torch.tensors import memory_of, nothing
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format

_BLOCKS = Format.INT32  # whose lanes blocks of floats travel in

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Of buckets that the device makes smaller. float64 is copied to the host as it is."""


def start_lanes(
    accelerator: Accelerator, state: HookState, bucket: Any, hook: str, lane_bits: int
) -> StagedWork:
    """Start the mean of a bucket in narrow lanes.

    Args:
        accelerator: that has the bucket.
        state: of the hook.
        bucket: of DDP, of one of `DTYPES`.
        hook: its name, for the statistics.
        lane_bits: 16, 8 or 4.

    Raises:
        ValueError: there are too many ranks for such lanes.
    """
    return _started(_RoundedMean(accelerator, state, bucket, hook, f"int{lane_bits}"))


def start_blocks(
    accelerator: Accelerator, state: HookState, bucket: Any, hook: str
) -> StagedWork | None:
    """Start the mean of a bucket's blocks of most energy; arguments as for `start_lanes`.

    Returns:
        None if the state has a compressor of its own, which works on the host.
    """
    return None if state.compresses else _started(_BlocksMean(accelerator, state, bucket, hook))


def _started(mean: _DeviceMean) -> StagedWork:
    part = StagedPart(mean.start, mean.measure, mean.put)
    return start_beside(mean.state, mean.accelerator, part=part, result=mean.tensor)


class _DeviceMean(ABC):
    """A bucket's mean. What has to be done on the device are jobs of its streams.

    Attributes:
        tensor: the bucket's, which becomes the mean.
        name: the bucket's.
    """

    def __init__(self, accelerator: Accelerator, state: HookState, bucket: Any, hook: str) -> None:
        self.accelerator, self.state = accelerator, state
        self.tensor: torch.Tensor = bucket.buffer()
        self.name, self.priority = state.name(bucket), state.priority(bucket)
        self._hook = hook

    @abstractmethod
    def measure(self) -> Iterable[torch.Tensor]:
        """Find what is to be sent, after the caller's work; a `DeviceWork`."""

    @abstractmethod
    def start(self) -> OutcomeWork:
        """Start the sum, when `measure` is done and this call's turn has come."""

    def send(
        self,
        begin: Callable[[float | None], Handle[Any]],
        elements: int,
        finish: Callable[[], None] = nothing,
    ) -> OutcomeWork:
        """Start a sum of that many of the bucket's elements, as the function `send`."""
        size = elements * self.tensor.element_size()
        return send(self.state, self._hook, self.tensor, size, begin, finish)

    @abstractmethod
    def put(self) -> Iterable[torch.Tensor]:
        """Write the mean, when the sums are there; a `DeviceWork`."""

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the host."""
        return self.accelerator.room(torch.empty(shape, dtype=dtype, device="meta"))

    def kept(self, lane_format: Format) -> torch.Tensor:
        """Return what the bucket has left out so far, as `to_rows` has it."""
        kept = self.state.kept.get(self.name)
        if kept is None:
            kept = to_rows(torch.zeros_like(self.tensor), lane_format)
            self.state.kept[self.name] = kept
        return kept

    def write(self, means: torch.Tensor) -> list[torch.Tensor]:
        """Write rows to the bucket; returns what a `DeviceWork` does."""
        self.tensor.copy_(means.view(-1)[: self.tensor.numel()].view(self.tensor.shape))
        return [self.tensor]


class _RoundedMean(_DeviceMean):
    """A mean in narrow lanes: one piece is on the wire while the next one is rounded and copied."""

    def __init__(
        self, accelerator: Accelerator, state: HookState, bucket: Any, hook: str, precision: str
    ) -> None:
        super().__init__(accelerator, state, bucket, hook)
        self._format = lane_format(np.dtype(np.float32), precision, state.channel.size)
        self._residual = self.kept(self._format) if state.error_feedback else None
        blocks = -(-self.tensor.numel() // self._format.lanes)
        self._exponents = self.room((blocks,), torch.uint8)
        self._lanes = self.room((blocks, self._format.lanes), LANES[self._format])

    def measure(self) -> Iterable[torch.Tensor]:
        """Find the exponents."""
        self._rows = to_rows(self.tensor, self._format)
        if self._residual is not None:
            self._rows = self._rows + self._residual
        self._exponents.copy_(block_exponents(self._rows), non_blocking=True)
        return self._used()

    def start(self) -> OutcomeWork:
        """Start the sums of all pieces. The first one's turn is that of the exponents as well."""
        blocks = max(PART // self._format.lanes, 1)
        firsts = range(0, len(self._lanes), blocks)
        works = [self._start_piece(slice(first, first + blocks)) for first in firsts]
        del self._rows
        return OutcomeWork.of_all(works, self.tensor)

    def _start_piece(self, blocks: slice) -> OutcomeWork:
        first, lanes = blocks.start, self._format.lanes

        def begin(timeout: float | None) -> Handle[Any]:
            if not first:
                self._narrow = self._agree(timeout)
            self.accelerator.between(lambda: self._encode(blocks)).synchronize()
            return self._sum(memory_of(self._lanes[blocks]), timeout)

        left = self.tensor.numel() - first * lanes
        return self.send(begin, min(len(self._lanes[blocks]) * lanes, left))

    def put(self) -> Iterable[torch.Tensor]:
        """Scale the sums."""
        sums = self._lanes.to(self.tensor.device, non_blocking=True)
        return self.write(self._narrow.decode(sums))

    def _agree(self, timeout: float | None) -> NarrowLanes:
        """Return the lanes by the largest exponent of each block on any rank."""
        comm = self.state.channel.comm
        own = memory_of(self._exponents, np.uint8)
        every = comm.allgather_async(
            own, [own.size] * comm.size, f"{self.name}/exponents", timeout=timeout
        ).wait()
        agreed = every.reshape(comm.size, -1).max(axis=0)
        noise = Noise(self.state.seed, comm.rank, comm.calls)
        return NarrowLanes(self._format, comm.size, agreed, noise, self.tensor.device)

    def _sum(self, lanes: npt.NDArray[Any], timeout: float | None) -> Handle[Any]:
        return self.state.channel.comm.allreduce_async(
            lanes,
            Operation.SUM,
            self.name,
            lanes,
            timeout,
            precision="int4" if self._format is Format.INT4 else None,
            priority=self.priority,
        )

    def _encode(self, blocks: slice) -> Iterable[torch.Tensor]:
        rows = self._rows[blocks]
        lanes = self._narrow.encode(rows, blocks)
        self._lanes[blocks].copy_(lanes, non_blocking=True)
        if self._residual is not None:
            self._residual[blocks].copy_(self._narrow.left(rows, lanes, blocks))
        return [rows, *self._used()]

    def _used(self) -> list[torch.Tensor]:
        return [self.tensor] if self._residual is None else [self.tensor, self._residual]


class _BlocksMean(_DeviceMean):
    def __init__(self, accelerator: Accelerator, state: HookState, bucket: Any, hook: str) -> None:
        super().__init__(accelerator, state, bucket, hook)
        self._residual = self.kept(_BLOCKS)
        count = state.sent_of(len(self._residual))
        self._numbers = self.room((count,), torch.int64)
        self._blocks = self.room((count, _BLOCKS.lanes), torch.float32)

    def measure(self) -> Iterable[torch.Tensor]:
        """Choose blocks, and keep the others for the next step."""
        rows = to_rows(self.tensor, _BLOCKS) + self._residual
        energies = rows.double().square_().sum(dim=1)
        chosen = energies.topk(len(self._numbers)).indices.sort().values
        self._numbers.copy_(chosen, non_blocking=True)
        self._blocks.copy_(rows[chosen], non_blocking=True)
        self._residual.copy_(rows.index_fill_(0, chosen, 0.0))
        return [self.tensor, self._residual]

    def start(self) -> OutcomeWork:
        """Start the sum of the blocks that any rank chose."""
        return self.send(self._begin, self.tensor.numel(), self._finish)

    def _begin(self, timeout: float | None) -> Handle[Any]:
        blocks = memory_of(self._blocks).reshape(self._blocks.shape)
        sent = SparseBlocks(memory_of(self._numbers), blocks, self._residual.numel())
        self._handle = self.state.channel.comm.allreduce_sparse_async(
            sent, Operation.MEAN, self.name, timeout
        )
        return self._handle

    def _finish(self) -> None:
        self._total: SparseBlocks = self._handle.wait()

    def put(self) -> Iterable[torch.Tensor]:
        """Fill the others with zeros."""
        device, means = self.tensor.device, torch.zeros_like(self._residual)
        chosen = to_device(self._total.numbers.astype(np.int64), device)
        means[chosen] = to_device(self._total.blocks, device)
        return self.write(means)
