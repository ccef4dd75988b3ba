# SPDX-License-Identifier: Apache-2.0
"""simple_switch_grpc in place of the embedded switch. Needs root and a network namespace to itself:
test_controller_bmv2.py runs the other tests in one."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import socket
import subprocess
import tempfile
from pathlib import Path

from controller_harness import DEADLINE, PORTS
from p4reduce_lab.switches.bmv2 import bmv2_command

ETHERTYPE_IPV4 = 0x0800
_numbers = itertools.count()


def _run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=DEADLINE)


class Interface:
    """The worker's end of a port, as a socket that sends and receives frames."""

    def __init__(self, name: str) -> None:
        # With a protocol from the start it would take frames of all interfaces until it is bound.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.bind((name, ETHERTYPE_IPV4))
        self._socket.settimeout(DEADLINE)

    def send(self, frame: bytes) -> None:
        """Send a frame to the switch."""
        self._socket.send(frame)

    def recv(self, size: int) -> bytes:
        """Receive the next frame from the switch, but for our own."""
        while True:
            frame, (_, _, kind, *_) = self._socket.recvfrom(size)
            if kind != socket.PACKET_OUTGOING:
                return frame

    def drain(self) -> None:
        """Throw away what waits."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(2048):
                pass
        self._socket.settimeout(DEADLINE)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Bmv2Switch:
    """BMv2 on veth pairs; the same as SwitchProcess to the tests."""

    names_full_tables = False  # its error for a full table is UNKNOWN
    remembers_election_ids = False  # of controllers that are gone

    def __init__(self, directory: Path) -> None:
        number = next(_numbers)
        self._worker_ends = {port: f"w{number}p{port}" for port in PORTS}
        _run("ip link set lo up")
        interfaces = []
        for port, worker_end in self._worker_ends.items():
            switch_end = f"s{number}p{port}"
            _run(f"ip link add {switch_end} type veth peer name {worker_end}")
            for end in (switch_end, worker_end):
                _run(f"sysctl -qw net.ipv6.conf.{end}.disable_ipv6=1")
                _run(f"ip link set {end} mtu 1500 up")
                # With offloads on, frames vanish in simple_switch.
                _run(f"ethtool -K {end} rx off tx off sg off tso off gso off gro off")
            interfaces += ["-i", f"{port}@{switch_end}"]
        # pytest's directory may be longer than a socket's path can be.
        self._sockets = tempfile.TemporaryDirectory(prefix="p4rt", dir="/tmp")
        self.address = f"unix:{self._sockets.name}/s"
        options = ["--no-p4", "--device-id", "1", *interfaces]
        self._command = bmv2_command(options, self.address, ["--cpu-port", "255"])
        self._log = (directory / "switch.log").open("wb")
        self.process = self._start()
        self._plugged: dict[int, Interface] = {}

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        """Kill the process; the interfaces stay."""
        self.process.kill()
        self.process.wait()

    def revive(self) -> None:
        """Start it again, which begins with nothing."""
        self.process = self._start()

    def plug(self, port: int) -> Interface:
        """Return the worker's end of a port."""
        if port not in self._plugged:
            self._plugged[port] = Interface(self._worker_ends[port])
        return self._plugged[port]

    def drain(self) -> None:
        """Throw away what waits at the ports."""
        for plugged in self._plugged.values():
            plugged.drain()

    def close(self) -> None:
        """End the process; the namespace takes the interfaces with it."""
        for plugged in self._plugged.values():
            plugged.close()
        self.process.kill()
        self.process.wait()
        self._log.close()
        self._sockets.cleanup()
