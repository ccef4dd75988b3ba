# SPDX-License-Identifier: Apache-2.0
"""The settings of egress queues: number, depth and rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_PRIORITIES = 8  # standard_metadata.priority has 3 bits
MAX_DEPTH = (1 << 19) - 1  # enq_qdepth has 19 bits
MAX_RATE = 1_000_000_000  # the clock counts nanoseconds


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of egress queues: each port has `priorities` of them, each with a depth and a
    rate.

    The defaults are those of simple_switch.

    Attributes:
        priorities: queues per port; a frame whose `priority` is not below this is dropped.
        depth: the maximum number of frames in a queue.
        rate: frames per second that leave a queue; 0: the port's own rate.
        port_depths, port_rates: the same for single ports.

    Raises:
        ValueError: a number is out of range.
    """

    priorities: int = 1
    depth: int = 64
    rate: int = 0
    port_depths: Mapping[int, int] = field(default_factory=dict)
    port_rates: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check("priority queues", self.priorities, 1, MAX_PRIORITIES)
        for depth in (self.depth, *self.port_depths.values()):
            _check("a queue's depth", depth, 0, MAX_DEPTH)
        for rate in (self.rate, *self.port_rates.values()):
            _check("a queue's rate", rate, 0, MAX_RATE)

    @property
    def is_default(self) -> bool:
        return self == QueueSettings()

    def depth_of(self, port: int) -> int:
        return self.port_depths.get(port, self.depth)

    def interval_ns(self, port: int) -> int:
        """Return the nanoseconds between two frames of a queue."""
        rate = self.port_rates.get(port, self.rate)
        return 1_000_000_000 // rate if rate else 0


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{what}: {value} is not within {least} to {most}")
