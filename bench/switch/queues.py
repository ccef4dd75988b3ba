# SPDX-License-Identifier: Apache-2.0
"""What leaves egress queues with a depth of 4 and 10 frames per second, on BMv2 and here.

Bursts go through both switches by veth pairs; each frame brings along what egress was told of its
queue. BMv2's queues are set by Thrift, so it has to be a build that has it (p4lang's packages).
Takes root. A machine that is held up for a tenth of a second shifts what comes.

    python -m bench.switch.queues
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.switches import bmv2

PROGRAM = Path(__file__).parents[2] / "tests/switch/programs/queues.json"
PROBE = struct.Struct(">HBBBBIIII")  # see the program
DEPTH, RATE = 4, 10
BURSTS = ([0] * 12, [0] * 12, [0, 7, 0, 7, 3, 3, 0, 7])
"""Priorities of the frames of each burst."""
PAUSE_S = 0.002  # between two frames
READY_S = 60.0
I32, I64 = (8, ">i"), (10, ">q")  # Thrift's types


@contextmanager
def switch(name: str, veths: VethPorts, directory: Path) -> Iterator[None]:
    """A switch of that name, with its queues set up."""
    ports = [f"-i{number}@{interface}" for number, interface in veths.switch_side.items()]
    target = ["--priority-queues", "8"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        thrift_port = free.getsockname()[1]
    if name == "bmv2":
        command = [bmv2.PROGRAM, *ports, "--thrift-port", str(thrift_port), str(PROGRAM)]
    else:
        command = ["p4reduce-simple-switch-grpc", *ports, str(PROGRAM)]
        target += ["--queue-depth", str(DEPTH), "--queue-rate", str(RATE)]
    listens = directory / f"{name}.sock"
    command += ["--", "--grpc-server-addr", f"unix:{listens}", *target]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(listens, process)
        if name == "bmv2":
            _set_queues(thrift_port)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(listens: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while not listens.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} does not listen at {listens}")
        time.sleep(0.1)
    time.sleep(1)  # BMv2 starts its threads after that; the other one may still compile


def _set_queues(thrift_port: int) -> None:
    for method, (kind, layout), value in (
        ("set_all_egress_queue_depths", I32, DEPTH),
        ("set_all_egress_queue_rates", I64, RATE),
    ):
        name = f"simple_switch:{method}".encode()
        call = struct.pack(">Ii", 0x80010001, len(name)) + name + struct.pack(">i", 1)
        call += struct.pack(">bh", kind, 1) + struct.pack(layout, value) + b"\0"
        with socket.create_connection(("127.0.0.1", thrift_port), READY_S) as thrift:
            thrift.sendall(call)
            thrift.recv(1024)


def burst(veths: VethPorts, priorities: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Send a burst from port 1 to port 2; number, both depths and the wait (µs) of each frame."""
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as receiver,
    ):
        sender.bind((veths.worker_side[1], 0))
        receiver.bind((veths.worker_side[2], 3))
        receiver.settimeout((DEPTH + 10) / RATE)
        for number, priority in enumerate(priorities):
            sender.send(PROBE.pack(2, priority, 0, 0, number, *(0,) * 4) + bytes(40))
            time.sleep(PAUSE_S)
        while True:
            try:
                frame, address = receiver.recvfrom(2048)
            except TimeoutError:
                return
            if address[2] != socket.PACKET_OUTGOING:
                _, _, _, _, number, _, before, waited, behind = PROBE.unpack_from(frame)
                yield number, before, behind, waited


def main() -> None:
    reason = bmv2.unavailable()
    if reason is not None:
        raise SystemExit(reason)
    for name in ("bmv2", "embedded"):
        with VethPorts(2) as veths, tempfile.TemporaryDirectory() as directory:
            print(f"{name}: number, enq_qdepth, deq_qdepth, wait in ms")
            with switch(name, veths, Path(directory)):
                for priorities in BURSTS:
                    for number, before, behind, waited in burst(veths, priorities):
                        print(f"  {number:2} {before} {behind} {waited / 1000:6.1f}")
                    print("  --")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
