# SPDX-License-Identifier: Apache-2.0
"""What is known about switches before any of them answers: names, addresses, links, trees.

A switch without links is a tree of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from p4reduce_controller.values.mac_ip import format_ip, format_mac

ONLY = "switch"  # the name of a switch that nobody named


class TopologyError(ValueError):
    """The switches or links contradict each other. The message names them."""


@dataclass(frozen=True)
class Uplink:
    """The link from a switch to its parent."""

    port: int
    parent: str
    parent_port: int

    def text(self, child: str) -> str:
        """The link's name, as seen from its lower end."""
        return f"the link from {child} port {self.port} to {self.parent} port {self.parent_port}"


@dataclass(frozen=True)
class Switch:
    """A switch as workers and other switches see it."""

    name: str
    ip: int
    mac: int
    ports: tuple[int, ...]  # with workers or other stations
    stations: tuple[tuple[int, int], ...] = ()  # (MAC, port) of hosts that stay there
    uplink: Uplink | None = None
    core_of: str = ""  # the switch whose further core it is: at the same address and ports


@dataclass(frozen=True)
class Topology:
    """All switches of one controller. Raises TopologyError.

    `meeting` has the IP and MAC address that every switch of a tree answers to besides its own. A
    rank sends its HELLO there, because it does not know its switch yet.
    """

    switches: Mapping[str, Switch]
    meeting: tuple[int, int] = field(default=(0, 0))

    def __post_init__(self) -> None:
        if not self.switches:
            raise TopologyError("there is no switch")
        self._check_links()
        self._check_circles()
        self._check_addresses()

    # -- Checks ------------------------------------------------------------------------

    def _check_links(self) -> None:
        used: dict[tuple[str, int], str] = {}

        def use(switch: str, port: int, what: str) -> None:
            before = used.setdefault((switch, port), what)
            if before is not what:
                raise TopologyError(
                    f"port {port} of {switch} is used twice: by {before} and by {what}"
                )

        for switch in self.switches.values():
            for port in switch.ports:
                use(switch.name, port, "workers (ports)")
        for child, uplink in self.uplinks.items():
            if uplink.parent not in self.switches:
                raise TopologyError(
                    f"{uplink.text(child)} leads to an unknown switch: {self.names_text}"
                )
            what = uplink.text(child)
            use(child, uplink.port, what)
            use(uplink.parent, uplink.parent_port, what)

    def _check_circles(self) -> None:
        for name in self.switches:
            way = [name]
            while (uplink := self.switches[way[-1]].uplink) is not None:
                if uplink.parent in way:
                    circle = [*way[way.index(uplink.parent) :], uplink.parent]
                    raise TopologyError(f"the links form a circle: {' -> '.join(circle)}")
                way.append(uplink.parent)

    def _check_addresses(self) -> None:
        ips: dict[int, str] = {}
        macs: dict[int, str] = {}
        for switch in self.switches.values():
            if ips.setdefault(switch.ip, switch.name) != switch.name:
                raise TopologyError(
                    f"{ips[switch.ip]} and {switch.name} have the same IP address, "
                    f"{format_ip(switch.ip)}"
                )
            if macs.setdefault(switch.mac, switch.name) != switch.name:
                raise TopologyError(
                    f"{macs[switch.mac]} and {switch.name} have the same MAC address, "
                    f"{format_mac(switch.mac)}"
                )
        if self.uplinks:
            ip, mac = self.meeting
            if ip in ips or mac in macs:
                raise TopologyError(
                    f"{ips.get(ip) or macs[mac]} has an address that all switches of a tree "
                    f"share, {format_ip(ip)} or {format_mac(mac)}: it needs its own"
                )

    # -- Looking -----------------------------------------------------------------------

    @cached_property
    def uplinks(self) -> dict[str, Uplink]:
        """The links, by the name of the switch at the lower end."""
        return {name: at.uplink for name, at in self.switches.items() if at.uplink is not None}

    @property
    def names_text(self) -> str:
        """All names, for a message."""
        return ", ".join(self.switches)

    def path_up(self, name: str) -> list[str]:
        """Return a switch and its ancestors, the topmost last."""
        way = [name]
        while (uplink := self.switches[way[-1]].uplink) is not None:
            way.append(uplink.parent)
        return way

    def tree_of(self, name: str) -> str:
        """Return the name of the topmost switch above a switch, which is the tree's name."""
        return self.path_up(name)[-1]

    @cached_property
    def trees(self) -> dict[str, tuple[str, ...]]:
        """All trees by name, with their switches; parents come first."""
        trees: dict[str, list[str]] = {}
        for name in sorted(self.switches, key=lambda name: len(self.path_up(name))):
            trees.setdefault(self.tree_of(name), []).append(name)
        return {name: tuple(members) for name, members in trees.items()}

    def cores(self, name: str) -> tuple[str, ...]:
        """Return the names of a switch's further cores, in order.

        Empty for "", with which a rank accepts any switch of a tree.
        """
        return tuple(core for core, at in self.switches.items() if name and at.core_of == name)

    @property
    def only_tree(self) -> str:
        """The name of the only tree; empty if there are several. Cores count with their switch."""
        trees = [name for name in self.trees if not self.switches[name].core_of]
        return trees[0] if len(trees) == 1 else ""

    def link_ports(self, name: str) -> tuple[int, ...]:
        """Return the ports of a switch that lead to other switches."""
        down = [link.parent_port for link in self.uplinks.values() if link.parent == name]
        uplink = self.switches[name].uplink
        return tuple(sorted(down + ([uplink.port] if uplink else [])))

    def spanning(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the switches that join `names`, which are in one tree.

        These are `names`, their lowest common ancestor, and all switches between. Parents come
        before their children, so the ancestor is first.
        """
        ways = [self.path_up(name) for name in dict.fromkeys(names)]
        common = [name for name in ways[0] if all(name in way for way in ways)]
        if not common:
            raise TopologyError(f"no links join {', '.join(way[0] for way in ways)}")
        root = common[0]
        needed = {name for way in ways for name in way[: way.index(root) + 1]}
        return tuple(sorted(needed, key=lambda name: (len(self.path_up(name)), name)))


def only_switch(
    ip: int, mac: int, ports: Iterable[int], stations: tuple[tuple[int, int], ...] = ()
) -> Topology:
    """Return the topology of a single switch without a name."""
    return Topology({ONLY: Switch(ONLY, ip, mac, tuple(ports), stations)}, (ip, mac))
