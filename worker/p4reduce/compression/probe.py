# SPDX-License-Identifier: Apache-2.0
"""Measures the price of an all-reduce on the present link."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from p4reduce.compression.base import Array
from p4reduce.compression.costs import ETHERNET_OVERHEAD_BYTES, SwitchLink
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_BYTES

BRIEF = 4  # times as many repetitions


class Measurable(Protocol):
    """What `measure_link` needs of a communicator, such as that of `p4reduce.init()`."""

    @property
    def size(self) -> int:
        """World size."""
        ...

    @property
    def slots(self) -> int:
        """Slots of the job."""
        ...

    def allreduce(self, array: Array, *, name: str) -> Array:
        """Return the sum over all ranks."""
        ...


def measure_link(
    communicator: Measurable,
    *,
    blocks: int = 1024,
    repetitions: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> SwitchLink:
    """Measure round trip and rate; all ranks call it at the same time and get the same answer.

    One block takes two rounds, the first of which opens its stripe. The time that `blocks` blocks
    take beyond that gives the rate of the bottleneck: link, switch or worker. The same number of
    zero blocks takes one round of frames without lanes. Without the round trip and the bytes, its
    time is the cost of frames, which in software hardly depends on their length. Each rank takes
    the median of the repetitions, and the result is the mean of these medians.

    Args:
        communicator: the one to be used later; nothing else may be in flight on it.
        blocks: of the larger all-reduce, 1 KiB each: several times the number of slots, so
            that it measures the rate and not the round trip.
        repetitions: of the larger all-reduce; the brief ones are repeated four times as often.
        clock: seconds.

    Raises:
        ValueError: blocks or repetitions are too few for a result.
    """
    if blocks < 2 or repetitions < 1:
        raise ValueError(f"blocks {blocks} must be at least 2 and repetitions {repetitions} 1")
    lanes = PAYLOAD_BYTES // 4
    large = np.ones(blocks * lanes, dtype=np.float32)
    # What is soon over is repeated more often: in it a single wait for a processor shows more.
    timed = (
        ("measure/round trip", large[:lanes], BRIEF * repetitions),
        ("measure/rate", large, repetitions),
        ("measure/frame", np.zeros_like(large), BRIEF * repetitions),
    )
    seconds = []
    for name, array, times in timed:
        communicator.allreduce(array, name=name)  # what happens only once is over after this
        taken = []
        for _ in range(times):
            start = clock()
            communicator.allreduce(array, name=name)
            taken.append(clock() - start)
        seconds.append(float(np.median(taken)))
    mine = np.array(seconds, dtype=np.float64)
    mean = np.asarray(communicator.allreduce(mine, name="measure/mean")) / communicator.size
    one, full, empty = (float(value) for value in mean)
    rtt = one / 2
    # A clock too coarse to see the difference must not divide by zero.
    beyond = max(full - one, 1e-9)
    frame = EMPTY_FRAME_BYTES + ETHERNET_OVERHEAD_BYTES
    stripes = min(communicator.slots, blocks)
    bits = 8 * ((blocks - 1) * (frame + PAYLOAD_BYTES) + (stripes - 1) * frame)
    link = SwitchLink(communicator.size, bits / beyond, rtt, communicator.slots)
    opening = link.traffic(0, 0, blocks)
    if empty <= float(link.seconds(opening)):
        return link
    return replace(link, frame_seconds=(empty - rtt) / (opening.frames_up + opening.frames_down))
