# SPDX-License-Identifier: Apache-2.0
"""Ranks in namespaces, each with one link to a router; the switch runs on the router.

As machines in different networks are connected: a rank's frames to the switch are UDP datagrams,
and its TCP to other ranks goes by the same link and through the router. Offloads are as the kernel
has them, so that both may hand it large segments.

Nothing is left behind, however a run ends (`namespaces`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.limits import MAX_RANKS
from p4reduce_lab.networks.links import check_rate, set_congestion, set_rate, unavailable
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE
from p4reduce_lab.networks.namespaces import Namespace
from p4reduce_lab.networks.started import StartedNetwork
from p4reduce_lab.processes.children import Processes


class RoutedNetwork(StartedNetwork):
    """`ranks` namespaces, each a network of its own, and a router among them.

    Args:
        ranks: how many, 1 to 64.
        rate: of each link and in each direction, in Mbit/s; None: not limited. See `set_rate`.
        congestion: the namespaces' TCP congestion control; None: as this machine has it.

    Attributes:
        switch_address: the router's, for the switch's UDP ports.
        stations: empty: the switch learns where its ranks are.
        switch_prefix: what to put before the switch's command so that it runs on the router.
        tcp_interface: a rank's interface, the only one.
        congestion: what TCP uses.

    Raises:
        UnavailableError: it is not available here; says what is missing.
        LabError: an argument is out of range, or a tool failed.
    """

    switch_address = "10.2.0.1"
    tcp_interface = HOST_INTERFACE
    stations: Mapping[int, str] = {}

    def __init__(self, ranks: int, rate: float | None, congestion: str | None = None) -> None:
        if (reason := unavailable()) is not None:
            raise UnavailableError(f"no routed network: {reason}")
        if not 1 <= ranks <= MAX_RANKS:
            raise LabError(f"{ranks} ranks; routed networks here have 1 to {MAX_RANKS}")
        if rate is not None:
            check_rate(rate)
        self._ranks = ranks
        self._rate = rate
        self._wanted_congestion = congestion
        self._processes = Processes()
        self._holders: list[Namespace] = []
        self._router: Namespace | None = None
        self.congestion = ""

    @property
    def switch_prefix(self) -> Sequence[str]:
        assert self._router is not None
        return self._router.prefix

    def start(self) -> None:
        """Make namespaces and links."""
        try:
            self._router = Namespace(self._processes, "router")
            self._router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
            self._router.run("ip", "address", "add", f"{self.switch_address}/32", "dev", "lo")
            self._holders = [
                Namespace(self._processes, f"rank{rank}") for rank in range(self._ranks)
            ]
            for rank in range(self._ranks):
                self._link(rank)
            prefixes = [holder.prefix for holder in self._holders]
            self.congestion = set_congestion(prefixes, self._wanted_congestion)
            self.set_rate(self._rate)
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
        """Return the only address of a rank."""
        return self.tcp_address(rank)

    def tcp_address(self, rank: int) -> IPv4Interface:
        """Return the same address, for TCP among ranks."""
        return IPv4Interface(f"10.2.{rank + 1}.2/24")

    def stop(self) -> None:
        """Take it down. What still runs in the namespaces loses its interfaces."""
        self._holders, self._router = [], None
        self._processes.end(grace=0.0)

    def _link(self, rank: int) -> None:
        assert self._router is not None
        router, holder = self._router, self._holders[rank]
        near, far, gateway = f"port{rank + 1}", HOST_INTERFACE, f"10.2.{rank + 1}.1"
        pair = ["ip", "link", "add", near, "type", "veth", "peer", "name", far]
        router.run(*pair, "netns", str(holder.pid))
        router.run("ip", "address", "add", f"{gateway}/24", "dev", near)
        router.run("ip", "link", "set", "dev", near, "up")
        holder.run("ip", "address", "add", str(self.tcp_address(rank)), "dev", far)
        holder.run("ip", "link", "set", "dev", far, "up")
        holder.run("ip", "route", "add", "default", "via", gateway)

    def _ends(self) -> list[tuple[list[str], str]]:
        """All ends of all links: how to run a command there, and the interface's name."""
        assert self._router is not None
        ends = [(self._router.prefix, f"port{rank + 1}") for rank in range(self._ranks)]
        return ends + [(holder.prefix, HOST_INTERFACE) for holder in self._holders]
