# SPDX-License-Identifier: Apache-2.0
"""What stands for a compiled pipeline where a test is about ports and the loop."""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_switch.state.pipeline_stats import PipelineStats
from p4reduce_switch.state.timers import Timers

Process = Callable[[int, bytes], list[tuple[int, bytes]]]


class Program:
    """Any function of port and frame."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.stats = PipelineStats()
        self.timers = Timers()
        self.queues = None
        self.native = None
        self.has_queues = False


def cable(port: int, frame: bytes) -> list[tuple[int, bytes]]:
    """Ports 1 and 2 joined by a wire."""
    return [(3 - port, frame)]
