# SPDX-License-Identifier: Apache-2.0
"""MAC and IPv4 addresses as the integers that tables hold and the text that people read."""

from __future__ import annotations

import ipaddress
import re

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


def parse_mac(text: str) -> int:
    """Return a MAC address as an integer. Raises ValueError naming the text."""
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address (like 02:70:34:72:65:64)")
    return int(text.replace(":", ""), 16)


def format_mac(mac: int) -> str:
    """Return `mac` as six pairs of hexadecimal digits."""
    return mac.to_bytes(6, "big").hex(":")


def is_station(mac: int) -> bool:
    """Whether `mac` can be one station's: neither zero nor a group's (IEEE 802, bit I/G)."""
    return mac != 0 and not mac >> 40 & 1


def parse_ip(text: str) -> int:
    """Return an IPv4 address as an integer. Raises ValueError naming the text."""
    try:
        return int(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address (like 10.77.255.254)") from None


def format_ip(ip: int) -> str:
    """Return `ip` in dotted form."""
    return str(ipaddress.IPv4Address(ip))


def is_host(ip: int) -> bool:
    """Whether `ip` can be one host's: not 0.x.x.x, loopback, multicast or broadcast."""
    return ip >> 24 not in (0, 127) and ip < 0xE0000000
