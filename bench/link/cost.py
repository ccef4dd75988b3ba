# SPDX-License-Identifier: Apache-2.0
"""What a frame costs at each end of a link between two processes: CPU time, in nanoseconds.

All kinds of links in one run, in turns, so that what else the machine does hits all of them; the
best of some repetitions. The loops at both ends are C (`driver.c`). A sender that finds no
room and a receiver that finds nothing sleep, and that is part of the cost.

    python -m bench.link.cost [--frames 200000] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from functools import partial
from pathlib import Path

from p4reduce_lab.errors import UnavailableError
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC
from p4reduce_native.link import UNIX_KINDS, Link, LinkKind, offers

from bench.measure import in_turns
from bench.program import read_options, run, tell

BYTES = 1102  # a contribution with its 1,024 bytes of lanes
BATCHES = (1, 8, 32, 64)  # frames per call of send
DEADLINE_S = 20.0


def driver() -> ctypes.CDLL:
    """The loops, compiled together with the links."""
    sources = [Path(__file__).with_name("driver.c"), *sorted((CSRC / "link").glob("*.c"))]
    library = ctypes.CDLL(str(compile_shared("link_bench", sources, include=[CSRC])))
    library.bench_send.restype = library.bench_receive.restype = ctypes.c_double
    library.bench_send.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
    library.bench_receive.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


def measure(library: ctypes.CDLL, kind: LinkKind, batch: int, frames: int) -> tuple[float, float]:
    """One run, the sender in a process of its own; CPU ns of sender and receiver for a frame."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        here.close()
        worker = Link.connect(there, offers(kind), DEADLINE_S)
        os.write(
            writing, struct.pack("d", library.bench_send(worker.pointer, frames, batch, BYTES))
        )
        os._exit(0)
    there.close()
    switch = Link.accept(here, offers(LinkKind.SHARED))
    if kind != LinkKind.SINGLE:
        poll = select.poll()
        poll.register(switch.fileno(), select.POLLIN)
        poll.poll(DEADLINE_S * 1000)
        switch.receive()
    received = library.bench_receive(switch.pointer, frames)
    (sent,) = struct.unpack("d", os.read(reading, 8))
    os.waitpid(child, 0)
    switch.close()
    os.close(reading)
    os.close(writing)
    if received <= 0 or sent <= 0:
        raise SystemExit(f"{kind.name.lower()}: sender {sent:.0f}, receiver {received:.0f}")
    return sent / frames, received / frames


def main() -> None:
    options = read_options(__doc__, frames=200_000, repeat=5)
    try:
        library = driver()
    except NativeUnavailableError as error:
        raise UnavailableError(str(error)) from None
    ways = {}
    for kind in UNIX_KINDS:
        frames = options.frames // (8 if kind == LinkKind.SINGLE else 1)
        for batch in BATCHES:
            name = f"{kind.name.lower()}, {batch} frames per call"
            ways[name] = partial(measure, library, kind, batch, frames)
    rows = []
    for name, found in in_turns(ways, options.repeat).items():
        sent, received = (round(min(ends)) for ends in zip(*found, strict=True))
        rows.append({"name": name, "send_ns": float(sent), "receive_ns": float(received)})
    tell(options, rows, f"CPU ns for a frame of {BYTES} bytes")


if __name__ == "__main__":
    run(main)
