# SPDX-License-Identifier: Apache-2.0
"""Addresses of the form HOST:PORT, as all parts of the project read and write them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from p4reduce_common.host_port import (
    format_host_port,
    named_host,
    parse_host_port,
    split_host_port,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("node7:5000", ("node7", "5000")),
        ("10.0.0.1:5000", ("10.0.0.1", "5000")),
        ("[fd00::5]:40123", ("fd00::5", "40123")),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", "7")),
        ("[::ffff:10.0.0.1]:7", ("::ffff:10.0.0.1", "7")),
        ("node7", ("node7", "")),
        ("[::1]", ("::1", "")),
        ("fd00::5", ("fd00::5", "")),
        ("::1:5000", ("::1:5000", "")),  # an address, in which 5000 is no port
        (":7", ("", "7")),
        ("", ("", "")),
    ],
)
def test_the_parts(text: str, parts: tuple[str, str]) -> None:
    assert split_host_port(text) == parts


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-7.example:65535", ("node-7.example", 65535)),
        ("my_host:0", ("my_host", 0)),
        ("[::1]:9559", ("::1", 9559)),
        ("10.0.0.1:9559", ("10.0.0.1", 9559)),
    ],
)
def test_what_is_written_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_host_port(text) == address
    assert format_host_port(*address) == text


@pytest.mark.parametrize("text", ["10.0.0.1", "node7", "[::1]", "fe80::1"])
def test_a_port_may_be_missing_where_there_is_a_default(text: str) -> None:
    host, port = parse_host_port(text, default=7)
    assert (host, port) == (text.strip("[]"), 7)
    with pytest.raises(ValueError, match=r"HOST:PORT|\]:PORT"):
        parse_host_port(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not of the form HOST:PORT"),
        (":1", "':1' is not of the form HOST:PORT"),
        ("a:", "'a:' is not of the form HOST:PORT"),
        ("[::1]:", "'[::1]:' is not of the form HOST:PORT"),
        ("a:x", "port 'x' of 'a:x' is not within 0 to 65535"),
        ("a:-1", "port '-1' of 'a:-1' is not within"),
        ("a:65536", "port '65536' of 'a:65536' is not within"),
        ("a:٣", "is not within 0 to 65535"),
        ("::1:5", "write an IPv6 address in brackets: [::1]:5"),
        ("::1", "'::1' has no port: write [::1]:PORT"),
        ("fe80::1", "'fe80::1' has no port: write [fe80::1]:PORT"),
        ("a:b:5", "write an IPv6 address in brackets: [a:b]:5"),
        ("[::1", "'[::1' has no IPv6 address in brackets"),
        ("[::1]5", "'[::1]5' has no IPv6 address in brackets"),
        ("[node7]:5", "'[node7]:5' has no IPv6 address in brackets"),
        ("[]:5", "'[]:5' has no IPv6 address in brackets"),
        ("a b:5", "'a b' of 'a b:5' is neither a host's name nor its IP address"),
        ("http://a:5", "write an IPv6"),
    ],
)
def test_what_is_no_address_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_host_port(text)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("LocalHost:9090", "localhost"),
        ("[::1]:9090", "[::1]"),
        ("[::1]", "[::1]"),
        ("evil.example", "evil.example"),
        ("[::1]evil", ""),
        ("a:b:c", ""),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert named_host(header) == name


def test_nothing_else_takes_addresses_apart() -> None:
    """A second parser would read IPv6 addresses in its own way."""
    named = r"(host|address|where|addr)\w*(\[[^]]*\])?\.r?(partition|split)\(\":\""
    folders = ["worker", "controller", "switch", "lab", "common", "native", "bench"]
    found = subprocess.run(
        ["git", "grep", "-nE", named, "--", *(f"{one}/*.py" for one in folders)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout == ""
