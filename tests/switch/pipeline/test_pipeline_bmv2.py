# SPDX-License-Identifier: Apache-2.0
"""The same frames through BMv2 and through our pipeline: what BMv2 sends, we send too.

BMv2 reads them from a pcap file and writes pcap files (`--use-files`), which needs no interfaces.
It loses some on their way out (its egress queues are short, and the end of the files is not
flushed), so its output has to be a part of ours, in order. The programs run as p4c left them,
without table entries.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from p4reduce_lab.switches.bmv2 import bmv2_command
from p4reduce_switch.program.hashes import csum16
from pipeline_programs import PROGRAMS, load
from test_pipeline_checksums import ipv4, udp

FRAMES = 200
INTERVAL_US = 5000
PORTS = range(10)
INGRESS_PORT = 4
LEAST = 10
"""Fewer frames than this prove nothing."""
AT_A_TIME = 6

Rng = random.Random


def checksums_frame(rng: Rng) -> bytes:
    src, dst = rng.getrandbits(32), rng.getrandbits(32)
    ip = ipv4(rng.choice((6, 17, 18)), rng.choice((0, 1, 64)), rng.choice((5, 6)), src, dst)
    if rng.random() < 0.3:
        ip = ip[:10] + rng.randbytes(2) + ip[12:]
    payload = rng.randbytes(rng.choice((0, 1, 7, 100)))
    extra = b"\x11" if ip[9] == 18 else b""
    transport = udp(ip, extra, payload) if rng.random() < 0.6 else rng.randbytes(8)
    return ip + extra + transport + payload


def flow_frame(rng: Rng) -> bytes:
    command = rng.choice((0, 1, 2, 3, 4, 0x40, 0x41, 0x42, 0x43, 0x44))
    argument = rng.choice((0, 1, 2, 3, 4, 5, 7, 12, 15, 25, 99))
    rest = rng.choice((b"", b"abc", b"abcdefgh", b"abcdabcd", rng.randbytes(20)))
    return bytes((command, argument)) + rng.randbytes(4) + rest


def parsing_frame(rng: Rng) -> bytes:
    head = rng.randrange(8) << 12 | rng.randrange(1 << 12)
    skip = rng.choice((0, 8, 24, 12, 16, 999))
    return struct.pack(">HH", head, skip) + rng.randbytes(rng.choice((0, 5, 16, 27, 40)))


def passive_frame(rng: Rng) -> bytes:
    ethertype = rng.choice((b"\x81\0", b"\x99\x99", b"\x08\0"))
    return rng.randbytes(12) + ethertype + rng.randbytes(rng.choice((0, 5, 29, 33, 60)))


def tables_frame(rng: Rng) -> bytes:
    a = rng.choice((b"\x12\x34", b"\x34\x56", b"\x35\0", b"\x50\0", b"\0\5", b"\x80\5", b"\x80\1"))
    b = rng.choice((b"\x0a\x0b\1\1", b"\x0a\1\1\1", b"\x0b\0\0\0"))
    return bytes((rng.randrange(12),)) + a + b + rng.randbytes(6 + 2 + 256)


def replication_frame(rng: Rng) -> bytes:
    # Without the flag that grows a packet by 768 bytes: of that BMv2 dies.
    flags = rng.randrange(64) & ~4
    command = struct.pack(">HHI", rng.choice((1, 2, 511)) << 7 | flags, 0, rng.getrandbits(32))
    return command + rng.randbytes(40)


def peeking_frame(rng: Rng) -> bytes:
    return bytes((rng.randrange(5) << 4 | rng.randrange(16),)) + rng.randbytes(rng.randrange(12))


def replay_frame(rng: Rng) -> bytes:
    # There are no sessions and no groups, so neither clones nor copies.
    command = struct.pack(">BBHI", rng.randrange(128), rng.randrange(4), 7, rng.getrandbits(32))
    return command + rng.randbytes(40)


def stacks_frame(rng: Rng) -> bytes:
    # At an index that is not there BMv2 dies; in headers that were never valid it has the fields of
    # an earlier packet. Only the first two commands need no full stack.
    what = rng.randrange(16)
    count = rng.randint(1 if what < 2 else 3, 4)
    command = struct.pack(">BBHI", what, rng.randrange(3), 0, 0)
    values = [rng.choice((0x111, 0x222, rng.randrange(1 << 12))) for _ in range(count)]
    last = len(values) - 1
    labels = [struct.pack(">H", v << 4 | (index < last)) for index, v in enumerate(values)]
    return command + b"".join(labels) + rng.randbytes(rng.randrange(20))


def union_stacks_frame(rng: Rng) -> bytes:
    command = rng.randrange(13)
    sizes = {1: 1, 2: 3, 3: 3, 4: 4}
    kinds = [rng.choice(tuple(sizes)) for _ in range(3 if command == 2 else rng.randrange(5))]
    items = b"".join(bytes((kind,)) + rng.randbytes(sizes[kind]) for kind in kinds)
    single = b"\x09" + rng.randbytes(4) if rng.random() < 0.2 else b""
    return bytes((command, 0, 0, 0)) + items + single + b"\xee" + rng.randbytes(rng.randrange(4))


def varbit_fields_frame(rng: Rng) -> bytes:
    # Some commands read both fields, and BMv2 has those of an earlier packet in invalid headers.
    command = rng.randrange(25)
    reads_both = command in (1, 3, 6, 8, 9, 14, 23)
    lengths = (0, 8, 16, 24, 32, 40, 64)
    if not reads_both:
        lengths += (8, 16, 24, 32, 40, 64, 9, 72, 104, 112, 160, 168, 248, 255)
    first, second = rng.choice(lengths), rng.choice(lengths)
    body = bytearray(rng.randbytes(60))
    if rng.random() < 0.5:
        body = bytearray(rng.choice((0, 0, 1, 8, 16, 128)) for _ in body)
    body[1 + first // 8] = rng.choice((0, 8, 16, 24))  # the length of a stack's second element
    if command in (19, 20) and rng.random() < 0.6:
        count = first // 8
        body[1:3] = csum16(bytes(body[:1] + body[3 : 4 + count])).to_bytes(2, "big")
    if not reads_both:
        del body[rng.choice((0, 1, 5, 12, 60, 60, 60)) :]
    return bytes((command, first, second, rng.choice((0, 1, 7)))) + bytes(8) + bytes(body)


def loops_frame(rng: Rng) -> bytes:
    kind, step = rng.choice((*range(7), 200)), rng.randrange(12)
    if kind == 4:
        step |= 1  # else the loop may not end
    signed = struct.pack(
        ">bh", rng.randrange(-128, 128), rng.choice((-300, -1, 0, 5, 6, 999, 1001))
    )
    return bytes((kind, rng.randrange(20))) + signed + bytes((step,)) + rng.randbytes(3)


def constructs_frame(rng: Rng) -> bytes:
    kind = rng.choice((*range(14), 32, 40, 63, 64, 70, 95, 96, 100, 99, 200))
    a, b = (rng.choice((0, 1, 2, 5, 0xFFFF, rng.getrandbits(16))) for _ in range(2))
    s, t = (rng.choice((-32768, -1, 0, 5, 100, 32767)) for _ in range(2))
    head = struct.pack(
        ">BBHHhhBB",
        kind,
        rng.randrange(8),
        a,
        b,
        s,
        t,
        rng.choice((0, 1, 8, 56)),
        rng.randrange(12),
    )
    # All three elements of a stack: what was never valid holds an earlier packet's values in BMv2.
    labels = [rng.randrange(1 << 12) << 4 | rng.randrange(8) << 1 for _ in range(3)]
    labels[-1] |= 1
    if kind > 31:
        labels = []
    checked = struct.pack(">HHHH", rng.randrange(9), 7, rng.getrandbits(16), 0)
    start = b"\x77" if rng.random() < 0.5 else b""
    body = b"".join(struct.pack(">H", label) for label in labels)
    return head + body + start + checked + rng.randbytes(rng.choice((20, 40)))


GENERATORS: dict[str, Callable[[Rng], bytes]] = {
    "checksums": checksums_frame,
    "constructs": constructs_frame,
    "corners": lambda rng: (
        bytes((rng.randrange(4), rng.randrange(256)))
        + bytes(rng.randrange(128, 256) for _ in range(rng.choice((0, 3, 98, 99, 100, 101))))
        + bytes((rng.randrange(128),))
    ),
    "drop_copy": lambda rng: bytes((rng.randrange(4),)) + rng.randbytes(20),
    "flow": flow_frame,
    "hashes": lambda rng: rng.randbytes(rng.randint(7, 60)),
    "loops": loops_frame,
    "many_paths": lambda rng: rng.randbytes(rng.choice((2, 4, 10, 24, 40))),
    "operators": lambda rng: rng.randbytes(783 + rng.randrange(300)),
    "parsing": parsing_frame,
    "passive": passive_frame,
    "peeking": peeking_frame,
    "replay": replay_frame,
    "replication": replication_frame,
    "stacks": stacks_frame,
    # Within all arrays: a release build of BMv2 checks no index, and a register's read or write
    # beyond the end ends it each time, a counter's sometimes. Of ours: test_pipeline_state.py.
    "state": lambda rng: bytes((rng.randrange(2), 0, 0, 0, rng.randrange(2))) + rng.randbytes(263),
    "tables": tables_frame,
    "union_stacks": union_stacks_frame,
    "unions": lambda rng: bytes((rng.randrange(4), rng.randrange(6))) + rng.randbytes(20),
    "varbit_fields": varbit_fields_frame,
    "varbits": lambda rng: (
        bytes((rng.choice((0, 1, 2, 3, 4, 9)), rng.choice((0, 8, 40, 64, 72, 9)), 0, 0))
        + bytes(4)
        + rng.randbytes(rng.randrange(16))
    ),
    "value_sets": lambda rng: rng.randbytes(20),
}


def write_pcap(path: Path, frames: list[bytes]) -> None:
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for number, frame in enumerate(frames):
        seconds, micros = divmod(number * INTERVAL_US, 1_000_000)
        parts.append(struct.pack("<IIII", 1000 + seconds, micros, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))


def read_pcap(path: Path) -> list[bytes]:
    data = path.read_bytes() if path.exists() else b""
    frames = []
    at = 24
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        if at + 16 + length > len(data):
            break
        frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


NO_NEGATIVE_HEX = "Formatted output in bases 8 or 16 is only available for positive numbers"


def run_bmv2(name: str, frames: list[bytes], directory: Path) -> dict[int, list[bytes]]:
    """What BMv2 sends at each port for these frames."""
    for port in PORTS:
        write_pcap(directory / f"p{port}_in.pcap", frames if port == INGRESS_PORT else [])
    options = ["--use-files", "1", "--log-level", "off"]
    for port in PORTS:
        options += ["-i", f"{port}@p{port}"]
    command = bmv2_command([*options, str(PROGRAMS / f"{name}.json")], "unix:grpc.sock")
    said = directory / "stderr.txt"
    with said.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        time.sleep(2.5 + len(frames) * INTERVAL_US / 1e6)
        if NO_NEGATIVE_HEX in said.read_text():
            pytest.skip("BMv2 with logging compiled in ends at an action's negative argument")
        assert process.poll() is None, f"BMv2 ended with exit code {process.returncode}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
    return {port: read_pcap(directory / f"p{port}_out.pcap") for port in PORTS}


@dataclass(frozen=True)
class Exchange:
    """Random frames, and what BMv2 sends at each port for them."""

    seed: int
    frames: list[bytes]
    theirs: dict[int, list[bytes]]


@pytest.fixture(scope="module")
def exchanges(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Exchange]]]:
    """An exchange for each program that is tested, some at a time: mostly BMv2 waits."""
    if shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")

    directory = tmp_path_factory.mktemp("bmv2")

    def run(name: str) -> Exchange:
        (directory / name).mkdir()
        seed = random.randrange(1 << 32)
        rng = Rng(seed)
        frames = [GENERATORS[name](rng) for _ in range(FRAMES)]
        return Exchange(seed, frames, run_bmv2(name, frames, directory / name))

    names = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {name: pool.submit(run, name) for name in names}


@pytest.mark.bmv2
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_what_bmv2_sends_we_send(name: str, exchanges: dict[str, Future[Exchange]]) -> None:
    exchange = exchanges[name].result()
    frames, theirs = exchange.frames, exchange.theirs
    print("seed", exchange.seed)
    pipeline = load(name)
    ours: dict[int, list[bytes]] = {port: [] for port in PORTS}
    for frame in frames:
        for port, out in pipeline.process(INGRESS_PORT, frame):
            ours[port].append(out)
    for port in PORTS:
        if name in ("constructs", "replay"):
            # What goes round again may be overtaken.
            assert not Counter(theirs[port]) - Counter(ours[port])
            continue
        remaining = iter(ours[port])
        for number, out in enumerate(theirs[port]):
            assert any(out == own for own in remaining), (port, number, out.hex())
    received = sum(map(len, theirs.values()))
    if received < LEAST:
        pytest.skip(f"BMv2 sent only {received} of {FRAMES} frames; is the machine overloaded?")
