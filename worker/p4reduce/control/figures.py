# SPDX-License-Identifier: Apache-2.0
"""A worker's counts, for the controller."""

from __future__ import annotations

from dataclasses import asdict

from p4reduce.control import control_pb2 as pb
from p4reduce.statistics import Counts

_FIELDS = [field.name for field in pb.WorkerStatistics.DESCRIPTOR.fields]


def worker_statistics(counts: Counts) -> pb.WorkerStatistics:
    """Return counts, or `Statistics`, as the message that heartbeats carry."""
    everything = asdict(counts)
    return pb.WorkerStatistics(**{name: everything[name] for name in _FIELDS})
