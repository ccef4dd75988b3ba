# SPDX-License-Identifier: Apache-2.0
"""What the log says of P4 programs: `log_msg`, assertions that fail, and loops without an end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from p4reduce_switch.program.limits import MAX_ITERATIONS
from p4reduce_switch.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from p4reduce_switch.state.pipeline_stats import PipelineStats

log = logging.getLogger(__name__)
warnings = RateLimitedLog(log)


def log_msg(text: str, values: Sequence[int]) -> None:
    """Log a program's message. Each `{}` is replaced by the next value; a `{}` without one
    stays."""
    *parts, last = text.split("{}")
    filled = [part + str(value) for part, value in zip(parts, values, strict=False)]
    log.info("%s", "".join(filled) + "{}".join([*parts[len(filled) :], last]))


def assertion_failed(stats: PipelineStats, kind: str, where: str) -> None:
    """Count and log the failure. The generated code drops the packet; BMv2 would end the
    process."""
    stats.dropped_assertion += 1
    log_assertion(kind, where)


def log_assertion(kind: str, where: str) -> None:
    log.error("%s failed at %s", kind, where)


def endless_loop(stats: PipelineStats, where: str) -> None:
    """Count and log the loop. The generated code drops the packet. BMv2 would loop for ever."""
    stats.dropped_loop += 1
    log_endless_loop(where)


def log_endless_loop(where: str) -> None:
    """Log it, at a slow rate: packets decide how often there is one."""
    warnings.warning(
        "a loop at %s took more than %d turns; its packet was dropped", where, MAX_ITERATIONS
    )
