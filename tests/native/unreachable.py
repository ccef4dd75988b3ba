# SPDX-License-Identifier: Apache-2.0
"""A switch and its workers whose host has no way between them for a while: unreachable FAULTS.

It runs in a network namespace of its own, with the rights to change it, and with the library of
syscall_faults.c preloaded: FAULTS. Each end tries again after pauses that double, waits for no
event that is there already, and goes on once there is a way again.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from functools import partial

import numpy as np
from p4reduce.transport.base import Transport
from p4reduce.transport.udp import PythonUdpTransport, UdpTransport
from p4reduce.wire.frames import FrameBuffer
from p4reduce_switch.dataplane import DataPlane, open_data_plane
from p4reduce_switch.ports.registry import parse_ports
from stand_ins import Program
from switch_peer import eventually

SECONDS = 120.0
HOST = "10.77.0.1"
CPU_PORT = 255
TRIES = 6
FRAME = bytes(range(60))
ONE_ROW = np.zeros(1, np.int64)

# How a way is lost, and how it comes back.
WAYS = {
    **{
        kind: (f"route add {kind} {HOST} table 50", f"route del {kind} {HOST} table 50")
        for kind in ("unreachable", "prohibit", "blackhole")
    },
    "address gone": (f"addr del {HOST}/32 dev lo", f"addr add {HOST}/32 dev lo"),
}


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, timeout=SECONDS)


def crossing(port: int, frame: bytes) -> list[tuple[int, bytes]]:
    """Ports 1 and 2 are joined by a wire; the controller's frames go to both."""
    return [(1, frame), (2, frame)] if port == CPU_PORT else [(3 - port, frame)]


def sent(transport: Transport, frame: bytes) -> int:
    buffer = FrameBuffer(1)
    buffer.put(0, frame)
    return transport.send(buffer, ONE_ROW)


def try_in_vain(worker: Transport) -> None:
    """As the worker's loop does: what has not left waits for room."""
    began = time.monotonic()
    for _ in range(TRIES):
        assert sent(worker, FRAME) == 0
        worker.wait(SECONDS, writable=True)
    assert time.monotonic() - began > (2**TRIES - 1) * 0.9e-3, "it waits longer and longer"


def arrives(worker: Transport, frame: bytes) -> bool:
    count = worker.receive()
    return frame in [worker.received.get(row) for row in range(count)]


def go_through(way: str, switch: DataPlane, workers: list[Transport], faults: ctypes.CDLL) -> None:
    lost, found = WAYS[way]
    before = faults.faults_failures()
    ip(lost)
    switch.inject(FRAME + way.encode())
    for worker in workers:
        try_in_vain(worker)
    failed = faults.faults_failures() - before
    ip(found)
    for worker in workers:
        eventually(partial(arrives, worker, FRAME + way.encode()), way, SECONDS)
    for one, other in (workers, workers[::-1]):
        frame = FRAME + str(one).encode()
        eventually(partial(sent, one, frame), way, SECONDS)
        eventually(partial(arrives, other, frame), way, SECONDS)
    print(f"{way}: {failed} sends failed")
    assert not faults.faults_spins(), "it waits for room that is there"
    assert not faults.faults_hurries(), "it tries again too soon"


def main() -> None:
    faults = ctypes.CDLL(sys.argv[1])
    ip("link set lo up")
    ip(f"addr add {HOST}/32 dev lo")
    for rule in ("add pref 10 lookup 50", "add pref 20 lookup local", "del pref 0"):
        ip(f"rule {rule}")
    switch = open_data_plane(parse_ports(f"1-2=udp:{HOST}:7001"), cpu_port=CPU_PORT)
    switch.start()
    switch.run(lambda: switch.install(Program(crossing)))  # type: ignore[arg-type]
    workers = [UdpTransport(f"{HOST}:7001"), PythonUdpTransport(f"{HOST}:7002")]
    for way in WAYS:
        go_through(way, switch, workers, faults)
    for worker in workers:
        worker.close()
    switch.stop()


if __name__ == "__main__":
    main()
