# SPDX-License-Identifier: Apache-2.0
"""Ranks in namespaces, each with two links of the same rate: to a P4 switch, and to a bridge.

In such a network, sums by the switch can be compared with sums by TCP among the ranks. The links
are veth pairs with the same token buckets (tc-tbf) at both ends and the same offloads (none).
Whatever is measured has its links to itself. The bridge is Linux's, in a namespace of its own;
frames on it never meet the switch.

Nothing is left behind, however a run ends (`namespaces`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from ipaddress import IPv4Interface

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.limits import MAX_RANKS
from p4reduce_lab.networks.links import check_rate, set_congestion, set_rate, unavailable
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE, PREFIX_LENGTH, SUBNET
from p4reduce_lab.networks.namespaces import Namespace, run
from p4reduce_lab.networks.started import StartedNetwork
from p4reduce_lab.networks.veth import VethError, prepare
from p4reduce_lab.processes.children import Processes

BRIDGE_INTERFACE = "eth1"
BRIDGE_SUBNET = "10.1.0"
_BRIDGE = "bridge0"


class ShapedNetwork(StartedNetwork):
    """`ranks` namespaces, each with `eth0` to a port of a switch, and `eth1` to the bridge.

    Args:
        ranks: how many, 1 to 64.
        rate: of each link and in each direction, in Mbit/s; see `set_rate`.
        congestion: the namespaces' TCP congestion control; None: as this machine has it.

    Attributes:
        ports: the switch's ports: number, from 1, and the interface in this namespace.
        stations: the MAC address at each port.
        switch_prefix: what to put before the switch's command: nothing.
        tcp_interface: a rank's interface towards the bridge.
        congestion: what TCP uses in them.

    Raises:
        UnavailableError: it is not available here; says what is missing.
        LabError: an argument is out of range, or a tool failed.
    """

    switch_prefix: Sequence[str] = ()
    tcp_interface = BRIDGE_INTERFACE

    def __init__(self, ranks: int, rate: float, congestion: str | None = None) -> None:
        if (reason := unavailable()) is not None:
            raise UnavailableError(f"no shaped network: {reason}")
        if not 1 <= ranks <= MAX_RANKS:
            raise LabError(f"{ranks} ranks; shaped networks here have 1 to {MAX_RANKS}")
        check_rate(rate)
        self._ranks = ranks
        self._rate = rate
        self._wanted_congestion = congestion
        self._processes = Processes()
        self._holders: list[Namespace] = []
        self._hub: Namespace | None = None
        self.congestion = ""
        self.ports: dict[int, str] = {}
        self.stations = {rank + 1: f"02:00:00:00:01:{rank + 1:02x}" for rank in range(ranks)}

    def start(self) -> None:
        """Make namespaces, links and bridge."""
        try:
            self._hub = Namespace(self._processes, "bridge")
            self._holders = [
                Namespace(self._processes, f"rank{rank}") for rank in range(self._ranks)
            ]
            self._hub.run("ip", "link", "add", _BRIDGE, "type", "bridge")
            self._hub.run("ip", "link", "set", "dev", _BRIDGE, "up")
            for rank in range(self._ranks):
                self._link(rank)
            prefixes = [holder.prefix for holder in self._holders]
            self.congestion = set_congestion(prefixes, self._wanted_congestion)
            self.set_rate(self._rate)
        except VethError as error:
            self.stop()
            raise LabError(f"the network cannot be made: {error}") from error
        except BaseException:
            self.stop()
            raise

    def set_rate(self, rate: float | None) -> None:
        """Limit all links in each direction to this rate, in Mbit/s of whole Ethernet frames."""
        set_rate(self._ends(), rate)

    def prefix(self, rank: int) -> list[str]:
        """Return the prefix that runs a command in this rank's namespace."""
        return self._holders[rank].prefix

    def address(self, rank: int) -> IPv4Interface:
        """A rank's address towards the switch."""
        return IPv4Interface(f"{SUBNET}.{rank + 1}/{PREFIX_LENGTH}")

    def tcp_address(self, rank: int) -> IPv4Interface:
        """A rank's address towards the bridge, for TCP among the ranks."""
        return IPv4Interface(f"{BRIDGE_SUBNET}.{rank + 1}/{PREFIX_LENGTH}")

    def stop(self) -> None:
        """Take it down. What still runs in the namespaces loses its interfaces."""
        for near in self.ports.values():
            # With the namespaces they would go a moment later.
            with contextlib.suppress(LabError):
                run(["ip", "link", "delete", near])
        self.ports = {}
        self._holders, self._hub = [], None
        self._processes.end(grace=0.0)

    def _link(self, rank: int) -> None:
        """Make both links of a rank."""
        assert self._hub is not None
        port, hub = rank + 1, self._hub.prefix
        own = str(self._holders[rank].pid)
        near, far = f"p4c{os.getpid()}-{port}", HOST_INTERFACE
        # Named for this process, so that several networks can be up at once.
        pair = ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", own]
        run(pair)
        self.ports[port] = near
        prepare(near)
        self._set_up(rank, far, self.stations[port], self.address(rank))
        near, far = f"port{port}", BRIDGE_INTERFACE
        pair = ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", own]
        run([*hub, *pair])
        prepare(near, prefix=hub)
        run([*hub, "ip", "link", "set", "dev", near, "master", _BRIDGE])
        self._set_up(rank, far, f"02:00:00:00:02:{port:02x}", self.tcp_address(rank))

    def _set_up(self, rank: int, interface: str, mac: str, address: IPv4Interface) -> None:
        prefix = self.prefix(rank)
        run([*prefix, "ip", "link", "set", "dev", interface, "address", mac])
        prepare(interface, prefix=prefix)
        run([*prefix, "ip", "address", "add", str(address), "dev", interface])

    def _ends(self) -> list[tuple[list[str], str]]:
        """All ends of all links: how to run a command there, and the interface's name."""
        assert self._hub is not None
        hub = self._hub.prefix
        ends: list[tuple[list[str], str]] = []
        for rank in range(self._ranks):
            ends += [([], self.ports[rank + 1]), (self.prefix(rank), HOST_INTERFACE)]
            ends += [(hub, f"port{rank + 1}"), (self.prefix(rank), BRIDGE_INTERFACE)]
        return ends
