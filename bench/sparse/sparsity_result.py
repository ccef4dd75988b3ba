# SPDX-License-Identifier: Apache-2.0
"""What `sparsity` measures at one point, and its plot draws."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One point. Times are those of the slowest rank, in milliseconds.

    Attributes:
        density: share of the blocks that each rank has.
        union: share that any rank has.
        median_ms, fastest_ms, slowest_ms: of the repetitions.
        model_ms: union's density x S / B; the ring's bound for the ring.
        over_model: median by model.
        ring_bound_ms: 2 (n - 1) / n x S / B.
        times_ring: how many times faster than that bound.
        kilobytes_up, kilobytes_down: of frames through a rank's link, on average, with
            repetitions.
        repeated: share of the contributions that timers sent again.
    """

    switch: str
    workers: int
    overlap: str
    density: float
    union: float
    repetitions: int
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    model_ms: float
    over_model: float
    ring_bound_ms: float
    times_ring: float
    kilobytes_up: float
    kilobytes_down: float
    repeated: float
