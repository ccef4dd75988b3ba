# SPDX-License-Identifier: Apache-2.0
"""What a frame costs at each end of a link between two processes: CPU time, in nanoseconds.

All kinds of links in one run, in turns, so that what else the machine does hits all of them; the
best of some repetitions. The loops at both ends are C (`driver.c`). A sender that finds no
room and a receiver that finds nothing sleep, and that is part of the cost.

    python -m bench.link [--frames 200000] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import socket
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC
from p4reduce_native.link import UNIX_KINDS, Link, LinkKind, offers

from bench.machine import describe, machine

BYTES = 1102  # a contribution with its 1,024 bytes of lanes
BATCHES = (1, 8, 32, 64)  # frames per call of send
DEADLINE_S = 20.0
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


@dataclass(frozen=True)
class Result:
    """One kind of link and one size of batches.

    Attributes:
        name: kind and batch.
        send_ns: CPU time of the sender for each frame.
        receive_ns: of the receiver.
    """

    name: str
    send_ns: float
    receive_ns: float


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
    """Measure, print, and write JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    try:
        library = driver()
    except NativeUnavailableError as error:
        print(error, file=sys.stderr)
        raise SystemExit(CANNOT_RUN) from None
    best: dict[tuple[LinkKind, int], tuple[float, float]] = {}
    for _ in range(arguments.repeat):
        for kind in UNIX_KINDS:
            for batch in BATCHES:
                frames = arguments.frames // (8 if kind == LinkKind.SINGLE else 1)
                once = measure(library, kind, batch, frames)
                old = best.get((kind, batch), once)
                best[kind, batch] = min(old[0], once[0]), min(old[1], once[1])
    results = [
        Result(f"{kind.name.lower()}, {batch} frames per call", round(sent), round(received))
        for (kind, batch), (sent, received) in best.items()
    ]
    print(describe(machine()))
    print(f"CPU ns for a frame of {BYTES} bytes\n{'':32}{'send':>8}{'receive':>9}")
    for result in results:
        print(f"{result.name:32}{result.send_ns:8.0f}{result.receive_ns:9.0f}")
    if arguments.json:
        report = {"machine": machine(), "results": [asdict(result) for result in results]}
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
