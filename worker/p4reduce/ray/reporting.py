# SPDX-License-Identifier: Apache-2.0
"""A step's figures in `ray.train.report`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray.train

from p4reduce.torch.logged import StepLog, log_statistics

_log: StepLog | None = None  # of this worker's process
_reports = 0


def begin() -> None:
    """Start counting. Ray Train's backend calls it in each worker."""
    global _log, _reports
    _log, _reports = log_statistics(None), 0
    try:
        _log.start()
    except ValueError:  # a group of one rank, or of another backend, has no job on the switch
        _log = None


def report(metrics: Mapping[str, Any], checkpoint: Any = None, **others: Any) -> None:
    """Call `ray.train.report` with what this worker sent and received since the last report.

    The names are those of `p4reduce.torch.log_statistics`: "p4reduce/bytes_sent",
    "p4reduce/bytes_received", "p4reduce/step_seconds", "p4reduce/retransmissions" and
    "p4reduce/level". All workers call it. Of their metrics Ray Train keeps rank 0's.

    Args:
        metrics: as for `ray.train.report`; a name that is here is not overwritten.
        checkpoint: as for `ray.train.report`.
        others: as for `ray.train.report`.
    """
    global _reports
    _reports += 1
    figures = {} if _log is None else _log(_reports)
    ray.train.report({**figures, **metrics}, checkpoint=checkpoint, **others)
