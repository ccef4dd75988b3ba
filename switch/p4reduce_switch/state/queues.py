# SPDX-License-Identifier: Apache-2.0
"""Egress queues as in simple_switch: one per port and priority, with a depth and a rate.

A queued frame may leave after the frames before it, at the queue's rate. Of the frames that may
leave, the highest priority goes first, then the one that has waited longest. csrc/p4/queues.c does
the same in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from p4reduce_switch.state.pipeline_stats import PipelineStats
from p4reduce_switch.state.queue_settings import QueueSettings
from p4reduce_switch.state.replay import ReplayQueue
from p4reduce_switch.state.timers import Clock

_MOST_RELEASED = 1024  # by one call, so that circulating frames do not block others


@dataclass(slots=True)
class _Queued:
    """A copy of a packet; how many waited before it, and when it may leave."""

    due_ns: int
    number: int
    enqueued_us: int
    depth: int
    egress: Callable[..., bytes | None]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class _Queue:
    waiting: deque[_Queued] = field(default_factory=deque)
    last_due_ns: int | None = None


class EgressQueues:
    """The queues of all ports. Used by one thread.

    Args:
        settings: number, depth and rate.
        stats: counts dropped frames.
        replays: runs packets that egress replays.
        clock: nanoseconds. now: microseconds since the program was loaded.

    Attributes:
        ready: whether a port can take a frame now; the owner of the ports sets it.
    """

    def __init__(
        self,
        settings: QueueSettings,
        stats: PipelineStats,
        replays: ReplayQueue,
        clock: Clock,
        now: Callable[[], int],
    ) -> None:
        self.ready: Callable[[int], bool] = _always
        self._settings = settings
        self._stats = stats
        self._replays = replays
        self._clock = clock
        self._now = now
        self._numbers = 0
        self._ports: dict[int, list[_Queue]] = {}
        self._active: dict[int, int] = {}  # port -> how many frames wait there

    def push(
        self,
        port: int,
        priority: int,
        egress: Callable[..., bytes | None],
        arguments: tuple[Any, ...],
    ) -> None:
        """Queue a copy.

        Later `egress` is called with port, the microsecond of queueing, depths before and after the
        wait, and `arguments`.
        """
        settings = self._settings
        if priority >= settings.priorities:
            self._stats.dropped_priority += 1
            return
        queues = self._ports.get(port)
        if queues is None:
            queues = self._ports[port] = [_Queue() for _ in range(settings.priorities)]
        queue = queues[priority]
        depth = len(queue.waiting)
        if depth >= settings.depth_of(port):
            self._stats.dropped_queue += 1
            return
        due = self._clock()
        if queue.last_due_ns is not None:
            due = max(due, queue.last_due_ns + settings.interval_ns(port))
        queue.last_due_ns = due
        queue.waiting.append(_Queued(due, self._numbers, self._now(), depth, egress, arguments))
        self._numbers += 1
        self._active[port] = self._active.get(port, 0) + 1

    def release(self) -> list[tuple[int, bytes]]:
        """Run egress for due copies of ready ports; yields the frames to send."""
        frames: list[tuple[int, bytes]] = []
        if not self._active:
            return frames
        now = self._clock()
        for _ in range(_MOST_RELEASED):
            port = self._next_port(now)
            if port is None:
                break
            item, behind = self._take(port, now)
            out = item.egress(port, item.enqueued_us, item.depth, behind, *item.arguments)
            if out is not None:
                frames.append((port, out))
            if self._replays.waiting:
                self._replays.run(frames)
        self._stats.frames_out += len(frames)
        return frames

    def next_ns(self) -> int | None:
        """Return when the next frame of a ready port is due, by the clock; None if none waits."""
        return min(
            (
                queue.waiting[0].due_ns
                for port in self._active
                for queue in self._ports[port]
                if queue.waiting and self.ready(port)
            ),
            default=None,
        )

    def _next_port(self, now: int) -> int | None:
        """The port whose frame leaves next."""
        best: tuple[int, int, int] | None = None
        best_port = None
        for port in self._active:
            rank = self._rank(port, now)
            if rank is not None and (best is None or rank < best) and self.ready(port):
                best, best_port = rank, port
        return best_port

    def _rank(self, port: int, now: int) -> tuple[int, int, int] | None:
        """What orders the frames that are due; of a port, its highest priority counts."""
        queues = self._ports[port]
        for priority in range(len(queues) - 1, -1, -1):
            waiting = queues[priority].waiting
            if waiting and waiting[0].due_ns <= now:
                return -priority, waiting[0].due_ns, waiting[0].number
        return None

    def _take(self, port: int, now: int) -> tuple[_Queued, int]:
        rank = self._rank(port, now)
        assert rank is not None
        waiting = self._ports[port][-rank[0]].waiting
        item = waiting.popleft()
        self._active[port] -= 1
        if not self._active[port]:
            del self._active[port]
        return item, len(waiting)


def _always(port: int) -> bool:
    return True
