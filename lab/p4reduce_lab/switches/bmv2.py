# SPDX-License-Identifier: Apache-2.0
"""Starts BMv2, p4lang's behavioral model: the target that the P4 program is written for.

BMv2 queues 64 frames at most for each port (simple_switch's default) and drops further ones. Only
its Thrift interface can change that, so workers have to keep fewer results in flight. The
controller's default of 32 slots per job is enough, as a result is at most two frames.
"""

from __future__ import annotations

import functools
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks import veth
from p4reduce_lab.processes.children import Processes, tail
from p4reduce_lab.switches.launch import CPU_PORT, DEVICE_ID, READY_TIMEOUT, SwitchLauncher

PROGRAM = "simple_switch_grpc"
DROP_PORT = 511  # v1model's mark_to_drop
HELP_TIMEOUT = 20.0  # seconds
_PORT_FAILED = "Add port operation failed"


def unavailable() -> str | None:
    """Return why BMv2 cannot run here, and what to do; None if it can."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not on PATH: install p4lang-bmv2 (docs/bmv2.md)"
    return veth.unavailable()


def bmv2_command(
    options: Sequence[str], address: str, target_options: Sequence[str] = ()
) -> list[str]:
    """Return BMv2's command line. Any number of such switches can run at once.

    p4lang's package is built with Thrift. Two BMv2 cannot share its default port: the kernel
    chooses a free one.

    Args:
        options: of all of BMv2's targets: interfaces, log, the program or --no-p4.
        address: where P4Runtime is served; a Unix socket cannot be taken by another process by
            then.
        target_options: of simple_switch_grpc itself.
    """
    thrift = ["--thrift-port", "0"] if _has_thrift() else []
    return [PROGRAM, *thrift, *options, "--", "--grpc-server-addr", address, *target_options]


class Bmv2Switch(SwitchLauncher):
    """simple_switch_grpc as a process. Takes root for its interfaces.

    Args:
        directory: see `SwitchLauncher`.
        ports: how many, numbered from 1, each a veth pair that lives as long as the switch; or
            each number's interface, for the switch alone. Those must have their offloads off.
        pcap: see `SwitchLauncher`.
    """

    name = "bmv2"
    slots = 32  # a result is at most two frames, and it queues 64 a port

    def __init__(
        self, directory: Path, ports: int | Mapping[int, str], *, pcap: bool = False
    ) -> None:
        super().__init__(directory, pcap=pcap)
        self._count = ports if isinstance(ports, int) else 0
        if not isinstance(ports, int):
            self.ports = dict(ports)
        self._veths: veth.VethPorts | None = None

    def start(self, processes: Processes, log: Path | None = None) -> None:
        reason = unavailable()
        if reason is not None:
            raise UnavailableError(reason)
        if self._count and self._veths is None:
            self._veths = veth.VethPorts(self._count)
            self.ports, self.interface = self._veths.switch_side, self._veths.interface
        super().start(processes, log)

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        super().wait_ready(timeout)
        # It continues without an interface that it cannot open.
        if _PORT_FAILED in self.log.read_text(errors="replace"):
            raise LabError(
                f"{PROGRAM} could not open a port; the end of {self.log}:\n{tail(self.log)}"
            )

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if self._veths is not None:
                self._veths.close()
                self._veths = None

    def _command(self) -> list[str]:
        options = ["--no-p4", "--device-id", str(DEVICE_ID)]
        # Where it logs each packet's way (by default, unless built without), it is
        # ten times slower.
        options += ["--log-console", "--log-level", "warn"]
        for port, interface in self.ports.items():
            options += ["--interface", f"{port}@{interface}"]
        if self._pcap:
            options += ["--pcap", str(self.directory)]
        own = ["--cpu-port", str(CPU_PORT), "--drop-port", str(DROP_PORT)]
        return bmv2_command(options, self.grpc_address, own)

    def _is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._socket))
            except OSError:
                return False
        return True


@functools.cache
def _has_thrift() -> bool:
    """Whether this build has Thrift, and with it the option."""
    answer = subprocess.run(
        [PROGRAM, "--help"], capture_output=True, text=True, timeout=HELP_TIMEOUT, check=False
    )
    return "--thrift-port" in answer.stdout + answer.stderr
