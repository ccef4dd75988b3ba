# SPDX-License-Identifier: Apache-2.0
"""The text of a file of several switches, which `p4reduce-controller serve --topology` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_NONE: Mapping[int, str] = MappingProxyType({})


def switch_table(
    name: str, address: str, ports: int, stations: Mapping[int, str] = _NONE, ip: str = ""
) -> str:
    """Return what the file says of a switch.

    Args:
        name: of the switch.
        address: of its P4Runtime server.
        ports: how many of them, from 1 on, have ranks.
        stations: the MAC address of the host at a port.
        ip: its own address; "": the controller's choice.
    """
    lines = [f"[switches.{name}]", f'p4runtime = "{address}"']
    if ports:
        lines.append(f'ports = "1-{ports}"')
    if ip:
        lines.append(f'ip = "{ip}"')
    if stations:
        at = (f'"{mac}" = {port}' for port, mac in stations.items())
        lines.append(f"stations = {{ {', '.join(at)} }}")
    return "\n".join(lines)


def link_table(parent: str, parent_port: int, child: str, child_port: int) -> str:
    """Return what the file says of a link between two switches."""
    ends = f'parent = "{parent}:{parent_port}"', f'child = "{child}:{child_port}"'
    return "\n".join(["[[links]]", *ends])


def topology_text(tables: Sequence[str]) -> str:
    """Return the file's text."""
    return "\n\n".join(tables) + "\n"
