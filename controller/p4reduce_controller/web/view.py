# SPDX-License-Identifier: Apache-2.0
"""The contents of the page as JSON-ready values: rates, links, slots, and what jobs wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from p4reduce.control import control_pb2 as pb

from p4reduce_controller.controller import Controller
from p4reduce_controller.jobs.refusals import JobRefusedError
from p4reduce_controller.web.sample import MetricsSample
from p4reduce_controller.web.waiting import STUCK_AFTER, Stall, Stalls, sentence

KEPT = 300  # points of each chart: five minutes at one per second
WAITING_SHOWN = 4  # groups of a job's slots that are spelt out; the grid shows all

_FREE, _COLLECTING, _COMPLETE, _REPEATED = ".", "c", "d", "r"
_MARKS = {pb.FREE: _FREE, pb.COLLECTING: _COLLECTING, pb.COMPLETE: _COMPLETE}
# Outcomes that stand for a contribution, and those that stand for an answer repeated.
_SENT_UP = ("sums-sent-up", "sums-sent-up-again")


class History:
    """The latest points of each job's charts."""

    def __init__(self) -> None:
        self._points: dict[int, deque[tuple[float, ...]]] = {}

    def add(self, incarnation: int, point: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Add (time, contributions/s, bit/s up, bit/s down, retransmissions/s); return all
        points."""
        points = self._points.setdefault(incarnation, deque(maxlen=KEPT))
        points.append(point)
        return list(points)

    def forget_others(self, incarnations: set[int]) -> None:
        """Keep only the points of these jobs."""
        for gone in self._points.keys() - incarnations:
            del self._points[gone]


def view(
    controller: Controller,
    now: MetricsSample,
    before: MetricsSample | None,
    stalls: Mapping[int, Stall],
    watched: Stalls,
    history: History,
) -> dict[str, Any]:
    """Return everything that the page shows. Rates are per second since the sample before."""
    seconds = max(now.clock - before.clock, 1e-3) if before is not None else 0.0
    history.forget_others({job.incarnation for job in now.jobs})
    return {
        "time": now.time,
        "lease": controller.settings.lease,
        "program": controller.program,
        "switches": [_switch(each, now, before, seconds) for each in now.switches],
        "jobs": [
            _job(controller, job, now, before, seconds, stalls.get(job.incarnation), history)
            | {"slots": _slots(job, now, watched)}
            for job in now.jobs
        ],
    }


def _rate(now: float, before: float, seconds: float) -> float:
    return max(0.0, now - before) / seconds if seconds else 0.0


def _switch(
    switch: pb.Switch, now: MetricsSample, before: MetricsSample | None, seconds: float
) -> dict[str, Any]:
    counts = now.outcomes.get(switch.name, {})
    earlier = before.outcomes.get(switch.name, {}) if before is not None else {}
    outcomes = {
        name: {
            "frames": count.frames,
            "rate": _rate(count.frames, earlier[name].frames, seconds) if name in earlier else 0.0,
        }
        for name, count in counts.items()
        if count.frames
    }
    uplink: dict[str, Any] | None = None
    if switch.HasField("uplink"):
        sent = [(counts[name], earlier[name]) for name in _SENT_UP if name in earlier]
        uplink = {
            "port": switch.uplink.port,
            "parent": switch.uplink.parent,
            "works": switch.uplink.works,
            "reason": switch.uplink.reason,
            "rate": 8 * sum(_rate(a.bytes, b.bytes, seconds) for a, b in sent),
        }
    return {
        "name": switch.name,
        "address": switch.address,
        "connected": switch.connected,
        "reason": switch.reason,
        "since": switch.connected_since,
        "slots": switch.slots,
        "free": switch.slots_free,
        "ports": list(switch.ports),
        "uplink": uplink,
        "outcomes": outcomes,
    }


def _job(
    controller: Controller,
    job: pb.Job,
    now: MetricsSample,
    before: MetricsSample | None,
    seconds: float,
    stall: Stall | None,
    history: History,
) -> dict[str, Any]:
    figures = now.ranks.get(job.incarnation, {})
    earlier = before.ranks.get(job.incarnation, {}) if before is not None else {}
    members = {member.rank: member for member in job.members}
    ranks = [
        _rank(
            members.get(rank, pb.Member(rank=rank, state="missing")),
            figures.get(rank),
            earlier.get(rank),
            seconds,
        )
        for rank in range(job.world_size)
    ]
    blocks = sum(each.worker.blocks for each in figures.values())
    announced = sum(each.worker.blocks_announced for each in figures.values())
    totals = {
        name: sum(rank[name] for rank in ranks) for name in ("contributions", "up", "down", "again")
    }
    points = history.add(
        job.incarnation,
        (round(now.time, 1), *(round(totals[name], 1) for name in totals)),
    )
    return {
        "name": job.name,
        "id": job.incarnation,
        "state": pb.JobState.Name(job.state).lower(),
        "reason": job.reason,
        "created": job.created,
        "world_size": job.world_size,
        "slot_count": job.slot_count,
        "switches": list(job.switches),
        "density": announced / blocks if blocks else None,
        "waits_for": _waits_for(controller, job, stall, now.clock),
        "awaited": sorted(stall.missing) if stall and stall.seconds >= STUCK_AFTER else [],
        "ranks": ranks,
        "history": points,
        **totals,
    }


def _waits_for(controller: Controller, job: pb.Job, stall: Stall | None, clock: float) -> str:
    try:
        own = controller.jobs.named(job.name)
    except JobRefusedError:
        return ""
    return sentence(own, stall, clock) if own.incarnation == job.incarnation else ""


def _rank(
    member: pb.Member,
    figures: pb.RankStatistics | None,
    earlier: pb.RankStatistics | None,
    seconds: float,
) -> dict[str, Any]:
    now = figures or pb.RankStatistics()
    was = earlier or now
    return {
        "rank": member.rank,
        "state": member.state,
        "host": member.host,
        "pid": member.pid,
        "port": member.port,
        "switch": member.switch,
        "contributions": _rate(now.frames_up, was.frames_up, seconds),
        "up": 8 * _rate(now.bytes_up, was.bytes_up, seconds),
        "down": 8 * _rate(now.bytes_down, was.bytes_down, seconds),
        "again": _rate(now.worker.retransmissions, was.worker.retransmissions, seconds),
        "retransmissions": now.worker.retransmissions,
        "collectives": now.worker.collectives,
    }


def _slots(job: pb.Job, now: MetricsSample, watched: Stalls) -> list[dict[str, Any]]:
    """For each switch of a job: a mark per slot, and slots that wait for the same ranks."""
    found = []
    for name, slots in now.slots.items():
        if name not in job.switches:
            continue
        if slots is None:
            found.append({"switch": name, "hidden": True, "marks": "", "waiting": []})
            continue
        for each in slots.jobs:
            if each.incarnation != job.incarnation:
                continue
            marks: list[str] = []
            waiting: dict[tuple[int, tuple[int, ...]], list[int]] = {}
            for slot in each.slots:
                mark = _MARKS[slot.activity]
                if slot.activity == pb.COLLECTING:
                    if watched.repeated(job.incarnation, name, slot.slot, now.clock):
                        mark = _REPEATED
                    alike = slot.heard, tuple(slot.missing_ranks)
                    waiting.setdefault(alike, []).append(slot.slot)
                marks.append(mark)
            found.append(
                {
                    "switch": name,
                    "hidden": False,
                    "marks": "".join(marks),
                    "children": each.children,
                    "waiting": [
                        {"slots": slots, "heard": heard, "missing": missing}
                        for (heard, missing), slots in list(waiting.items())[:WAITING_SHOWN]
                    ],
                }
            )
    return found
