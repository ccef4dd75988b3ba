# SPDX-License-Identifier: Apache-2.0
"""Veth pairs for tests that send and receive on the bare interfaces."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from switch_peer import DEADLINE_S, eventually

__all__ = ["ip", "on_wire", "read_wire", "until_up", "veth_pair"]


def ip(*arguments: str) -> str:
    """Run `ip`, and return what it says."""
    command = ["ip", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout


@contextmanager
def veth_pair(near: str, far: str, *up: str) -> Iterator[tuple[str, str]]:
    """A veth pair, up and silent; skips the test where there can be none.

    Args:
        near, far: the names.
        up: more that `ip link set` is told of both, such as "mtu", "2034".
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a veth pair")
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot make a veth pair: {error}")
    try:
        for name in (near, far):
            # Without IPv6 the kernel says nothing by itself.
            disable_ipv6 = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
            if disable_ipv6.exists():
                disable_ipv6.write_text("1")
            ip("link", "set", name, *up, "up")
        until_up(near, far)
        yield near, far
    finally:
        ip("link", "del", near)


def until_up(*interfaces: str) -> None:
    """Return when they send what they are given.

    The kernel makes a veth's queue ready only some time after the carrier is there, later on a busy
    machine, and drops what comes before that without a word.
    """
    for interface in interfaces:
        eventually(
            lambda name=interface: "state UP" in ip("link", "show", "dev", name),
            f"{interface} is up",
        )


@contextmanager
def on_wire(interface: str) -> Iterator[socket.socket]:
    """A packet socket on an interface; see `read_wire`."""
    # With a protocol from the start it would take frames of all interfaces until it is bound.
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind((interface, 3))
        sock.settimeout(DEADLINE_S)
        yield sock


def read_wire(sock: socket.socket) -> bytes:
    """The next frame towards the test's end: a packet socket also shows what itself sends."""
    while True:
        frame, address = sock.recvfrom(65536)
        if address[2] != socket.PACKET_OUTGOING:
            return frame
