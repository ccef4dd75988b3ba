# SPDX-License-Identifier: Apache-2.0
"""Installs a job on several switches, in an order that is safe.

A parent must admit what its children send up. So a job is installed from the root down, and removed
from the leaves up. Switches on one level are written to at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.fabric.layout import Layout
from p4reduce_controller.fabric.p4client import (
    NoSwitchAnswerError,
    PacketIn,
    SwitchClient,
    SwitchError,
)
from p4reduce_controller.fabric.switch_session import SwitchSession
from p4reduce_controller.topology.switches import Topology
from p4reduce_controller.values.counts import RankCounts

_T = TypeVar("_T")


@dataclass(frozen=True)
class TakenSwitch:
    """A switch that the controller has taken over.

    `connect` opens another session, within a number of seconds.
    """

    fabric: Fabric
    client: SwitchClient
    connect: Callable[[float], SwitchClient]
    kept: bool  # whether it is as a former life of the controller left it


class SwitchesHandler(Protocol):
    """What `Switches` calls, in the event loop."""

    def on_packet_in(self, switch: str, packet: PacketIn) -> None:
        """A switch sent a frame to the controller."""

    def on_switch_lost(self, switch: str, reason: str) -> None:
        """A switch is lost, or has lost its program or registers."""

    def on_switch_away(self, switch: str, reason: str) -> None:
        """A switch is still missing, for another reason than the last one reported."""

    def on_switch_back(self, switch: str) -> None:
        """A switch is back and configured, whether or not its loss was reported."""


@dataclass(frozen=True)
class _NamedHandler:
    """Reports to the owner with the switch's name."""

    owner: SwitchesHandler
    switch: str

    def on_packet_in(self, packet: PacketIn) -> None:
        self.owner.on_packet_in(self.switch, packet)

    def on_switch_lost(self, reason: str) -> None:
        self.owner.on_switch_lost(self.switch, reason)

    def on_switch_away(self, reason: str) -> None:
        self.owner.on_switch_away(self.switch, reason)

    def on_switch_back(self) -> None:
        self.owner.on_switch_back(self.switch)


class Switches:
    """All switches of a controller. Create it in the event loop."""

    def __init__(
        self, owner: SwitchesHandler, topology: Topology, taken: Mapping[str, TakenSwitch]
    ) -> None:
        self._topology = topology
        self.fabrics = {name: each.fabric for name, each in taken.items()}
        self.links = {
            name: SwitchSession(_NamedHandler(owner, name), each.fabric, each.client, each.connect)
            for name, each in taken.items()
        }

    # -- Life --------------------------------------------------------------------------

    def start(self) -> None:
        """Start listening to all switches."""
        for link in self.links.values():
            link.start()

    async def stop(self) -> None:
        """End all sessions. Requests that are not finished fail: wait for them first."""
        await asyncio.gather(*(link.stop() for link in self.links.values()))

    def abandon(self) -> None:
        """Take no further requests. Those that are queued run until the sessions are closed."""
        for link in self.links.values():
            link.abandon()

    def is_there(self, switch: str) -> bool:
        """Whether there is a session with a switch."""
        return not self.links[switch].status.lost

    def packet_out(self, switch: str, port: int, frame: bytes) -> None:
        """Send a frame out of a switch's port, if there is a session."""
        sending = self._submit(switch, Fabric.packet_out, port, frame)
        sending.add_done_callback(_ignore_loss)

    async def call(self, switch: str, function: Callable[..., _T], *args: Any) -> _T:
        """Call a method of a switch's fabric. Raises SwitchError, and what the method raises."""
        return await self.links[switch].call(function, self.fabrics[switch], *args)

    def _submit(self, switch: str, function: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Queue a call, which is made even without a session: the method has to handle that."""
        return self.links[switch].submit(functools.partial(function, self.fabrics[switch], *args))

    # -- Jobs --------------------------------------------------------------------------

    async def install(self, incarnation: int, layouts: Mapping[str, Layout]) -> None:
        """Install a job on its switches. Raises SwitchError and WriteRefusedError."""
        for names in self._by_depth(layouts):
            done = await asyncio.gather(
                *(self._submit(name, Fabric.install, incarnation, layouts[name]) for name in names),
                return_exceptions=True,
            )
            for error in done:
                if isinstance(error, BaseException):
                    raise error

    def withdraw(self, incarnation: int, switches: Iterable[str]) -> None:
        """Remove a job from these switches, before any later request."""
        for name in switches:
            self._submit(name, Fabric.remove, incarnation)

    async def remove(self, incarnation: int, switches: Iterable[str]) -> dict[int, RankCounts]:
        """Remove a job from its switches; return the counters of its ranks."""
        counts: dict[int, RankCounts] = {}
        for names in reversed(self._by_depth(switches)):
            for each in await asyncio.gather(
                *(self._submit(name, _take_off, incarnation) for name in names)
            ):
                counts |= each
        return counts

    async def missing(self, incarnation: int, switches: Iterable[str]) -> list[str]:
        """Return the entries of a job that its reachable switches lack."""

        async def of(name: str) -> list[str]:
            with contextlib.suppress(SwitchError):  # its link reports a broken session
                return await self.call(name, Fabric.missing, incarnation)
            return []

        return [entry for each in await asyncio.gather(*map(of, switches)) for entry in each]

    async def statistics(self, incarnation: int, switches: Iterable[str]) -> dict[int, RankCounts]:
        """Return the counters of each rank of a job, from its reachable switches."""

        async def of(name: str) -> dict[int, RankCounts]:
            with contextlib.suppress(NoSwitchAnswerError):
                return await self.call(name, Fabric.statistics, incarnation)
            return {}

        counts: dict[int, RankCounts] = {}
        for each in await asyncio.gather(*map(of, switches)):
            counts |= each
        return counts

    def _by_depth(self, names: Iterable[str]) -> list[list[str]]:
        """Return the switches in groups of one depth, the roots first."""
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(len(self._topology.path_up(name)), []).append(name)
        return [groups[depth] for depth in sorted(groups)]


def _ignore_loss(sending: asyncio.Future[None]) -> None:
    """The switch's link reports its loss; any other error is ours."""
    if not sending.cancelled() and not isinstance(sending.exception(), SwitchError):
        sending.result()


def _take_off(fabric: Fabric, incarnation: int) -> dict[int, RankCounts]:
    """Runs on the switch's thread."""
    counts: dict[int, RankCounts] = {}
    with contextlib.suppress(SwitchError):
        counts = fabric.statistics(incarnation)
    fabric.remove(incarnation)
    return counts
