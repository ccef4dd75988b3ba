# SPDX-License-Identifier: Apache-2.0
"""What the kill campaign breaks: switches, controller and ranks, each a process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.processes.children import ChildProcess, Processes, tail
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.launch import SwitchLauncher
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.topology import LabTopology
from torch_system import Forked, clean_environment, free_port, zygote

HERE = Path(__file__).parent
PATIENCE = 300.0  # seconds, for what takes one on a quiet machine
POLL = 0.02
CONTROLLER = "controller"  # its name, beside those of the switches


ONE_SWITCH = LabTopology.side_by_side(3)


@dataclass(frozen=True)
class Place:
    """Where ranks meet.

    Attributes:
        switch: "embedded" or "bmv2".
        network: "local" or "udp".
        topology: the switches, and how many ranks there are.
        torch: whether they are torch's.
    """

    switch: str = "embedded"
    network: str = "local"
    topology: LabTopology = ONE_SWITCH
    torch: bool = False


PLACES = {
    "unix": Place(),
    "udp": Place(network="udp"),
    "side-by-side": Place(topology=LabTopology.side_by_side(3, 2)),
    "tree": Place(topology=LabTopology.tree(2, 2)),
    "torch": Place(torch=True),
    "bmv2": Place(switch="bmv2"),
    "bmv2-side-by-side": Place(switch="bmv2", topology=LabTopology.side_by_side(3, 2)),
}


class Broken:
    """A system whose switches and controller can be killed, stopped and started again.

    Args:
        system: running.
        logs: where theirs go.
    """

    def __init__(self, system: System, logs: Path) -> None:
        self.system = system
        self._logs = logs

    @property
    def switches(self) -> dict[str, SwitchLauncher]:
        """All of them, by name."""
        return dict(self.system.parts.switches)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a switch or the controller by a signal; nothing where it has ended already."""
        if not self.is_alive(name):
            return
        child = self._child(name)
        os.kill(child.process.pid, number)
        if number == signal.SIGKILL:
            child.end(0.0)
        else:
            child.end(PATIENCE)
        self.system.processes.children.remove(child)

    def is_alive(self, name: str) -> bool:
        """Whether it runs."""
        child = self._child(name)
        return child in self.system.processes.children and child.returncode is None

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop a switch or the controller for a while."""
        pid = self._child(name).process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def start(self, name: str) -> None:
        """Start what was ended again; a switch is waited for until it serves."""
        if self.is_alive(name):
            return
        if name == CONTROLLER:
            self.system.start_controller()
            return
        self.system.start_switch(name)
        self.switches[name].wait_ready(PATIENCE)

    def repair(self) -> None:
        """Start all that does not run, and wait until it serves."""
        for name in [*self.switches, CONTROLLER]:
            self.start(name)
        self.system.wait_ready(PATIENCE)

    def _child(self, name: str) -> ChildProcess:
        controller = self.system.controller
        child = controller if name == CONTROLLER else self.switches[name].child
        assert child is not None
        return child

    def logs(self) -> str:
        """The end of what they have written."""
        written = sorted({*self._logs.glob("*.log"), *(one.log for one in self.switches.values())})
        return "\n".join(f"-- {log.name}\n{tail(log, 40)}" for log in written if log.exists())


@contextmanager
def running(place: Place) -> Iterator[Broken]:
    """Start a place's switches and controller."""
    with run_directory() as directory:
        logs = directory / "logs"
        logs.mkdir()
        choice = choose(place.switch, place.network)
        with System(choice, directory, logs, place.topology) as system:
            system.start()
            system.wait_ready(PATIENCE)
            yield Broken(system, logs)


class KillRanks:
    """The ranks of one trial, each a process.

    Args:
        place: where.
        system: whose variables they get.
        directory: for what they write, and for "end".
        timeout: seconds, of a collective.
    """

    def __init__(self, place: Place, system: System, directory: Path, timeout: float) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._processes = Processes()
        self._forked: list[Forked] = []
        for rank in range(place.topology.ranks):
            variables = {**system.variables(), **rank_variables(rank, place.topology.ranks)}
            variables["P4REDUCE_JOB"] = directory.name
            arguments = [str(directory), f"{timeout:g}"]
            if place.torch:
                self._fork(rank, arguments, variables)
            else:
                self._start(rank, arguments, variables)

    def _start(self, rank: int, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import kill_rank as k; k.main()"
        command = [sys.executable, "-c", program, *arguments]
        log = self._directory / f"out{rank}"
        self._processes.start(f"rank {rank}", command, log=log, environment=variables)

    def _fork(self, rank: int, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        if rank == 0:
            self._port = free_port()
        out, err = self._directory / f"out{rank}", self._directory / f"err{rank}"
        out.touch()
        err.touch()
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port)}
        environment = {**clean_environment(), **variables, **place}
        program = [str(HERE / "kill_torch_rank.py"), *arguments]
        self._forked.append(zygote().fork(program, environment, self._directory, out, err))

    def _code(self, rank: int) -> int | None:
        if self._forked:
            return self._forked[rank].poll()
        return self._processes.children[rank].returncode

    def _pid(self, rank: int) -> int:
        if self._forked:
            return self._forked[rank].pid
        return self._processes.children[rank].process.pid

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._forked or self._processes.children)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one that has not ended."""
        if self._code(rank) is None:
            os.kill(self._pid(rank), number)

    def wait_for_step(self, rank: int, step: int) -> None:
        """Wait until a rank has done that many steps, or has ended."""
        end = time.monotonic() + PATIENCE
        while self.steps(rank) < step and self._code(rank) is None:
            assert time.monotonic() < end, f"rank {rank} does not come to step {step}"
            time.sleep(POLL)

    def steps(self, rank: int) -> int:
        """How many steps a rank has done."""
        return (self._directory / f"out{rank}").read_bytes().count(b"step ")

    def end(self) -> None:
        """Let them come to an end."""
        (self._directory / "end").touch()

    def wait(self, seconds: float) -> list[dict[str, Any] | None]:
        """Return what each has told at its end; None for those that were killed, or hang."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and None in map(self._code, range(self.count)):
            time.sleep(POLL)
        return [self._record(rank) for rank in range(self.count)]

    def hang(self) -> list[int]:
        """Return the ranks that have not ended."""
        return [rank for rank in range(self.count) if self._code(rank) is None]

    def written(self, rank: int) -> str:
        """The end of what a rank has written, and how it ended."""
        code = self._code(rank)
        logs = [self._directory / f"{kind}{rank}" for kind in ("out", "err")]
        return f"rank {rank}, exit code {code}:\n" + "\n".join(
            tail(log, 25) for log in logs if log.exists()
        )

    def _record(self, rank: int) -> dict[str, Any] | None:
        lines = (self._directory / f"out{rank}").read_text(errors="replace").splitlines()
        for line in reversed(lines):
            if line.startswith("{"):
                record: dict[str, Any] = json.loads(line)
                return record | {"code": self._code(rank)}
        return None

    def close(self) -> None:
        """Kill what is left."""
        for rank in range(self.count):
            with suppress(ProcessLookupError):
                self.signal(rank, signal.SIGCONT)
                self.signal(rank, signal.SIGKILL)
        for one in self._forked:
            one.wait()
        self._processes.end(0.0)
