# SPDX-License-Identifier: Apache-2.0
"""The file that describes a network of switches, for `serve --topology` (docs/scale.md).

[switches.root]
p4runtime = "10.0.0.1:9559"

[switches.leaf-a]
p4runtime = "10.0.0.2:9559"
ports = "1-4"

[[links]]
parent = "root:1"
child = "leaf-a:9"
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_native.files import read_text

from p4reduce_controller.topology.given import (
    CPU_PORT,
    LAST_PORT,
    NAME,
    addresses,
    is_name,
    read_ports,
)
from p4reduce_controller.topology.switches import Switch, Topology, TopologyError, Uplink
from p4reduce_controller.values.mac_ip import is_host, is_station, parse_ip, parse_mac

_SWITCH_KEYS = {"p4runtime", "device_id", "ip", "mac", "ports", "stations"}
_LINK_KEYS = {"parent", "child"}


@dataclass(frozen=True)
class NetFile:
    """The contents of the file.

    `servers` are the P4Runtime address and device id of each switch.
    """

    topology: Topology
    servers: Mapping[str, tuple[str, int]]


def read(path: Path, ip: int, mac: int, check_address: Callable[[str], object]) -> NetFile:
    """Read a file. `ip` and `mac` are the addresses that all switches of a tree share.

    Switches without addresses in the file get the next ones. `check_address` raises ValueError for
    an invalid P4Runtime address. Raises OSError, and TopologyError that names the file and the
    place in it.
    """
    # Here, since most controllers have no file, and it takes a while to import.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    try:
        data = tomllib.loads(read_text(path))
        return _read(data, ip, mac, check_address)
    except (TopologyError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path}: {error}") from None


def _read(
    data: dict[str, Any], ip: int, mac: int, check_address: Callable[[str], object]
) -> NetFile:
    _check_keys("the file", data, {"switches", "links"})
    tables = _of_type("switches", data.get("switches", {}), dict)
    uplinks = _uplinks(_of_type("links", data.get("links", []), list), list(tables))
    switches, servers = {}, {}
    for place, (name, table) in enumerate(tables.items(), start=1):
        where = f"switches.{name}"
        if not is_name(name):
            raise TopologyError(f"{where}: a switch's name has {NAME}")
        _check_keys(where, _of_type(where, table, dict), _SWITCH_KEYS)
        if "p4runtime" not in table:
            raise TopologyError(f"{where} needs p4runtime, the address of its P4Runtime server")
        address = _of_type(f"{where}.p4runtime", table["p4runtime"], str)
        _parsed(f"{where}.p4runtime", check_address, address)
        if not {"ip", "mac"} <= table.keys():
            own_ip, own_mac = addresses(ip, mac, place)
        if "ip" in table:
            own_ip = _address(f"{where}.ip", table["ip"], parse_ip, is_host)
        if "mac" in table:
            own_mac = _address(f"{where}.mac", table["mac"], parse_mac, is_station)
        ports: tuple[int, ...] = ()
        if "ports" in table:
            text = _of_type(f"{where}.ports", table["ports"], str)
            ports = _parsed(f"{where}.ports", read_ports, text)
        switches[name] = Switch(
            name, own_ip, own_mac, ports, _stations(where, table, ports), uplinks.get(name)
        )
        device_id = _of_type(f"{where}.device_id", table.get("device_id", 1), int)
        if device_id < 0:
            raise TopologyError(f"{where}.device_id: {device_id} is negative")
        servers[name] = (address, device_id)
    same: dict[str, str] = {}
    for name, (address, _) in servers.items():
        if same.setdefault(address, name) != name:
            raise TopologyError(f"{same[address]} and {name} have the same p4runtime, {address}")
    return NetFile(Topology(switches, (ip, mac)), servers)


def _uplinks(links: list[Any], names: list[str]) -> dict[str, Uplink]:
    uplinks: dict[str, Uplink] = {}
    for number, link in enumerate(links, start=1):
        where = f"link {number}"
        _check_keys(where, _of_type(where, link, dict), _LINK_KEYS)
        parent, parent_port = _end(where, link, "parent", names)
        child, port = _end(where, link, "child", names)
        if child in uplinks:
            raise TopologyError(
                f"{where}: {child} has two parents, {uplinks[child].parent} and {parent}"
            )
        uplinks[child] = Uplink(port, parent, parent_port)
    return uplinks


def _end(where: str, link: dict[str, Any], key: str, names: list[str]) -> tuple[str, int]:
    if key not in link:
        raise TopologyError(f'{where} needs {key}, like {key} = "{names[0] if names else "a"}:1"')
    text = _of_type(f"{where}.{key}", link[key], str)
    name, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > LAST_PORT or int(port) == CPU_PORT:
        raise TopologyError(
            f"{where}.{key}: {text!r} is not a switch and port, like leaf-a:9; ports are within 0 "
            f"and {LAST_PORT}, and {CPU_PORT} is the controller's own"
        )
    if name not in names:
        raise TopologyError(
            f"{where}.{key}: there is no switch {name!r}; the file has {', '.join(names) or 'none'}"
        )
    return name, int(port)


def _stations(
    where: str, table: dict[str, Any], ports: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    stations = _of_type(f"{where}.stations", table.get("stations", {}), dict)
    found = []
    for text, port in stations.items():
        here = f"{where}.stations"
        mac = _address(here, text, parse_mac, is_station)
        if _of_type(f"{here}.{text}", port, int) not in ports:
            raise TopologyError(f"{here}: {text} is at port {port}, which is not in ports")
        found.append((mac, port))
    return tuple(found)


def _check_keys(where: str, table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise TopologyError(f"{where} has {key!r}; known are {', '.join(sorted(known))}")


def _of_type(where: str, value: Any, kind: type) -> Any:
    names = {dict: "a table", list: "an array", str: "text in quotes", int: "a whole number"}
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TopologyError(f"{where} should be {names[kind]}, not {value!r}")
    return value


def _parsed(where: str, read_text: Callable[[str], Any], text: str) -> Any:
    try:
        return read_text(text)
    except ValueError as error:
        raise TopologyError(f"{where}: {error}") from None


def _address(
    where: str, value: Any, parse: Callable[[str], int], fits: Callable[[int], bool]
) -> int:
    text = _of_type(where, value, str)
    number: int = _parsed(where, parse, text)
    if not fits(number):
        raise TopologyError(f"{where}: {text} is not an address that a switch can have")
    return number
