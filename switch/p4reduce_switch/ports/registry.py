# SPDX-License-Identifier: Apache-2.0
"""The kinds of ports, and the `--port` notation.

To add a kind, write a module with a `PortPlace` and a `Port`, and an entry here.
"""

from __future__ import annotations

from p4reduce_switch.ports.packet import InterfacePlace
from p4reduce_switch.ports.place import PortPlace, PortSpec
from p4reduce_switch.ports.port import MAX_PORT
from p4reduce_switch.ports.udp import UdpPlace
from p4reduce_switch.ports.unix import UnixCallingPlace, UnixPlace

PLACES: tuple[type[PortPlace], ...] = (InterfacePlace, UnixPlace, UnixCallingPlace, UdpPlace)

HELP = f"A port: {', '.join(f'1={place.form} {place.purpose}' for place in PLACES)}; " + (
    "1-64=udp:HOST:7001 for many, whose UDP ports count up. May be given many times."
)


def parse_ports(text: str) -> list[PortSpec]:
    """Parse a port as `parse_port` does, or a range like "1-64=udp:0.0.0.0:7001". UDP ports count
    up too.

    Raises:
        ValueError: with a message for the user.
    """
    numbers, equals, where = text.partition("=")
    first, dash, last = numbers.partition("-")
    if not (dash and equals and first.isdecimal() and last.isdecimal()):
        return [parse_port(text)]
    if not int(first) <= int(last) <= MAX_PORT:
        raise ValueError(f"'{numbers}' of '{text}' is not a range of ports within 0 and {MAX_PORT}")
    start = parse_port(f"{first}={where}")
    steps = range(int(last) - int(first) + 1)
    try:
        return [PortSpec(start.number + step, start.place.after(step)) for step in steps]
    except ValueError as error:
        raise ValueError(f"'{text}' {error}") from None


def parse_port(text: str) -> PortSpec:
    """Read "1=veth1", "1=veth1,offload", "2=unix:/path/p2.sock", "3=udp:0.0.0.0:7003", or
    "4=unix-to:/path/of-another-switch.sock".

    Raises:
        ValueError: with a message for the user.
    """
    number_text, equals, where = text.partition("=")
    if not equals or not where:
        *most, last = (f"NUMBER={place.form}" for place in PLACES)
        raise ValueError(f"'{text}' is not of the form {', '.join(most)} or {last}")
    if not (number_text.isascii() and number_text.isdigit()) or int(number_text) > MAX_PORT:
        raise ValueError(f"port number '{number_text}' of '{text}' is not within 0 to {MAX_PORT}")
    by_scheme = sorted(PLACES, key=lambda place: len(place.scheme), reverse=True)
    kind = next(place for place in by_scheme if where.startswith(place.scheme))
    try:
        return PortSpec(int(number_text), kind.parse(where.removeprefix(kind.scheme)))
    except ValueError as error:
        raise ValueError(f"'{text}' {error}") from None
