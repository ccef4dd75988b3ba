# SPDX-License-Identifier: Apache-2.0
"""The ranks of a simulation: the real slot machine, without threads, sockets and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import AGGREGATION_PORT, PAYLOAD_BYTES, Endpoint
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Level
from p4reduce_controller.values.mac_ip import format_ip, format_mac

Array = npt.NDArray[Any]

RANK_UDP_PORT = 49152
_LARGEST = 100  # values from minus this to this, so that float32 has their sums exactly


@dataclass(frozen=True)
class Tensor:
    """What all ranks reduce in one call.

    Attributes:
        dtype: "float32" or "int32".
        blocks: of 256 numbers each.
        density: the share of the blocks that a rank has; each draws its own. The others are zero.
    """

    dtype: str
    blocks: int
    density: float = 1.0

    def of_rank(self, rank: int, seed: Sequence[int]) -> Array:
        """A rank's input, of integers that are small enough for all sums to be exact."""
        draw = np.random.default_rng([*seed, rank])
        shape = self.blocks, PAYLOAD_BYTES // 4
        values = draw.integers(-_LARGEST, _LARGEST, shape, endpoint=True)
        values[draw.random(self.blocks) >= self.density] = 0
        return values.reshape(-1).astype(self.dtype)

    def sum_of(self, ranks: int, seed: Sequence[int]) -> Array:
        """The exact sum of all ranks' inputs."""
        total = np.zeros(self.blocks * PAYLOAD_BYTES // 4, np.int64)
        for rank in range(ranks):
            total += self.of_rank(rank, seed).astype(np.int64)
        return total.astype(self.dtype)


def endpoint_of(rank: int) -> Endpoint:
    """A rank's addresses."""
    mac, ip = format_mac(0x02_00_00_01_00_00 + rank), format_ip(0x0A4D0001 + rank)
    return Endpoint(mac, ip, RANK_UDP_PORT)


def switch_endpoint(number: int) -> Endpoint:
    """A switch's addresses."""
    mac, ip = format_mac(0x02_70_34_00_00_00 + number), format_ip(0x0A4DFF00 - number)
    return Endpoint(mac, ip, AGGREGATION_PORT)


class Rank:
    """One rank of a job.

    Args:
        rank, world_size, slots, few: as of `SlotMachine`.
        job: its incarnation id.
        switch: the one that it is at.
        levels: that switch and those above it.
        buffer: where frames that arrive are put, used by all ranks in turn.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        job: int,
        slots: int,
        switch: Endpoint,
        levels: Sequence[Level],
        buffer: FrameBuffer,
        few: int,
    ) -> None:
        self.machine = SlotMachine(
            slots=slots,
            job=job,
            rank=rank,
            world_size=world_size,
            here=endpoint_of(rank),
            switch=switch,
            levels=levels,
            few=few,
        )
        self.results: list[Array] = []
        self._collectives: list[Collective] = []
        self._world_size = world_size
        self._slots = slots
        self._buffer = buffer

    def submit(self, source: Array) -> Array:
        """Call an all-reduce, and return where its result will be."""
        result = np.full_like(source, -1)
        plan = plans.allreduce(source, Operation.SUM, None, result, world_size=self._world_size)
        collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=len(self._collectives),
            slots=self._slots,
            timeout=1.0,
            lane_format=plan.lane_format,
        )
        # By the simulation's clock, which never comes so far.
        collective.started, collective.deadline = 0.0, 1e9
        self.results.append(result)
        self._collectives.append(collective)
        self.machine.submit(collective)
        return result

    @property
    def over(self) -> bool:
        """Whether all that was called is over; raises what a collective ended with."""
        for collective in self._collectives:
            if collective.error is not None:
                raise collective.error
        return self.machine.idle

    def receive(self, frame: bytes, now: float) -> None:
        """Take a frame that has arrived."""
        self._buffer.put(0, frame)
        self.machine.receive(self._buffer, 1, now)

    def send(self, now: float) -> list[tuple[int, bytes]]:
        """Return what it has to send, for its port."""
        rows = self.machine.take_sendable()
        frames = [(0, self.machine.outgoing.get(row)) for row in rows.tolist()]
        if frames:
            self.machine.sent(rows, now)
        return frames
