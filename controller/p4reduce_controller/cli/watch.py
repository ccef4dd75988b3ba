# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller watch`: jobs, rates and events, live in a terminal."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce_common.threads import new_thread
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from p4reduce_controller.cli.event_stream import events, is_gone
from p4reduce_controller.jobs.request_checks import printable
from p4reduce_controller.terminal import render

EVENTS_SHOWN = 12
PAST_JOBS_SHOWN = 3


@dataclass
class WatchSnapshot:
    """Jobs, switches and counters as the controller reported them at one moment."""

    time: float  # monotonic seconds
    switches: list[pb.Switch]
    jobs: list[pb.Job]
    outcomes: dict[str, dict[str, pb.Count]] = field(default_factory=dict)  # by switch
    ranks: dict[int, list[pb.RankStatistics]] = field(default_factory=dict)  # by incarnation


def is_there(client: ControlClient, job: str) -> bool:
    """Whether a job of that name exists or ended recently. Raises ControlError."""
    jobs = client.call(client.stub.ListJobs, pb.ListJobsRequest()).jobs
    return any(each.name == job for each in jobs)


def not_there(job: str) -> str:
    """Return the text about a job that does not exist."""
    return f"no such job yet: {printable(job)}; waiting"


def take_snapshot(client: ControlClient) -> WatchSnapshot:
    """Ask the controller for everything that the view shows. Raises ControlError."""
    stub = client.stub
    snapshot = WatchSnapshot(
        time.monotonic(),
        list(client.call(stub.ListSwitches, pb.ListSwitchesRequest()).switches),
        list(client.call(stub.ListJobs, pb.ListJobsRequest()).jobs),
    )
    there = [switch.name for switch in snapshot.switches if switch.connected]
    for name in there:
        counters = client.call(stub.GetCounters, pb.GetCountersRequest(switch=name))
        snapshot.outcomes[name] = {count.name: count for count in counters.counts}
    for job in snapshot.jobs if there else ():
        if job.state == pb.RUNNING:
            reply = client.call(stub.GetStatistics, pb.GetStatisticsRequest(job=job.name))
            snapshot.ranks[job.incarnation] = list(reply.ranks)
    return snapshot


def show(
    now: WatchSnapshot,
    before: WatchSnapshot | None,
    latest: list[pb.Event],
    job: str,
    trouble: str = "",
) -> RenderableType:
    """Draw the view. Rates are computed between the two snapshots.

    Args:
        now, before: the latest snapshot, and the one before it.
        latest: the latest events.
        job: the only one to show; empty: all.
        trouble: why there is no newer snapshot; empty if there is one.
    """
    jobs = [each for each in now.jobs if job in ("", each.name)]
    alive = [each for each in jobs if each.state in (pb.FORMING, pb.RUNNING)]
    past = [each for each in jobs if each.state not in (pb.FORMING, pb.RUNNING)]
    table = render.jobs_table(past[-PAST_JOBS_SHOWN:] + alive)
    missing = Text(not_there(job)) if job and not jobs else None
    parts: list[RenderableType] = [Text(trouble, style="bold red")] if trouble else []
    parts += [_headline(switch, len(now.switches)) for switch in now.switches]
    parts += [Text(), missing or table]
    parts += [_rank_rates(each, now, before) for each in alive if each.incarnation in now.ranks]
    for switch in now.switches:
        parts += [Text(), _outcome_rates(switch.name, now, before)]
    lines = [render.event_line(event) for event in latest] or [Text("none yet", style="dim")]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    parts += [Text(), Panel(Group(*lines), title="events", title_align="left", border_style="dim")]
    return Group(*parts)


def _headline(switch: pb.Switch, switches: int) -> Text:
    called = f"{switch.name} at " if switches > 1 else ""
    line = Text(f"switch {called}{switch.address}", style="bold")
    if not switch.connected:
        return line.append(f"  lost: {switch.reason}", style="bold red")
    used = switch.slots - switch.slots_free
    return line.append(f"  {used} of {switch.slots} slots in use", style="not bold")


def _rank_rates(job: pb.Job, now: WatchSnapshot, before: WatchSnapshot | None) -> RenderableType:
    earlier = {each.rank: each for each in before.ranks.get(job.incarnation, [])} if before else {}
    seconds = now.time - before.time if before else math.inf
    numbers = ["up/s", "payload", "up", "down", "density", "repeated"]
    table = render.columns(job.name, *numbers, right=numbers)
    for each in now.ranks[job.incarnation]:
        was = earlier.get(each.rank, each)
        own = each.worker
        up = each.frames_up - was.frames_up
        table.add_row(
            f"rank {each.rank}",
            render.quantity(up / seconds),
            f"{100 * (each.payload_up - was.payload_up) / up:.0f} %" if up > 0 else "",
            render.quantity((each.bytes_up - was.bytes_up) * 8 / seconds, "bit/s"),
            render.quantity((each.bytes_down - was.bytes_down) * 8 / seconds, "bit/s"),
            render.density(own),
            render.quantity(own.retransmissions),
        )
    return Group(Text(), table)


def _outcome_rates(switch: str, now: WatchSnapshot, before: WatchSnapshot | None) -> RenderableType:
    line = Text(f"{switch}: " if len(now.switches) > 1 else "")
    earlier = before.outcomes.get(switch, {}) if before else {}
    nothing = True
    for name, count in now.outcomes.get(switch, {}).items():
        if not count.frames:
            continue
        text, nothing = f"{name} {render.quantity(count.frames)}", False
        if before and name in earlier:
            rate = (count.frames - earlier[name].frames) / (now.time - before.time)
            if rate > 0:  # a switch that has started again counts from 0
                text += f" ({render.quantity(rate)}/s)"
        line.append(text + "   ")
    return line.append("no frames so far", style="dim") if nothing else line


class Follower:
    """Collects events on a thread of its own, until it ends: `error` then says why."""

    def __init__(self, client: ControlClient, job: str) -> None:
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._latest: deque[pb.Event] = deque(maxlen=EVENTS_SHOWN)
        self._client = client
        self._job = job
        new_thread(self._follow, "events", self._failed).start()

    @property
    def latest(self) -> list[pb.Event]:
        """The latest events, oldest first."""
        return list(self._latest)

    def _follow(self) -> None:
        try:
            for event in events(self._client, self._job, EVENTS_SHOWN, lambda said: None):
                self._latest.append(event)
        except ControlError as error:  # no fault of this thread, which would be logged
            self._failed(error)

    def _failed(self, cause: BaseException) -> None:
        self.error = cause
        self.ended.set()


def watch_live(client: ControlClient, console: Console, job: str, interval: float) -> None:
    """Redraw every `interval` seconds, and continue if the controller restarts.

    Raises ControlError if there is none at first, or if one refuses.
    """
    before: WatchSnapshot | None = None
    now = take_snapshot(client)
    follower = Follower(client, job)
    trouble = ""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            live.update(show(now, before, follower.latest, job, trouble), refresh=True)
            if follower.ended.wait(interval):
                break
            try:
                before, now = None if trouble else now, take_snapshot(client)
                trouble = ""
            except ControlError as error:
                if not is_gone(error):
                    raise
                trouble = f"{error}; waiting for one"
    if follower.error is not None:
        raise follower.error
