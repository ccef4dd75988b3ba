# SPDX-License-Identifier: Apache-2.0
"""Ranks in namespaces, each with one link to a router; the switch runs on the router.

As machines in different networks are connected: a rank's frames to the switch are UDP datagrams,
and its TCP to other ranks goes by the same link and through the router. Offloads are as the kernel
has them, so that both may hand it large segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Interface

from p4reduce_lab.networks.linked import LinkedNetwork
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE


class RoutedNetwork(LinkedNetwork):
    """Ranks' namespaces, each a network of its own, and a router among them.

    Args:
        ranks: how many, 1 to 64.
        rate, congestion: as for `LinkedNetwork`.

    Attributes:
        switch_address: the router's, for the switch's UDP ports.
        tcp_interface: a rank's interface, the only one.
    """

    switch_address = "10.2.0.1"
    tcp_interface = HOST_INTERFACE

    def __init__(self, ranks: int, rate: float | None, congestion: str | None = None) -> None:
        super().__init__([f"rank{rank}" for rank in range(ranks)], "router", rate, congestion)

    @property
    def switch_prefix(self) -> Sequence[str]:
        """What to put before the switch's command so that it runs on the router."""
        return self._middle.prefix

    def address(self, rank: int) -> IPv4Interface:
        """Return the only address of a rank."""
        return IPv4Interface(f"10.2.{rank + 1}.2/24")

    tcp_address = address

    def _join(self) -> None:
        self._middle.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._middle.run("ip", "address", "add", f"{self.switch_address}/32", "dev", "lo")

    def _link(self, number: int) -> None:
        router, host = self._middle, self._hosts[number]
        far, gateway = HOST_INTERFACE, f"10.2.{number + 1}.1"
        near = self._add_pair(number, far)
        router.run("ip", "address", "add", f"{gateway}/24", "dev", near)
        router.run("ip", "link", "set", "dev", near, "up")
        host.run("ip", "address", "add", str(self.address(number)), "dev", far)
        host.run("ip", "link", "set", "dev", far, "up")
        host.run("ip", "route", "add", "default", "via", gateway)

    def _ends(self, number: int) -> list[tuple[list[str], str]]:
        return [(self._middle.prefix, f"port{number + 1}"), (self.prefix(number), HOST_INTERFACE)]
