# SPDX-License-Identifier: Apache-2.0
"""A sample of everything that the control API shows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
from p4reduce.control import control_pb2 as pb

from p4reduce_controller.service.control_api import Service

_T = TypeVar("_T")


class ApiError(Exception):
    """The control API refused. `code` is gRPC's status code."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _InProcessContext:
    """What the service's methods see of a caller in the same process."""

    async def abort(self, code: grpc.StatusCode, details: str = "", _: Any = ()) -> NoReturn:
        raise ApiError(code, details)


@dataclass(frozen=True)
class MetricsSample:
    """The state of jobs and switches at one moment. Rates are computed from two samples."""

    time: float  # seconds since the epoch
    clock: float  # of the monotonic clock, in seconds
    jobs: tuple[pb.Job, ...]
    switches: tuple[pb.Switch, ...]
    ranks: Mapping[int, Mapping[int, pb.RankStatistics]]  # by incarnation and rank
    outcomes: Mapping[str, Mapping[str, pb.Count]]  # by switch and outcome
    # By switch; None where the switch does not show its slots.
    slots: Mapping[str, pb.Slots | None] = field(default_factory=dict)


async def take(service: Service, *, slots: bool) -> MetricsSample:
    """Ask the service for everything; with `slots`, for the state of each slot too.

    A lost switch has no counters and no slots.
    """
    context: Any = _InProcessContext()
    jobs = (await service.ListJobs(pb.ListJobsRequest(), context)).jobs
    switches = (await service.ListSwitches(pb.ListSwitchesRequest(), context)).switches
    ranks = {}
    for job in jobs:
        request = pb.GetStatisticsRequest(job=job.name)
        statistics = await _unless_gone(service.GetStatistics(request, context))
        if statistics is not None and statistics.job.incarnation == job.incarnation:
            ranks[job.incarnation] = {each.rank: each for each in statistics.ranks}
    outcomes, shown = {}, {}
    for switch in switches:
        of_counters = pb.GetCountersRequest(switch=switch.name)
        counters = await _unless_gone(service.GetCounters(of_counters, context))
        counts = counters.counts if counters is not None else ()
        outcomes[switch.name] = {count.name: count for count in counts}
        if slots:
            of_slots = pb.GetSlotsRequest(switch=switch.name)
            shown[switch.name] = await _unless_gone(service.GetSlots(of_slots, context))
    return MetricsSample(
        time.time(), time.monotonic(), tuple(jobs), tuple(switches), ranks, outcomes, shown
    )


async def _unless_gone(call: Awaitable[_T]) -> _T | None:
    """None where a job or switch went meanwhile, or does not show what was asked for."""
    try:
        return await call
    except ApiError:
        return None
