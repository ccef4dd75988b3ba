# SPDX-License-Identifier: Apache-2.0
"""The price of an all-reduce on the link at hand, found out by all-reducing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from p4reduce.compression.base import Array
from p4reduce.compression.costs import (
    BLOCK_BYTES,
    EMPTY_FRAME_BYTES,
    ETHERNET_OVERHEAD_BYTES,
    SwitchLink,
)


class Measurable(Protocol):
    """What is needed of a communicator (`p4reduce.init()` returns one)."""

    @property
    def size(self) -> int:
        """World size."""
        ...

    @property
    def slots(self) -> int:
        """Slots of the job."""
        ...

    def allreduce(self, array: Array, *, name: str) -> Array:
        """The sum over all ranks."""
        ...


def measure_link(
    communicator: Measurable,
    *,
    blocks: int = 1024,
    repetitions: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> SwitchLink:
    """Measure round trip and rate; all ranks call it at the same time and get the same answer.

    A block alone takes two rounds: one opens its stripe. What `blocks` of them take beyond that
    is the rate, of whatever limits it: link, switch or worker. The median of the repetitions
    counts, and of the ranks' medians the mean.

    Args:
        communicator: the one to be used later; nothing else may be under way on it.
        blocks: of the larger all-reduce, 1 KiB each; several times the number of slots, or it
            is the round trips that are timed once more.
        repetitions: of each size.
        clock: seconds.

    Raises:
        ValueError: blocks or repetitions are too few to tell anything.
    """
    if blocks < 2 or repetitions < 1:
        raise ValueError(f"blocks {blocks} must be at least 2 and repetitions {repetitions} 1")
    lanes = BLOCK_BYTES // 4
    small, large = np.ones(lanes, dtype=np.float32), np.ones(blocks * lanes, dtype=np.float32)
    seconds = []
    for array, name in ((small, "measure/round trip"), (large, "measure/rate")):
        communicator.allreduce(array, name=name)  # what happens only once is over after this
        taken = []
        for _ in range(repetitions):
            start = clock()
            communicator.allreduce(array, name=name)
            taken.append(clock() - start)
        seconds.append(float(np.median(taken)))
    mine = np.array(seconds, dtype=np.float64)
    mean = np.asarray(communicator.allreduce(mine, name="measure/mean")) / communicator.size
    rtt = float(mean[0]) / 2
    # A clock too coarse to see the difference must not divide by zero.
    beyond = max(float(mean[1]) - float(mean[0]), 1e-9)
    frame = EMPTY_FRAME_BYTES + ETHERNET_OVERHEAD_BYTES
    stripes = min(communicator.slots, blocks)
    bits = 8 * ((blocks - 1) * (frame + BLOCK_BYTES) + (stripes - 1) * frame)
    return SwitchLink(communicator.size, bits / beyond, rtt, communicator.slots)
