# SPDX-License-Identifier: Apache-2.0
"""Parses the switches of a command line: `--switch a=HOST:PORT --ports a=1-4`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from p4reduce.control.names import SWITCH_NAME_PATTERN

from p4reduce_controller.topology.switches import Switch, Topology, TopologyError
from p4reduce_controller.values.mac_ip import format_ip, format_mac, is_host, is_station

LAST_PORT = 510  # 511 means drop
CPU_PORT = 255
NAME = "1 to 40 letters, digits, '-', '_' and '.', a letter or digit first"

_NAMED = re.compile(rf"({SWITCH_NAME_PATTERN})=(.*)", re.DOTALL)


def split_name(text: str) -> tuple[str, str]:
    """Split `a=rest`. The name is empty if there is none."""
    named = _NAMED.fullmatch(text)
    return (named[1], named[2]) if named else ("", text)


def is_name(text: str) -> bool:
    """Whether a switch can have that name."""
    return re.fullmatch(SWITCH_NAME_PATTERN, text) is not None


def read_ports(text: str) -> tuple[int, ...]:
    """Parse `1-4,7`. Raises ValueError."""
    ports: set[int] = set()
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        last = last if dash else first
        if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
            raise ValueError(f"{part!r} is not a port or range of ports, like 1-4,7")
        if int(first) > int(last) or int(last) > LAST_PORT:
            raise ValueError(f"{part!r} is not a range of ports from 0 to {LAST_PORT}")
        ports.update(range(int(first), int(last) + 1))
    if CPU_PORT in ports:
        raise ValueError(f"port {CPU_PORT} is the controller's own")
    return tuple(sorted(ports))


def addresses(ip: int, mac: int, place: int) -> tuple[int, int]:
    """Return the IP address that many below `ip`, and the MAC address that many above `mac`.

    Raises TopologyError if none is left.
    """
    own_ip, own_mac = ip - place, mac + place
    if not is_host(own_ip) or not is_station(own_mac) or own_ip >> 16 != ip >> 16:
        raise TopologyError(
            f"there is no room beside {format_ip(ip)} and {format_mac(mac)} for the addresses of "
            f"{place + 1} switches: give them by --switch-ip and --switch-mac, or in a topology"
        )
    return own_ip, own_mac


def side_by_side(
    names: Sequence[str],
    ports: Sequence[str],
    stations: tuple[tuple[int, int], ...],
    ip: int,
    mac: int,
) -> Topology:
    """Return switches without links between them. Raises TopologyError.

    `ports` has lists for all switches, or for one (`a=1-4`). `ip` and `mac` are the first switch's.
    Each further switch has the next lower IP address and the next higher MAC address.
    """
    of_all, of_one = _read_port_lists(names, ports)
    if stations and len(names) > 1:
        raise TopologyError("--station is for one switch; several are described by --topology")
    switches = {}
    for place, name in enumerate(names):
        own = of_one.get(name, of_all)
        if own is None:
            raise TopologyError(f"switch {name} has no ports: --ports {name}=1-4")
        switches[name] = Switch(name, *addresses(ip, mac, place), own, stations)
    return Topology(switches, (ip, mac))


def with_cores(topology: Topology, cores: Mapping[str, int]) -> Topology:
    """Add the further cores of the switches, each as a switch of its own.

    Args:
        topology: switches without links.
        cores: the number of cores per switch; 1 if it is not listed.

    Raises:
        TopologyError: no name or address is left for a core.
    """
    ip, mac = topology.meeting
    switches = dict(topology.switches)
    for name, count in cores.items():
        for core in range(1, count):
            own = f"{name}.core{core}"
            if not is_name(own) or own in switches:
                raise TopologyError(
                    f"switch {name} has {count} cores, and core {core} cannot be called {own}: "
                    "choose another name for the switch"
                )
            switches[own] = Switch(
                own, *addresses(ip, mac, len(switches)), switches[name].ports, core_of=name
            )
    return Topology(switches, topology.meeting)


def _read_port_lists(
    names: Sequence[str], lists: Sequence[str]
) -> tuple[tuple[int, ...] | None, dict[str, tuple[int, ...]]]:
    of_all: tuple[int, ...] | None = None
    of_one: dict[str, tuple[int, ...]] = {}
    for text in lists:
        name, ports = split_name(text)
        try:
            read = read_ports(ports)
        except ValueError as error:
            raise TopologyError(f"--ports {text}: {error}") from None
        if not name and of_all is None:
            of_all = read
        elif not name or name in of_one:
            raise TopologyError(f"--ports {text}: these ports were given already")
        elif name not in names:
            raise TopologyError(
                f"--ports {text}: there is no switch {name}, but {', '.join(names)}"
            )
        else:
            of_one[name] = read
    return of_all, of_one
