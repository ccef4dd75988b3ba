# SPDX-License-Identifier: Apache-2.0
"""Probes whether the links between switches are as the topology says.

A probe is a HELLO that the controller sends out of the lower switch's port, to the addresses that
all switches of a tree have. The switch that receives it reports it with the port. So a probe
detects a dead link, and one that leads elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from p4reduce.wire.format import (
    AGGREGATION_PORT,
    Endpoint,
    FrameKind,
    Hello,
    header_bytes,
    template,
)
from p4reduce_common.polling import Backoff
from p4reduce_common.threads import watch_task

from p4reduce_controller.topology.switches import Switch, Topology, Uplink
from p4reduce_controller.values.mac_ip import format_ip, format_mac

PROBE_JOB = 0  # no job's incarnation id
INTERVALS = Backoff(0.05, 1.0)  # between two probes
MISSED = 5  # that many in a row without an answer mean a dead link,
SILENT = 4.0  # if they took that many seconds: a busy switch may drop those that come fast
REMEMBERED = 16  # probes of a link that may still be under way


class ProbeHandler(Protocol):
    """What `Probes` calls, in the event loop."""

    def on_link_lost(self, link: str, reason: str) -> None:
        """A link has failed."""

    def on_link_back(self, link: str) -> None:
        """A link works, whether or not its loss was reported."""


@dataclass(eq=False)
class _ProbedLink:
    """What is known of one."""

    child: str
    uplink: Uplink
    text: str
    reason: str = "it was not probed yet"  # empty: it works
    reported: bool = False  # the user knows that it is lost
    sent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    missed: int = 0
    since: float = field(default_factory=time.monotonic)  # when one came through, or could have
    intervals: Iterator[float] = field(default_factory=lambda: iter(INTERVALS))
    task: asyncio.Task[None] | None = None


class Probes:
    """Sends probes over all links. Create and use it in the event loop.

    `send` sends a frame out of a switch's port, and `is_there` says whether the switch can be
    reached. While a switch cannot be reached, its links keep their state.
    """

    def __init__(
        self,
        user: ProbeHandler,
        topology: Topology,
        send: Callable[[str, int, bytes], None],
        is_there: Callable[[str], bool],
    ) -> None:
        self._user = user
        self._topology = topology
        self._send = send
        self._is_there = is_there
        self._links = {
            child: _ProbedLink(child, uplink, uplink.text(child))
            for child, uplink in topology.uplinks.items()
        }

    @property
    def unproven(self) -> list[str]:
        """The links that no probe has passed yet, as text."""
        return [link.text for link in self._links.values() if link.reason]

    def reason(self, child: str) -> str:
        """Why the link from a switch to its parent does not work; empty if it works."""
        return self._links[child].reason

    def start(self) -> None:
        """Start probing."""
        loop = asyncio.get_running_loop()
        for link in self._links.values():
            link.task = loop.create_task(self._keep_probing(link), name="probes")
            watch_task(link.task, functools.partial(self._probing_failed, link))

    def stop(self) -> None:
        """Stop probing."""
        for link in self._links.values():
            if link.task is not None:
                link.task.cancel()

    def on_switch_lost(self, switch: str) -> list[str]:
        """Return the links of a lost switch. They have to be proven again."""
        links = [link for link in self._links.values() if switch in _ends(link)]
        for link in links:
            link.reason, link.reported = f"switch {switch} was lost", False
            link.missed, link.intervals = 0, iter(INTERVALS)
            link.since = time.monotonic()
            link.sent.clear()
        return [link.text for link in links]

    def on_probe(self, switch: str, port: int, hello: Hello) -> bool:
        """Take a HELLO that arrived at a port; return whether it was a probe."""
        if hello.job != PROBE_JOB:
            return False
        for link in self._links.values():
            if hello.nonce in link.sent:
                link.sent.clear()
                self._answered(link, switch, port)
                return True
        return False

    def _answered(self, link: _ProbedLink, switch: str, port: int) -> None:
        link.missed, link.since = 0, time.monotonic()
        if (switch, port) == (link.uplink.parent, link.uplink.parent_port):
            if link.reason:
                link.reason, link.reported = "", False
                self._user.on_link_back(link.text)
        else:
            self._lose(link, f"it leads to port {port} of {switch}")

    def _lose(self, link: _ProbedLink, reason: str) -> None:
        link.reason = reason
        if not link.reported:
            link.reported, link.intervals = True, iter(INTERVALS)
            self._user.on_link_lost(link.text, reason)

    def _probing_failed(self, link: _ProbedLink, cause: BaseException) -> None:
        self._lose(link, f"its probes have failed: {cause!r}")

    async def _keep_probing(self, link: _ProbedLink) -> None:
        while True:
            if all(map(self._is_there, _ends(link))):
                if link.missed >= MISSED and time.monotonic() - link.since >= SILENT:
                    self._lose(link, "no probe comes through it")
                nonce = secrets.randbits(64)
                link.sent.append(nonce)
                link.missed += 1
                child = self._topology.switches[link.child]
                self._send(link.child, link.uplink.port, self._frame(child, nonce))
            await asyncio.sleep(next(link.intervals))

    def _frame(self, child: Switch, nonce: int) -> bytes:
        ip, mac = self._topology.meeting
        source = Endpoint(format_mac(child.mac), format_ip(child.ip), AGGREGATION_PORT)
        target = Endpoint(format_mac(mac), format_ip(ip), AGGREGATION_PORT)
        header = header_bytes(kind=FrameKind.HELLO, job=PROBE_JOB, contributors=nonce)
        return bytes(template(source, target, header))


def _ends(link: _ProbedLink) -> tuple[str, str]:
    return link.child, link.uplink.parent
