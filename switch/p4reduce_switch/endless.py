# SPDX-License-Identifier: Apache-2.0
"""What becomes of a packet whose program loops for ever: it is dropped, which is logged slowly."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from p4reduce_switch.program.limits import MAX_TURNS
from p4reduce_switch.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from p4reduce_switch.state.pipeline_stats import PipelineStats

__all__ = ["endless_loop", "say_endless_loop"]

log = logging.getLogger(__name__)
warnings = RateLimitedLog(log)


def endless_loop(stats: PipelineStats, where: str) -> None:
    """Count and log it; the generated code drops the packet. BMv2 goes on for ever."""
    stats.dropped_loop += 1
    say_endless_loop(where)


def say_endless_loop(where: str) -> None:
    """Log it, at a slow rate: packets decide how often there is one."""
    warnings.warning(
        "a loop at %s took more than %d turns; its packet was dropped", where, MAX_TURNS
    )
