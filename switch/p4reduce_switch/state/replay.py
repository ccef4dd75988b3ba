# SPDX-License-Identifier: Apache-2.0
"""Replayed packets: resubmitted, recirculated, and cloned in egress.

BMv2 puts them back into its queues. Here they wait in a list until the present packet is done. So
everything that a frame leads to happens within one call of `process`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from p4reduce_switch.state.pipeline_stats import PipelineStats

MAX_REPLAYS = 256
"""So many times at most is ingress or egress run again for one frame; what waits then is dropped
and counted (`PipelineStats.dropped_replay`). A program that resubmits without end holds up BMv2's
packets for good; here it must not."""

_Frames: TypeAlias = list[tuple[int, bytes]]


class ReplayQueue:
    """The packets that still have to be run for the present frame.

    `waiting` has (port, function, arguments). Without a port the function is ingress, which returns
    the frames to send; with a port it is egress for one copy, which returns a frame or None.
    """

    __slots__ = ("_stats", "waiting")

    def __init__(self, stats: PipelineStats) -> None:
        self._stats = stats
        self.waiting: deque[tuple[int | None, Callable[..., Any], tuple[Any, ...]]] = deque()

    def run(self, frames: _Frames) -> None:
        """Run all waiting packets and those that they lead to; add the frames to send to
        `frames`."""
        waiting = self.waiting
        for _ in range(MAX_REPLAYS):
            if not waiting:
                return
            port, function, arguments = waiting.popleft()
            out = function(*arguments)
            if port is None:
                frames += out
            elif out is not None:
                frames.append((port, out))
        self._stats.dropped_replay += len(waiting)
        waiting.clear()
