# SPDX-License-Identifier: Apache-2.0
"""Addresses of the form HOST:PORT, in which an IPv6 address stands in brackets."""

from __future__ import annotations

import ipaddress
import re

FORM = "HOST:PORT"
LAST_PORT = 65535
_NAME = re.compile(r"[\w.-]{1,255}")


def split_host_port(text: str) -> tuple[str, str]:
    """Split "host:7", "[::1]:7", "host", "[::1]" or "::1"; a port that is missing is "".

    Raises:
        ValueError: brackets are not in pairs around an IPv6 address, or missing before a port.
    """
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or not _is_ipv6(host):
            raise ValueError(f"{text!r} has no IPv6 address in brackets, like [::1]:7")
        return host, port[1:]
    host, _, port = text.rpartition(":")
    if not host:
        return (port, "") if port == text else ("", port)
    if ":" not in host:
        return host, port
    if not _is_ipv6(text):
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    return text, ""


def parse_host_port(text: str, form: str = FORM, default: int | None = None) -> tuple[str, int]:
    """Read an address as `split_host_port` does.

    Args:
        text: what the user wrote.
        form: what would be right, for the message.
        default: the port if the text has none; None: it has to have one.

    Raises:
        ValueError: the text is not of that form. The message names it.
    """
    host, port = split_host_port(text)
    if not port and default is None and _is_ipv6(text):
        host, _, port = text.rpartition(":")
        if not _is_ipv6(host):
            raise ValueError(f"{text!r} has no port: write [{text}]:PORT")
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    if not host or (not port and (default is None or text.endswith(":"))):
        raise ValueError(f"{text!r} is not of the form {form}")
    if port and (not (port.isascii() and port.isdigit()) or int(port) > LAST_PORT):
        raise ValueError(f"port {port!r} of {text!r} is not within 0 to {LAST_PORT}")
    if not (_NAME.fullmatch(host) or _is_ipv6(host)):
        raise ValueError(f"{host!r} of {text!r} is neither a host's name nor its IP address")
    return host, int(port or default or 0)


def named_host(header: str) -> str:
    """Return an HTTP Host header without its port, in lower case; "" if it is malformed."""
    try:
        return bracketed(split_host_port(header.strip().lower())[0])
    except ValueError:
        return ""


def format_host_port(host: str, port: int | str) -> str:
    """Return an address in the form that `parse_host_port` reads."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
