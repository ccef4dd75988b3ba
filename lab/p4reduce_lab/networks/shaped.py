# SPDX-License-Identifier: Apache-2.0
"""Ranks in namespaces, each with two links of the same rate: to a P4 switch, and to a bridge.

In such a network, sums by the switch can be compared with sums by TCP among the ranks. The links
are veth pairs with the same token buckets (tc-tbf) at both ends and the same offloads (none).
Whatever is measured has its links to itself. The bridge is Linux's, in a namespace of its own;
frames on it never meet the switch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from ipaddress import IPv4Interface

from p4reduce_lab.errors import LabError
from p4reduce_lab.networks.linked import BRIDGE, BridgedNetwork
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE, PREFIX_LENGTH, SUBNET, SWITCH_IP
from p4reduce_lab.networks.namespaces import run
from p4reduce_lab.networks.veth import prepare
from p4reduce_lab.topology import PortRow

BRIDGE_INTERFACE = "eth1"
BRIDGE_SUBNET = "10.1.0"


class ShapedNetwork(BridgedNetwork):
    """Ranks' namespaces, each with `eth0` to a port of a switch, and `eth1` to the bridge.

    Args:
        ranks: how many, 1 to 64.
        rate, congestion: as for `LinkedNetwork`.

    Attributes:
        ports: the switch's ports: number, from 1, and the interface in this namespace.
        switch_prefix: what to put before the switch's command: nothing.
        tcp_interface: a rank's interface towards the bridge.
    """

    switch_prefix: Sequence[str] = ()
    tcp_interface = BRIDGE_INTERFACE

    def __init__(self, ranks: int, rate: float, congestion: str | None = None) -> None:
        super().__init__([f"rank{rank}" for rank in range(ranks)], "bridge", rate, congestion)
        self.ports: dict[int, str] = {}

    def row(self, switch: int = 0) -> PortRow:
        """Return the ports of the only switch, and who is at each."""
        macs = {port: _mac(port) for port in self.ports}
        return PortRow(self.ports, HOST_INTERFACE, macs, SWITCH_IP)

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
        super().stop()

    def _link(self, number: int) -> None:
        """Make both links of a rank."""
        port, own = number + 1, str(self._hosts[number].pid)
        # Named for this process, so that several networks can be up at once.
        near, far = f"p4c{os.getpid()}-{port}", HOST_INTERFACE
        run(["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", own])
        self.ports[port] = near
        prepare(near)
        self._set_up(number, far, _mac(port), self.address(number))
        near = self._add_pair(number, BRIDGE_INTERFACE)
        prepare(near, prefix=self._middle.prefix)
        self._middle.run("ip", "link", "set", "dev", near, "master", BRIDGE)
        mac = f"02:00:00:00:02:{port:02x}"
        self._set_up(number, BRIDGE_INTERFACE, mac, self.tcp_address(number))

    def _set_up(self, rank: int, interface: str, mac: str, address: IPv4Interface) -> None:
        host = self._hosts[rank]
        host.run("ip", "link", "set", "dev", interface, "address", mac)
        prepare(interface, prefix=host.prefix)
        host.run("ip", "address", "add", str(address), "dev", interface)

    def _ends(self, number: int) -> list[tuple[list[str], str]]:
        middle, own, port = self._middle.prefix, self.prefix(number), f"port{number + 1}"
        near = self.ports[number + 1]
        return [([], near), (own, HOST_INTERFACE), (middle, port), (own, BRIDGE_INTERFACE)]


def _mac(port: int) -> str:
    """The MAC address of the rank at a port of the switch."""
    return f"02:00:00:00:01:{port:02x}"
