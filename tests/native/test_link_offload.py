# SPDX-License-Identifier: Apache-2.0
"""Many frames per packet of a veth pair: byte for byte, and unasked for by nobody."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator

import pytest
from fuzzing import Fuzz
from link_ends import DEADLINE_S, NO_LINKS, random_frames, receive_all, send_some
from p4reduce_native.link import Link, LinkKind
from readable import readable
from veth_pairs import veth_pair

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for veth pairs"),
]

MTU = 2034  # a frame of 2,048 bytes


def packet_socket(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
    sock.setsockopt(263, 8, 1)  # PACKET_AUXDATA
    for option in (32, 33):  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
        sock.setsockopt(socket.SOL_SOCKET, option, 32 << 20)
    sock.bind((interface, 3))  # ETH_P_ALL
    sock.setblocking(False)
    return sock


@pytest.fixture
def veth() -> Iterator[tuple[str, str]]:
    names = (f"p4rl{os.getpid() % 100000}a", f"p4rl{os.getpid() % 100000}b")
    with veth_pair(*names, "mtu", str(MTU)) as pair:
        yield pair


@pytest.fixture
def ends(veth: tuple[str, str]) -> Iterator[tuple[Link, Link]]:
    """Those of the switch, which knows nothing of its peer, and of a worker that knows."""
    made = []
    for name, peer_understands in zip(veth, (False, True), strict=True):
        with packet_socket(name) as sock:
            made.append(Link.over_interface(sock, peer_understands=peer_understands))
    assert made[0].kind == LinkKind.OFFLOAD
    yield made[0], made[1]
    for end in made:
        end.close()


def udp(payload: bytes, *, mark: int = 0, checksum: int = 0, ip_checksum: int = -1) -> bytes:
    """A frame of p4reduce's shape; any identification, and the right IPv4 checksum for -1."""
    words = [0x4500, 28 + len(payload), mark, 0, 64 << 8 | 17, 0, 0x0A4D, 1, 0x0A4D, 2]
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    words[5] = ip_checksum if ip_checksum >= 0 else ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    header = struct.pack(
        ">6s6sH10HHHHH",
        b"\x02" * 6,
        b"\x04" * 6,
        0x0800,
        *words,
        49152,
        0xBEE0,
        8 + len(payload),
        checksum,
    )
    return header + payload


def exchange(here: Link, there: Link, frames: list[bytes]) -> list[bytes]:
    sent = 0
    came: list[bytes] = []
    poll = select.poll()
    while len(came) < len(frames):
        sent += send_some(here, frames[sent : sent + 64])
        poll.register(there.fileno(), there.events(frames_wait=False))
        assert poll.poll(DEADLINE_S * 1000)
        came += there.receive()
    return came


@pytest.mark.fuzz
def test_all_kinds_of_frames_both_ways(ends: tuple[Link, Link], fuzz: Fuzz) -> None:
    generator = fuzz.random
    for _ in fuzz.rounds(20):
        frames: list[bytes] = []
        while len(frames) < 200:
            size = generator.choice([0, 1, 36, 548, 1060, 2006])
            run = generator.choice([1, 2, 30, 70])
            kind = generator.randrange(5)
            if kind == 0:
                # Not for the kernel's own use: an ethertype for experiments.
                frames += [f[:12] + b"\x88\xb5" + f[14:] for f in random_frames(generator, run)]
            else:
                mark, checksum = generator.randrange(65536), kind == 1 and 0xABCD
                ip_checksum = generator.choice([0, 0x1234, 0xFFFF]) if kind == 2 else -1
                frames += [
                    udp(
                        generator.randbytes(size),
                        mark=mark,
                        checksum=checksum,
                        ip_checksum=ip_checksum,
                    )
                    for _ in range(run)
                ]
        for here, there in (ends, ends[::-1]):
            assert exchange(here, there, frames) == frames


def heard(sock: socket.socket, total: int) -> list[int]:
    """Lengths of the packets with the next so many bytes of payload."""
    found: list[int] = []
    while sum(length - 42 for length in found) < total:
        assert readable([sock], DEADLINE_S)
        found.append(len(sock.recv(70000)))
    return found


def test_who_has_not_asked_sees_single_frames_only(
    veth: tuple[str, str], ends: tuple[Link, Link]
) -> None:
    switch, worker = ends
    frames = [udp(bytes([i]) * 1060) for i in range(50)]
    total = 50 * 1060
    with packet_socket(veth[1]) as listener, packet_socket(veth[0]) as other:
        assert exchange(switch, worker, frames) == frames
        assert heard(listener, total) == [1102] * 50
        # One that does not put frames together learns nothing of those that do.
        listener.send(frames[0])
        assert receive_all(switch, 1) == frames[:1]
        assert heard(other, 1060) == [1102]
        assert exchange(switch, worker, frames) == frames
        assert heard(listener, total) == [1102] * 50
        # The worker does, and is answered in the same way.
        for _ in range(5):
            assert exchange(worker, switch, frames) == frames
            assert heard(other, total) == [42 + total]
            assert exchange(switch, worker, frames) == frames
            answer = heard(listener, total)
            if len(answer) == 1:  # else this process slept for 2 s in between
                break
        assert answer == [42 + total]


