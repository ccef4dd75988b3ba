# SPDX-License-Identifier: Apache-2.0
"""A stranger says that the path takes 552 bytes (ICMP, "fragmentation needed"): nothing happens.

In a network namespace of its own: the kernel believes it for ten minutes, for all of its sockets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from link_ends import NO_LINKS

SCRIPT = r"""
import socket, struct, sys, time
from p4reduce_native.link import Link
from p4reduce_native.udp_handshake import HandshakeResult, never_cut_up

IP_MTU = 14
entered = HandshakeResult(b"thetoken", 8972, b"", b"")
ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for end in ends:
    never_cut_up(end)
    end.bind(("127.0.0.1", 0))
names = [end.getsockname() for end in ends]
for end, name in zip(ends, reversed(names)):
    end.connect(name)
probe = ends[0].dup()
one, other = (Link.over_datagrams(end, entered, 0.05) for end in ends)

def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def forge():
    # What a router would send back with the head of the datagram that it could not pass on.
    host = socket.inet_aton("127.0.0.1")
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 9000, 0, 0x4000, 64, 17, 0, host, host)
    udp = struct.pack("!HHHH", names[0][1], names[1][1], 8980, 0)
    head = struct.pack("!BBHHH", 3, 4, 0, 0, 552)
    message = head[:2] + struct.pack("!H", checksum(head + ip + udp)) + head[4:] + ip + udp
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.sendto(message, ("127.0.0.1", 0))
    raw.close()

frames = [bytes([number]) * 1102 for number in range(56)]
arrived, end = [], time.monotonic() + 60
for attempt in range(40):
    forge()
    assert one.send(frames) == len(frames), "it takes them all"
    arrived.clear()
    while len(arrived) < len(frames) and time.monotonic() < end:
        arrived += other.receive()
        one.receive()
    assert arrived == frames, (attempt, len(arrived))
    other.send(frames[:1])  # so an answer that is missing is not due to the peer's silence
    one.receive()
    time.sleep(0.02)
print("believed by the kernel:", probe.getsockopt(socket.IPPROTO_IP, IP_MTU))
print("size:", one.datagram_counts.path_bytes, "narrowed:", one.datagram_counts.path_narrowed)
"""


@pytest.mark.root
@pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root, unshare")
def test_nobody_narrows_a_path_by_a_lie(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = f"ip link set lo up && exec {sys.executable} {script}"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", command],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "believed by the kernel: 552" in done.stdout, "the forgery arrives"
    assert "size: 8972 narrowed: 0" in done.stdout
