# SPDX-License-Identifier: Apache-2.0
"""A bucket of an accelerator's, rounded to narrow lanes there, so that only lanes are copied.

    device: exponents ──▸ host: the ranks' largest ──▸ device: lanes ──▸ host: their sums
                                                                             │
    device: the mean ◂───────────────────────────────────────────────────────┘

Exponents are a byte per block. In machine code on the host the ranks agree on them beside the sums
(`tensors.quantise`); here they do before, by an all-gather of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from p4reduce.handle import Handle
from p4reduce.tensors.noise import Noise
from p4reduce.tensors.precision import PRECISIONS, lane_format
from p4reduce.torch.accelerators import Accelerator
from p4reduce.torch.hooks.sending import send
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.narrow import LANES, NarrowLanes, block_exponents, to_rows
from p4reduce.torch.staging import StagedWork, start_with_jobs
from p4reduce.torch.tensors import memory_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Of buckets that are rounded on the device. float64 is copied to the host as it is."""


def start_on_device(
    accelerator: Accelerator, state: HookState, bucket: Any, hook: str, lane_bits: int
) -> StagedWork:
    """Start the mean of a bucket.

    Args:
        accelerator: that has the bucket.
        state: of the hook.
        bucket: of DDP, of one of `DTYPES`.
        hook: its name, for the statistics.
        lane_bits: 16, 8 or 4.

    Raises:
        ValueError: there are too many ranks for such lanes.
    """
    mean = _DeviceMean(accelerator, state, bucket, hook, f"int{lane_bits}")
    return start_with_jobs(
        accelerator,
        state.channel.order.later,
        lambda handle: state.channel.waiter(handle, "hook"),
        start=mean.start,
        down=mean.measure,
        up=mean.put,
        result=mean.tensor,
    )


class _DeviceMean:
    def __init__(
        self, accelerator: Accelerator, state: HookState, bucket: Any, hook: str, precision: str
    ) -> None:
        self.tensor: torch.Tensor = bucket.buffer()
        self._accelerator, self._state, self._hook = accelerator, state, hook
        self._name, self._priority = state.name(bucket), state.priority(bucket)
        self._format = lane_format(np.dtype(np.float32), precision, state.channel.size)
        assert self._format is PRECISIONS[precision]
        self._residual = self._kept() if state.error_feedback else None
        blocks = -(-self.tensor.numel() // self._format.lanes)
        self._exponents = _host(accelerator, (blocks,), torch.uint8)
        self._lanes = _host(accelerator, (blocks, self._format.lanes), LANES[self._format])

    def measure(self) -> Iterable[torch.Tensor]:
        """Find the exponents, after the caller's work."""
        self._rows = to_rows(self.tensor, self._format)
        if self._residual is not None:
            self._rows = self._rows + self._residual
        self._exponents.copy_(block_exponents(self._rows), non_blocking=True)
        return [self.tensor]

    def start(self) -> OutcomeWork:
        """Agree, round, and start the sum, when `measure` is done and this call's turn has come."""
        state = self._state
        return send(state, self._hook, self.tensor, self._lanes.nbytes, self._begin, lambda: None)

    def put(self) -> Iterable[torch.Tensor]:
        """Write the mean, when the sums are there."""
        sums = self._lanes.to(self.tensor.device, non_blocking=True)
        means = self._narrow.decode(sums).view(-1)[: self.tensor.numel()]
        self.tensor.copy_(means.view(self.tensor.shape))
        return [self.tensor]

    def _begin(self, timeout: float | None) -> Handle[Any]:
        comm, name = self._state.channel.comm, self._name
        own = memory_of(self._exponents, np.uint8)
        every = comm.allgather_async(
            own, [own.size] * comm.size, f"{name}/exponents", timeout=timeout
        ).wait()
        agreed = every.reshape(comm.size, -1).max(axis=0)
        noise = Noise(self._state.seed, comm.rank, comm.calls)
        self._narrow = NarrowLanes(self._format, comm.size, agreed, noise, self.tensor.device)
        # Other work of the caller's stream has nothing to do with it.
        self._accelerator.down(self._encode, after_caller=False).synchronize()
        lanes = memory_of(self._lanes)
        precision = "int4" if self._format is Format.INT4 else None
        return comm.allreduce_async(
            lanes,
            Operation.SUM,
            name,
            lanes,
            timeout,
            precision=precision,
            priority=self._priority,
        )

    def _encode(self) -> Iterable[torch.Tensor]:
        rows = self._rows
        lanes = self._narrow.encode(rows)
        self._lanes.copy_(lanes, non_blocking=True)
        if self._residual is not None:
            self._residual.copy_(self._narrow.left(rows, lanes))
        del self._rows
        return []

    def _kept(self) -> torch.Tensor:
        kept = self._state.kept.get(self._name)
        if kept is None:
            rows = to_rows(torch.zeros_like(self.tensor), self._format)
            kept = self._state.kept[self._name] = rows
        return kept


def _host(accelerator: Accelerator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return accelerator.room(torch.empty(shape, dtype=dtype, device="meta"))
