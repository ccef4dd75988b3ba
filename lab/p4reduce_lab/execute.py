# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab exec``: a command once for each rank, its output prefixed, all ended together."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError

from p4reduce_lab.choice import Choice
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.processes.children import POLL, Child, Processes, ending
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.several import Switches, system_of
from p4reduce_lab.system import (
    CONTROLLER_VARIABLE,
    INTERFACE_VARIABLE,
    JOB_VARIABLE,
    System,
    own_path,
    rank_variables,
)

CAPTURES = Path("build/exec")  # where --pcap leaves them, with the logs
DRAIN = 2.0  # seconds for the rest of the output of processes that have ended
COLOURS = (36, 33, 35, 32, 34, 31)  # of the prefixes: ANSI's cyan, yellow, magenta, …


def running_system() -> Mapping[str, str] | None:
    """The variables of a controller that the environment names; None where it names none.

    Raises:
        LabError: it names a controller but not where the switch's ports are.
    """
    controller = os.environ.get(CONTROLLER_VARIABLE)
    if controller is None:
        return None
    interface = os.environ.get(INTERFACE_VARIABLE)
    if interface is None:
        raise LabError(
            f"{CONTROLLER_VARIABLE} is set ({controller}) but {INTERFACE_VARIABLE} is not: "
            f"set both, as `p4reduce-lab up` prints them, or neither"
        )
    return {CONTROLLER_VARIABLE: controller, INTERFACE_VARIABLE: interface}


def execute(
    command: list[str], workers: int, system: Choice | Mapping[str, str], switches: Switches = 1
) -> int:
    """Runs ``command`` for ranks 0 to ``workers`` - 1 and returns the exit code for the shell:
    0, or that of the first process that failed.

    Args:
        command: The program with its arguments.
        workers: The world size.
        system: A switch to start, or the variables of one that runs.
        switches: How many to start, side by side, or the tree that they are.
    """
    with ExitStack() as stack:
        services: Processes | None = None
        started: System | None = None
        if isinstance(system, Choice):
            directory = logs = stack.enter_context(run_directory())
            if system.pcap:
                kept = results_directory(CAPTURES, replace=("*.log", "*.pcap"))
                logs = stack.enter_context(kept)
            started = stack.enter_context(system_of(system, directory, logs, workers, switches))
            services = started.processes
            started.start()
            started.wait_ready()
            variables: Mapping[str, str] = started.variables()
        else:
            _check_ports(system, workers)
            variables = system
        # A job of its own for each run: what is left of one does not keep the next from starting.
        job = os.environ.get(JOB_VARIABLE) or f"exec-{secrets.token_hex(4)}"
        variables = {
            "PATH": own_path(),
            **_meeting_point(started),
            **variables,
            JOB_VARIABLE: job,
        }
        ranks = stack.enter_context(Processes())
        outputs = []
        for rank in range(workers):
            child = ranks.start(
                f"rank {rank}",
                command if started is None else started.rank_command(rank, command),
                environment={**rank_variables(rank, workers), **variables},
                stdout=subprocess.PIPE,
            )
            assert child.process.stdout is not None
            outputs.append(_Output(child.process.stdout, _prefix(rank, workers)))
        try:
            failed = _wait(ranks, services)
        finally:
            ranks.end()
            for output in outputs:
                output.finish()
    if failed is None:
        return 0
    code = failed.returncode or 0
    print(f"p4reduce-lab: {failed.name}: {ending(code)}; the others were ended", file=sys.stderr)
    return code if code > 0 else 128 - code


def _check_ports(system: Mapping[str, str], workers: int) -> None:
    """Refuse more ranks than a system has ports where each has one of its own."""
    address, interface = system[CONTROLLER_VARIABLE], system[INTERFACE_VARIABLE]
    if "{port}" not in interface or "," in address:
        return  # several may share a port; of several switches the ranks will tell
    with ControlClient(address) as control, suppress(ControlError):  # which the ranks will tell
        switches = control.call(control.stub.ListSwitches, pb.ListSwitchesRequest()).switches
        ports = sum(len(switch.ports) for switch in switches)  # of a tree the leaves have them
        if workers > ports:
            raise ArgumentsError(
                f"{workers} ranks take as many ports, but the switch of the controller at "
                f"{address} has {ports}: start `p4reduce-lab up --ports {workers}`"
            )


def _meeting_point(system: System | None) -> dict[str, str]:
    """Where the ranks find each other by TCP, for torch.distributed, by torchrun's names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = "127.0.0.1"
    if system is not None and system.network is not None:
        address = str(system.network.address(0).ip)
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def _wait(ranks: Processes, services: Processes | None) -> Child | None:
    """Waits until all ranks are through, or one has failed, which it returns."""
    while True:
        codes = [child.returncode for child in ranks.children]
        for child, code in zip(ranks.children, codes, strict=True):
            if code:
                return child
        if None not in codes:
            return None
        if services is not None:
            services.check()
        time.sleep(POLL)


def _prefix(rank: int, workers: int) -> bytes:
    text = f"[{rank:>{len(str(workers - 1))}}] "
    if sys.stdout.isatty():
        text = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{text}\x1b[0m"
    return text.encode()


class _Output:
    """Copies a process's output to ours, each line behind a prefix and in one piece."""

    def __init__(self, pipe: IO[bytes], prefix: bytes) -> None:
        self._pipe = pipe
        self._prefix = prefix
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        for line in self._pipe:
            whole = line if line.endswith(b"\n") else line + b"\n"
            sys.stdout.buffer.write(self._prefix + whole)
            sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Waits for the rest of the output."""
        self._thread.join(DRAIN)
