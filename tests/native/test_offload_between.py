# SPDX-License-Identifier: Apache-2.0
"""Packets of many frames, with a bridge, a bond, a VLAN, macvlan or a plain device in between."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from link_ends import DEADLINE_S, NO_LINKS, send_some
from p4reduce_native.link import Link
from readable import readable
from test_link_offload import exchange, packet_socket, udp
from veth_pairs import veth_pair

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for veth pairs"),
]

_SIOCGIFHWADDR = 0x8927


def name(what: str) -> str:
    return f"p4rx{os.getpid() % 1_000_000}{what}"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if "Unknown device type" in done.stderr:
        pytest.skip(f"this kernel has no such device: ip {' '.join(words)}")
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def address(interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = interface.encode().ljust(40, b"\0")
        return fcntl.ioctl(sock, _SIOCGIFHWADDR, request)[18:24]


class Wires:
    """Interfaces of this test, which go with it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def pair(self, one: str, other: str) -> tuple[str, str]:
        return self._stack.enter_context(veth_pair(name(one), name(other), "mtu", "1500"))

    def add(self, what: str, *words: str) -> str:
        """Make another device, up; returns its name."""
        device = name(what)
        ip("link", "add", *(device if word == "DEVICE" else word for word in words))
        self._stack.callback(
            subprocess.run, ["ip", "link", "del", device], capture_output=True, check=False
        )
        ip("link", "set", device, "up")
        return device


def bridge(wires: Wires) -> tuple[str, str]:
    near, behind = wires.pair("a", "b")
    before, far = wires.pair("c", "d")
    device = wires.add("r", "DEVICE", "type", "bridge")
    for port in (behind, before):
        ip("link", "set", port, "master", device)
    return near, far


def bond(wires: Wires) -> tuple[str, str]:
    near, far = wires.pair("a", "b")
    device = wires.add("o", "DEVICE", "type", "bond", "mode", "active-backup")
    ip("link", "set", near, "down")
    ip("link", "set", near, "master", device)
    ip("link", "set", near, "up")
    return device, far


def vlan(wires: Wires) -> tuple[str, str]:
    near, far = wires.pair("a", "b")
    tagged = [
        wires.add(end, "link", below, "name", "DEVICE", "type", "vlan", "id", "7")
        for end, below in (("v", near), ("w", far))
    ]
    return tagged[0], tagged[1]


def macvlan(wires: Wires) -> tuple[str, str]:
    near, far = wires.pair("a", "b")
    kind = ("type", "macvlan", "mode", "bridge")
    return wires.add("m", "link", near, "name", "DEVICE", *kind), far


@pytest.fixture(params=[bridge, bond, vlan, macvlan], ids=lambda make: make.__name__)
def interfaces(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        yield request.param(Wires(stack))


def ends(stack: ExitStack, interfaces: tuple[str, str]) -> tuple[Link, Link]:
    """A worker's and the switch's."""
    made = []
    for interface, peer_understands in zip(interfaces, (True, False), strict=True):
        with packet_socket(interface) as sock:
            made.append(Link.over_interface(sock, peer_understands=peer_understands))
        stack.callback(made[-1].close)
    return made[0], made[1]


def between(source: str, target: str, count: int) -> list[bytes]:
    """Frames with the interfaces' own addresses: a bridge or macvlan gives no others on."""
    addresses = address(target) + address(source)
    return [addresses + udp(bytes([number]) * 1060)[12:] for number in range(count)]


def test_packets_pass_whole_and_are_answered_alike(interfaces: tuple[str, str]) -> None:
    near, far = interfaces
    up, down = between(near, far, 50), between(far, near, 50)
    with ExitStack() as stack:
        worker, switch = ends(stack, interfaces)
        listener = stack.enter_context(packet_socket(far))
        for _ in range(3):
            assert only_ours(worker, switch, up) == up
            assert only_ours(switch, worker, down) == down
        lengths = [len(packet) for packet in drained(listener)]
    assert max(lengths) == 42 + 50 * 1060


def only_ours(here: Link, there: Link, frames: list[bytes]) -> list[bytes]:
    """Send frames, and return those of them that come; the kernel says things of its own here."""
    send_some(here, frames)
    came: list[bytes] = []
    while len(came) < len(frames):
        assert readable([there], DEADLINE_S)
        came += [frame for frame in there.receive() if frame in frames]
    return came


def drained(sock: socket.socket) -> list[bytes]:
    """What has come; it is there already, as the link behind it has seen it."""
    packets = []
    while readable([sock], 0):
        packets.append(sock.recv(70000))
    return packets


def test_a_device_without_segmentation_gets_single_frames() -> None:
    """The kernel takes packets apart in front of it; only marks and UDP checksums differ."""
    if shutil.which("ethtool") is None:
        pytest.skip("needs ethtool")
    with ExitStack() as stack:
        near, far = Wires(stack).pair("a", "b")
        off = ["ethtool", "-K", near, "tx-udp-segmentation", "off"]
        subprocess.run(off, check=True, capture_output=True)
        worker, switch = ends(stack, (near, far))
        frames = between(near, far, 50)
        came = exchange(worker, switch, frames)
        assert [frame[42:] for frame in came] == [frame[42:] for frame in frames]
        for number, (frame, sent) in enumerate(zip(came, frames, strict=True)):
            assert frame[:18] + frame[20:24] == sent[:18] + sent[20:24]
            assert struct.unpack(">H", frame[18:20])[0] == number
            words = struct.unpack(">10H", frame[14:34])
            assert sum(words) % 0xFFFF == 0
