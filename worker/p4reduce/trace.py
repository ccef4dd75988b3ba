# SPDX-License-Identifier: Apache-2.0
"""Where time goes: a rank's collectives as a trace for Perfetto or Chrome.

The file is JSON in the Trace Event Format (Google, 2016), which https://ui.perfetto.dev and
chrome://tracing show. Each collective is a nestable asynchronous event, as several are under way at
once; its parts lie within it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from p4reduce.tensors.collective_trace import CollectiveTrace
from p4reduce.tensors.stream import Collective

MOST = 50_000
"""Collectives in a trace; those after them are left out, and counted."""

_TIMERS = 1  # the row of what timers send again


@dataclass(frozen=True)
class Traced:
    """What is kept of a collective, without its tensors.

    Attributes:
        number: in the trace.
        name: with what was reduced, for people.
        about: more of it.
        record: when what happened to it.
    """

    number: int
    name: str
    about: dict[str, Any]
    record: CollectiveTrace


class Trace:
    """A trace, recorded until it or its communicator is closed.

    Made by `Communicator.trace`.

    Args:
        path: of the file; "{rank}" in it is replaced.
        rank: own.
        size: of the job.
        job: its name.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int, size: int, job: str) -> None:
        self.path = Path(os.fspath(path).replace("{rank}", str(rank)))
        self.path.write_text("")  # what cannot be written is better known now
        self.left_out = 0
        self._rank, self._size, self._job = rank, size, job
        self._lock = threading.Lock()
        self._collectives: list[Traced] = []
        self._open = True

    @property
    def open(self) -> bool:
        """Whether it is still recording."""
        return self._open

    @property
    def collectives(self) -> tuple[Traced, ...]:
        """The collectives so far; empty once the trace is closed."""
        with self._lock:
            return tuple(self._collectives)

    def add(self, collective: Collective, called: float, job: str) -> None:
        """Record a collective from now on.

        Args:
            collective: that has not been started yet.
            called: when its call began.
            job: its job's name, on the switch that it goes by.
        """
        with self._lock:
            if not self._open:
                return
            if len(self._collectives) == MOST:
                self.left_out += 1
                return
            collective.trace = collective.trace or CollectiveTrace(called, collective.started)
            number = len(self._collectives)
            about = {
                "bytes": int(collective.call.size * collective.dtype.itemsize),
                "blocks": collective.count,
                "stripes": collective.stripes,
                "job": job,
                "lanes": collective.format.name.lower(),
            }
            self._collectives.append(
                Traced(number, collective.description, about, collective.trace)
            )

    def close(self) -> None:
        """Write the file. Idempotent. Raises OSError."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            collectives, self._collectives = self._collectives, []
        events = self._names()
        for traced in collectives:
            events += self._events(traced)
        whole = {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {
                "rank": self._rank,
                "ranks": self._size,
                "job": self._job,
                "host": socket.gethostname(),
                "wall_minus_monotonic": time.time() - time.monotonic(),
                "left_out": self.left_out,
            },
        }
        self.path.write_text(json.dumps(whole) + "\n")

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _names(self) -> list[dict[str, Any]]:
        text = f"rank {self._rank} of {self._size}, job {self._job}"
        return [
            {"ph": "M", "pid": self._rank, "name": "process_name", "args": {"name": text}},
            {
                "ph": "M",
                "pid": self._rank,
                "name": "process_sort_index",
                "args": {"sort_index": self._rank},
            },
            {
                "ph": "M",
                "pid": self._rank,
                "tid": _TIMERS,
                "name": "thread_name",
                "args": {"name": "retransmissions"},
            },
        ]

    def _events(self, traced: Traced) -> list[dict[str, Any]]:
        number, name, record = traced.number, traced.name, traced.record
        now = time.monotonic()
        end = record.ended or now
        opened = record.opened or end
        there = record.all_there or end
        arguments = dict(traced.about)
        if record.error:
            arguments["error"] = record.error
        if not record.ended:
            arguments["unfinished"] = True
        events = self._span(name, record.called, end, number, arguments)
        inner = [("preparing", record.called, record.measured)]
        inner += [("queueing", record.measured, opened)]
        if record.opened:
            inner += [("waiting for ranks", opened, there)]
        if record.all_there:
            inner += [("receiving", there, end)]
        events[1:1] = [
            event
            for part, begin, until in inner
            for event in self._span(part, begin, min(until, end), number)
        ]
        if record.all_there and record.last_made:
            sent = self._span("sending", there, min(record.last_made, end), number)
            events[-2:-2] = sent  # within "receiving", which lasts longer
        for rank, begin, until in waits(record, self._size, end):
            ident = f"{self._rank}.{number}.{rank}"
            events += self._span(f"waiting for rank {rank}", begin, until, number, id=ident)
        for at, frames in record.repeats:
            events.append(
                {
                    "name": f"{frames} again",
                    "cat": "retransmission",
                    "ph": "i",
                    "s": "t",
                    "pid": self._rank,
                    "tid": _TIMERS,
                    "ts": at * 1e6,
                    "args": {"frames": frames, "collective": name},
                }
            )
        return events

    def _span(
        self,
        name: str,
        begin: float,
        end: float,
        number: int,
        arguments: dict[str, Any] | None = None,
        **more: str,
    ) -> list[dict[str, Any]]:
        """Return the two events of something that took a while."""
        common = {
            "name": name,
            "cat": "waiting" if "id" in more else "collective",
            "id": more.get("id", f"{self._rank}.{number}"),
            "pid": self._rank,
        }
        first = {**common, "ph": "b", "ts": begin * 1e6, "args": arguments or {}}
        return [first, {**common, "ph": "e", "ts": max(begin, end) * 1e6}]


def waits(record: CollectiveTrace, size: int, end: float) -> list[tuple[int, float, float]]:
    """Return for whom the switch waited: rank, start and end in seconds.

    It is asked only when a timer has run out. What it says first stands from when the collective
    had its slots; a rank has come when it is among those heard, or when rounds were complete.
    """
    found = []
    begun: dict[int, float] = {}
    for number, (at, heard) in enumerate(record.heard):
        for rank in range(size):
            if not heard >> rank & 1:
                begun.setdefault(rank, at if number else (record.opened or at))
            elif rank in begun:
                found.append((rank, begun.pop(rank), at))
    for rank, began in begun.items():
        there = record.all_there
        until = there if there > began else record.last_answer
        found.append((rank, began, until if until > began else end))
    return found