def test_packets_that_are_no_frames_of_ours_are_too_long(
    veth: tuple[str, str], ends: tuple[Link, Link]
) -> None:
    """As the kernel's own segmentation offload gives them: with a checksum to be filled in."""
    switch, _ = ends
    payload = bytes(range(256)) * 20
    with packet_socket(veth[1]) as sock:
        sock.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
        vnet = struct.pack("=BBHHHH", 1, 5, 42, 1024, 34, 6)
        sock.send(vnet + udp(payload, checksum=0x1111))
    poll = select.poll()
    poll.register(switch.fileno(), select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000)
    assert switch.receive() == []
    assert switch.counts.rx_too_long == 1


def test_rows_and_more_frames_than_there_is_room(ends: tuple[Link, Link]) -> None:
    """What is left of a packet comes with the next receive, and is told by events."""
    switch, worker = ends
    frames = [udp(bytes([i]) * 100) for i in range(64)]
    for _ in range(2):
        assert worker.send(frames) == 64
    # 128 frames in two packets, with room for 64 at a time; the second is whole in the socket.
    assert receive_all(switch, 64) == frames
    assert receive_all(switch, 64) == frames
    assert switch.receive() == []
    assert not switch.events(frames_wait=False) & select.EPOLLOUT
    # A frame in front, so that one of the packet's finds no room where both have come.
    assert worker.send([udp(b"first")]) == 1
    assert worker.send(frames) == 64
    assert receive_all(switch, 65) == [udp(b"first"), *frames]


def test_the_rest_of_a_packet_is_told_by_events(
    veth: tuple[str, str], ends: tuple[Link, Link]
) -> None:
    switch, worker = ends
    frames = [udp(bytes([i]) * 100) for i in range(64)]
    with packet_socket(veth[0]) as other:
        assert worker.send([udp(b"first")]) == 1
        assert worker.send(frames) == 64
        heard(other, 5 + 6400)  # so both have come
    assert switch.receive() == [udp(b"first"), *frames[:63]]
    assert switch.events(frames_wait=False) & select.EPOLLOUT
    assert switch.receive() == frames[63:]
    assert not switch.events(frames_wait=False) & select.EPOLLOUT


def test_a_packet_of_the_version_before_comes_out_as_it_went_in(
    veth: tuple[str, str], ends: tuple[Link, Link]
) -> None:
    """Its IPv4 checksum is that of a single frame."""
    switch, _ = ends
    frames = [udp(bytes([number]) * 1024) for number in range(3)]
    whole = bytearray(frames[0] + frames[1][42:] + frames[2][42:])
    whole[16:18] = (28 + 3 * 1024).to_bytes(2, "big")
    whole[38:40] = (8 + 3 * 1024).to_bytes(2, "big")
    with packet_socket(veth[1]) as sock:
        sock.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
        sock.send(struct.pack("=BBHHHH", 1, 5, 42, 1024, 34, 6) + whole)
    assert receive_all(switch, 3) == frames


@pytest.mark.fuzz
def test_segments_of_any_size(veth: tuple[str, str], ends: tuple[Link, Link], fuzz: Fuzz) -> None:
    """What a hostile peer may send: any size, a last segment that is cut off, any content."""
    switch, _ = ends
    generator = fuzz.random
    with packet_socket(veth[1]) as sock:
        sock.setsockopt(263, 15, 1)  # PACKET_VNET_HDR
        for _ in fuzz.rounds(60):
            segment = generator.choice([1, 2, 36, 548, 1024, 2006, 2007, 9000])
            length = min(generator.randrange(segment + 1, 60 * segment), 60_000)
            payload = generator.randbytes(length)
            cut = [payload[at : at + segment] for at in range(0, length, segment)]
            too_long = switch.counts.rx_too_long
            sock.send(struct.pack("=BBHHHH", 1, 5, 42, segment, 34, 6) + udp(payload))
            if segment <= 2006:
                assert receive_all(switch, len(cut)) == [udp(part) for part in cut]
                continue
            poll = select.poll()
            poll.register(switch.fileno(), select.POLLIN)
            assert poll.poll(DEADLINE_S * 1000)
            assert switch.receive() == []
            assert switch.counts.rx_too_long == too_long + 1
