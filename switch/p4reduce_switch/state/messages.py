# SPDX-License-Identifier: Apache-2.0
"""What P4 programs say: `log_msg`, and assertions that fail."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4reduce_switch.state.pipeline_stats import PipelineStats

__all__ = ["assertion_failed", "log_msg"]

log = logging.getLogger(__name__)


def log_msg(text: str, values: Sequence[int]) -> None:
    """Log a program's message, each `{}` replaced by the next value; a `{}` without one stays."""
    *parts, last = text.split("{}")
    filled = [part + str(value) for part, value in zip(parts, values, strict=False)]
    log.info("%s", "".join(filled) + "{}".join([*parts[len(filled) :], last]))


def assertion_failed(stats: PipelineStats, kind: str, where: str) -> None:
    """Count and log it; the generated code drops the packet. BMv2 ends the process."""
    stats.dropped_assertion += 1
    log.error("%s failed at %s", kind, where)
