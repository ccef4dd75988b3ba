# SPDX-License-Identifier: Apache-2.0
"""A port of a program with egress queues, whose device has no memory for a moment.

The library of syscall_faults.c is preloaded: queues_rest FAULTS DIRECTORY. No event reports that
there is memory again. So the loop has to let the queues go on by itself once the port could send.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
import threading
from pathlib import Path

from p4reduce_switch import dataplane
from p4reduce_switch.pipeline_choice import load_pipeline
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from p4reduce_switch.state.queue_settings import QueueSettings
from pipeline_programs import config
from switch_peer import Peer, eventually

FRAMES = 40
FAILURES = 3
NEVER = 3600.0  # seconds; what it is woken by otherwise
PROBE = struct.Struct(">HBBBBIIII")


def main() -> None:
    faults, directory = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
    dataplane.FLUSH_INTERVAL_S = NEVER
    paths = {number: directory / f"p{number}.sock" for number in (1, 2)}
    switch = dataplane.open_data_plane([PortSpec(n, UnixPlace(path)) for n, path in paths.items()])
    switch.start()
    pipeline = load_pipeline(config("queues"), engine="native", queues=QueueSettings(depth=100))
    switch.run(lambda: switch.install(pipeline))
    peers = {number: Peer(path) for number, path in paths.items()}
    for port in switch.ports.values():
        eventually(lambda port=port: port.is_up, "ports up")  # type: ignore[misc]
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        released.wait()
        faults.faults_send(socket.AF_UNIX, errno.ENOBUFS, FAILURES)

    holder = threading.Thread(target=switch.run, args=(hold,))
    holder.start()
    held.wait()
    for tag in range(FRAMES):
        peers[1].send(PROBE.pack(2, 0, 0, 0, tag, 0, 0, 0, 0) + bytes(60))
    released.set()
    holder.join()
    came = [peers[2].receive()[5] for _ in range(FRAMES)]
    assert came == list(range(FRAMES)), came
    assert faults.faults_failures() == FAILURES
    for peer in peers.values():
        peer.close()
    switch.stop()


if __name__ == "__main__":
    main()
