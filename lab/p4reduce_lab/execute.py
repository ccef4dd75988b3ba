# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab exec``: a command once per rank, with prefixed output, ended together."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from p4reduce.control.client import ControlError
from p4reduce.variables import CONTROLLER, INTERFACE
from p4reduce_common.threads import new_thread

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.ports import ports_for
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes, ending
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.switches.udp_ports import bound
from p4reduce_lab.system import JOB_VARIABLE, System, own_path, rank_variables
from p4reduce_lab.topology import LabTopology

CAPTURES = Path("build/exec")  # where --pcap leaves them, with the logs
_PORT = "{port}"  # in P4REDUCE_INTERFACE, for the number of a rank's port
DRAIN = 2.0  # seconds for the rest of the output of all processes, when they have ended
COLOURS = (36, 33, 35, 32, 34, 31)  # of the prefixes: ANSI's cyan, yellow, magenta, …


def running_system() -> Mapping[str, str] | None:
    """Return the variables of the controller that the environment names; None if it names none.

    Raises:
        LabError: it names a controller but not where the switch's ports are.
    """
    controller = os.environ.get(CONTROLLER)
    if controller is None:
        return None
    interface = os.environ.get(INTERFACE)
    if interface is None:
        raise LabError(
            f"{CONTROLLER} is set ({controller}) but {INTERFACE} is not: "
            f"set both, as `p4reduce-lab up` prints them, or neither"
        )
    return {CONTROLLER: controller, INTERFACE: interface}


def execute(
    command: list[str],
    topology: LabTopology,
    system: LabChoice | Mapping[str, str],
    first_port: int | None = None,
) -> int:
    """Run ``command`` for each rank; return 0, or the exit code of the first one that failed.

    Args:
        command: The program with its arguments.
        topology: The ranks, and the switches to start.
        system: Their kind, or the variables of switches that run.
        first_port: Rank 0's port of a switch that runs; None: any free ones.

    Raises:
        LabError: something did not start, or the switch has no such ports.
    """
    ranks = topology.ranks
    with ExitStack() as stack:
        started: System | None = None
        if isinstance(system, LabChoice):
            directory = logs = stack.enter_context(run_directory())
            if system.pcap:
                kept = results_directory(CAPTURES, replace=("*.log", "*.pcap"))
                logs = stack.enter_context(kept)
            started = stack.enter_context(System(system, directory, logs, topology))
            started.start()
            started.wait_ready()
            if line := started.show_page():
                print(f"p4reduce-lab: {line}", file=sys.stderr, flush=True)
            variables: Mapping[str, str] = started.variables()
            interfaces = [variables[INTERFACE]] * ranks
        else:
            interfaces = _interfaces(system, ranks, first_port, stack)
            variables = system
        # A job of its own for each run: what is left of one does not keep the next from starting.
        job = os.environ.get(JOB_VARIABLE) or f"exec-{secrets.token_hex(4)}"
        variables = {
            "PATH": own_path(),
            **_meeting_point(started),
            **variables,
            JOB_VARIABLE: job,
        }
        processes = stack.enter_context(Processes())
        outputs = []
        for rank, interface in enumerate(interfaces):
            child = processes.start(
                f"rank {rank}",
                command if started is None else started.rank_command(rank, command),
                environment={
                    **rank_variables(rank, ranks),
                    **variables,
                    INTERFACE: interface,
                },
                stdout=subprocess.PIPE,
            )
            assert child.process.stdout is not None
            outputs.append(_PrefixedOutput(child.process.stdout, _prefix(rank, ranks)))
        try:
            failed = _wait(processes, started)
        finally:
            processes.end()
            end = time.monotonic() + DRAIN
            for output in outputs:
                output.finish(end)
    if failed is None:
        return 0
    code = failed.returncode or 0
    others = "; the others were ended" if ranks > 1 else ""
    print(f"p4reduce-lab: {failed.name}: {ending(code)}{others}", file=sys.stderr)
    return code if code > 0 else 128 - code


def _interfaces(
    system: Mapping[str, str], ranks: int, first_port: int | None, held: ExitStack
) -> list[str]:
    """How each rank reaches the switch: by a port that it alone has, until `held` is closed."""
    interface = system[INTERFACE]
    if _PORT not in interface:
        if first_port is not None:
            raise ArgumentsError(f"--first-port needs {_PORT} in {INTERFACE}, which is {interface}")
        return [interface] * ranks  # several may share a port
    try:
        ports = held.enter_context(ports_for(system[CONTROLLER], ranks, first_port))
    except ControlError:  # The ranks will wait for the controller, or say what is wrong.
        first = first_port or 1
        ports = list(range(first, first + ranks))
    return [interface.replace(_PORT, str(port)) for port in ports]


def _meeting_point(system: System | None) -> dict[str, str]:
    """Where the ranks find each other by TCP, for torch.distributed, by torchrun's names."""
    address = "127.0.0.1"
    with bound(address, 0, socket.SOCK_STREAM) as probe:
        port = probe.getsockname()[1]
    if system is not None and system.network is not None:
        address = str(system.network.address(0).ip)
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def _wait(ranks: Processes, system: System | None) -> ChildProcess | None:
    """Waits until all ranks have ended or one has failed. Returns the one that failed."""
    while True:
        codes = [child.returncode for child in ranks.children]
        for child, code in zip(ranks.children, codes, strict=True):
            if code:
                return child
        if None not in codes:
            return None
        if system is not None:
            system.processes.check()
        time.sleep(POLL)


def _prefix(rank: int, ranks: int) -> bytes:
    text = f"[{rank:>{len(str(ranks - 1))}}] "
    if sys.stdout.isatty():
        text = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{text}\x1b[0m"
    return text.encode()


class _PrefixedOutput:
    """Copies a process's output to ours, each line behind a prefix and in one piece."""

    def __init__(self, pipe: IO[bytes], prefix: bytes) -> None:
        self._pipe = pipe
        self._prefix = prefix
        # If copying fails, the pipe is closed, so that the process hears of it and does not wait.
        self._thread = new_thread(self._copy, "output", lambda _: pipe.close())
        self._thread.start()

    def _copy(self) -> None:
        for line in self._pipe:
            whole = line if line.endswith(b"\n") else line + b"\n"
            sys.stdout.buffer.write(self._prefix + whole)
            sys.stdout.buffer.flush()

    def finish(self, end: float) -> None:
        """Waits for the rest of the output until a time of the monotonic clock."""
        self._thread.join(max(end - time.monotonic(), 0.0))
