# SPDX-License-Identifier: Apache-2.0
"""Arrays of several ranks as lanes, their sums, and back, by the code that ships."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.session.lane_codec import codec_for
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack, unpack

Array = npt.NDArray[Any]


class EncodedRank:
    """An all-reduce of one rank, with frames of its own.

    Args:
        array: flat.
        world: size.
        precision: as of `allreduce`.
        op: likewise.
        seed: likewise.
        rank: whose it is.
    """

    def __init__(
        self,
        array: Array,
        world: int,
        precision: str | None = None,
        op: Operation = Operation.SUM,
        seed: int = 0,
        rank: int = 0,
    ) -> None:
        self.out = np.empty_like(array)
        plan = plans.allreduce(array, op, None, self.out, precision, seed, world_size=world)
        self.format = plan.lane_format
        self.collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=0,
            slots=4,
            timeout=1.0,
            lane_format=plan.lane_format,
            noise=plan.noise(rank, 0),
        )
        self.exponents = self.collective.exponents[:-1]
        self._blocks = np.arange(self.collective.count)
        self._frames = FrameBuffer(len(self._blocks))
        self._codec = codec_for(self.collective, world, self._frames)

    def lanes(self, agreed: Array) -> Array:
        """Return all blocks' lanes, int64, with the exponents that the ranks agreed on."""
        self._codec.encode(self._blocks, agreed, self._blocks)
        return unpack(self._frames.payload, self.format).astype(np.int64)

    def read(self, sums: Array, agreed: Array) -> Array:
        """Return what sums of lanes become."""
        lanes = sums.astype(lane_type(self.format))
        self._frames.payload[:] = pack(lanes, self.format)
        with np.errstate(over="ignore"):
            self._codec.decode(self._blocks, agreed, self._blocks)
        return self.out


def summed(ranks: Array, precision: str | None, op: Operation, seed: int) -> tuple[Array, Array]:
    """Return the sums of the lanes of all ranks, and what they become; `ranks` has a row each."""
    world = len(ranks)
    every = [
        EncodedRank(array, world, precision, op, seed, rank) for rank, array in enumerate(ranks)
    ]
    agreed = np.max([one.exponents for one in every], axis=0)
    sums = np.sum([one.lanes(agreed) for one in every], axis=0)
    return sums, every[0].read(sums, agreed)
