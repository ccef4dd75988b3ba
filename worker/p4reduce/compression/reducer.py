# SPDX-License-Identifier: Apache-2.0
"""Compressed all-reduce over a communicator."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from p4reduce.compression.base import Array, Compressed, Compressor
from p4reduce.wire.calls import MEAN, SUM, Operation


class SumsTensors(Protocol):
    """What `CompressedAllreduce` needs of a communicator, such as that of `p4reduce.init()`."""

    @property
    def size(self) -> int:
        """World size."""
        ...

    def allreduce(
        self,
        array: Array,
        op: Operation = SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Array:
        """Return the sum over all ranks, or their mean, in lanes of `precision`."""
        ...


class CompressedAllreduce:
    """Sums tensors over all ranks, each sending what its compressor chooses.

    If the compressor has narrow lanes, contributions travel in them. They are rounded at random, on
    the scale that the ranks agree on.

    Every rank makes the same calls in the same order, with compressors of the same settings.

    Attributes:
        latest: what this rank sent of each tensor, most recently.

    Example:
        reduce = CompressedAllreduce(communicator, Cat(world_size=4, cost=link))
        mean = reduce.mean(gradient, "layer1.weight")
    """

    def __init__(self, communicator: SumsTensors, compressor: Compressor) -> None:
        """Raises ValueError if the compressor is made for another world size."""
        if compressor.world_size != communicator.size:
            raise ValueError(
                f"the compressor is made for {compressor.world_size} ranks, but the communicator "
                f"has {communicator.size}"
            )
        self.communicator = communicator
        self.compressor = compressor
        self.latest: dict[str, Compressed] = {}

    def sum(self, gradient: Array, name: str) -> Array:
        """Return the sum of what each rank chose to send, with the gradient's shape and dtype."""
        return self._reduce(gradient, name, SUM)

    def mean(self, gradient: Array, name: str) -> Array:
        """Return the mean of what each rank sent, even if the sum exceeds the dtype's range."""
        return self._reduce(gradient, name, MEAN)

    def _reduce(self, gradient: Array, name: str, op: Operation) -> Array:
        wanted = self.compressor.propose(name, gradient)
        agreed = None
        if wanted is not None:
            first = proposal_lanes(self.compressor, self.compressor.seed)
            agreed = np.asarray(self.communicator.allreduce(wanted, name=f"{name}/level", **first))
        sent = self.compressor.compress(name, gradient, agreed)
        self.latest[name] = sent
        lanes = in_lanes(sent, self.compressor.seed)
        total = self.communicator.allreduce(sent.values, op, name, **lanes)
        return self.compressor.decompress(name, np.asarray(total))


def in_lanes(sent: Compressed, seed: int | None) -> dict[str, Any]:
    """Return the arguments of an all-reduce of a contribution: its precision and seed."""
    if sent.lane_bits == 32:
        return {}
    return {"precision": f"int{sent.lane_bits}", "seed": seed}


def proposal_lanes(compressor: Compressor, seed: int | None) -> dict[str, Any]:
    """As `in_lanes`, for the proposals that the ranks sum first."""
    if compressor.lane_bits == 32 or not compressor.narrow_proposals:
        return {}
    return {"precision": f"int{compressor.lane_bits}", "seed": seed}
