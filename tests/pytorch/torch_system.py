# SPDX-License-Identifier: Apache-2.0
"""A switch with its controller, and ranks of torch programs as processes beside them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_lab.processes.children import Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from readable import readable

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
EXAMPLES = HERE.parents[1] / "examples"
DEADLINE = 300.0  # seconds; a test fails by it, and passes long before
LEASE = 20.0  # seconds; to import torch may keep a busy machine's heartbeats that long
_DUMPING = 5.0  # seconds for a rank that hangs to say where
PORTS = 8
SLOTS = 64  # of a job; four of 8 ranks find room
_NOT_OURS = ("P4REDUCE_", "TORCH", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI_")


class TorchSystem:
    """An embedded switch with ports from 1 on and its controller.

    Attributes:
        variables: by which ranks find them.
    """

    def __init__(self, directory: Path, lease: float = LEASE) -> None:
        (directory / "switch").mkdir()
        self._switch = EmbeddedSwitch(directory / "switch", PORTS)
        self._processes = Processes()
        controller = f"unix:{directory}/controller.sock"
        ready = directory / "ready"
        self.variables = {
            "P4REDUCE_CONTROLLER": controller,
            "P4REDUCE_INTERFACE": self._switch.interface,
        }
        command = [sys.executable, "-m", "p4reduce_controller", "serve"]
        command += ["--switch", self._switch.grpc_address, "--listen", controller]
        command += ["--ports", f"1-{PORTS}", "--lease", f"{lease:g}"]
        command += ["--default-slots", str(SLOTS)]
        command += ["--state-dir", f"{directory}/state", "--ready-file", str(ready)]
        try:
            self._switch.start(self._processes)
            self._switch.wait_ready()
            self._processes.start("controller", command, log=directory / "controller.log")
            end = time.monotonic() + DEADLINE
            while not ready.exists():
                self._processes.check()
                assert time.monotonic() < end, "the controller is not ready"
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._processes.end()
        self._switch.stop()


@contextmanager
def torch_system(lease: float = LEASE) -> Iterator[TorchSystem]:
    with run_directory() as directory:
        system = TorchSystem(directory, lease)
        try:
            yield system
        finally:
            system.close()


@dataclass(frozen=True)
class Ended:
    """A rank that has ended.

    Attributes:
        code: its exit code; negative after a signal, None if it had to be killed as it hung.
        lines: what it printed.
        log: what it wrote to stderr.
    """

    code: int | None
    lines: list[str]
    log: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of JSON among what it printed."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


class Zygote:
    """zygote.py, which has imported torch and forks ranks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._codes: dict[int, int] = {}
        atexit.register(self._end)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends its ranks then
        self._process.wait()

    def fork(
        self, program: list[str], environment: dict[str, str], directory: Path, out: Path, err: Path
    ) -> Forked:
        request = {"program": program, "environment": environment, "directory": str(directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({**request, "out": str(out), "err": str(err)}).encode() + b"\n"
        )
        self._process.stdin.flush()
        while "pid" not in (told := self._read()):
            self._codes[told["ended"]] = told["code"]
        self._codes.pop(told["pid"], None)  # of a rank that had the number before
        return Forked(self, told["pid"])

    def code(self, pid: int) -> int | None:
        """How a rank has ended; None: it has not."""
        assert self._process.stdout is not None
        # Lines are read one by one from a descriptor without a buffer of its own.
        while pid not in self._codes and readable([self._process.stdout], 0):
            told = self._read()
            self._codes[told["ended"]] = told["code"]
        return self._codes.get(pid)

    def _read(self) -> dict[str, int]:
        line = b""
        assert self._process.stdout is not None
        while not line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            assert byte, "the zygote has ended"
            line += byte
        told: dict[str, int] = json.loads(line)
        return told


@functools.cache
def zygote() -> Zygote:
    return Zygote()


class Forked:
    """A rank, forked by the zygote; as `subprocess.Popen`."""

    def __init__(self, parent: Zygote, pid: int) -> None:
        self._parent = parent
        self.pid = pid

    def poll(self) -> int | None:
        return self._parent.code(self.pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)


class Ranks:
    """Processes of one program, one for each rank, with torchrun's variables.

    Args:
        system: for the switch.
        world_size: how many.
        program: a file in programs/, or a path, with its arguments.
        directory: for what they write.
        environment: more variables.
    """

    def __init__(
        self,
        system: TorchSystem,
        world_size: int,
        program: list[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        words = [str(PROGRAMS / program[0]), *program[1:]]
        port = free_port()
        self.processes = []
        for rank in range(world_size):
            variables = {
                **clean_environment(),
                **system.variables,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **(environment or {}),
            }
            out, err = directory / f"out{rank}", directory / f"err{rank}"
            out.touch()
            err.touch()
            self.processes.append(zygote().fork(words, variables, directory, out, err))

    def output(self, rank: int) -> list[str]:
        lines = (self._directory / f"out{rank}").read_text().splitlines()
        return [line for line in lines if not line.startswith("[Gloo]")]  # it talks in torch 2.10

    def wait_for(self, rank: int, text: str) -> None:
        """Wait until a rank has printed something."""
        end = time.monotonic() + DEADLINE
        while not any(text in line for line in self.output(rank)):
            assert self.processes[rank].poll() is None, self.ended(rank)
            assert time.monotonic() < end, f"rank {rank} does not print {text!r}"
            time.sleep(0.02)

    def ended(self, rank: int) -> Ended:
        log = (self._directory / f"err{rank}").read_text()
        return Ended(self.processes[rank].poll(), self.output(rank), log)

    def wait(self, timeout: float = DEADLINE) -> list[Ended]:
        """Wait for all; those that hang are killed, and have None for their code.

        By SIGABRT first: where `faulthandler` is enabled, the log then has what they waited for.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end and any(one.poll() is None for one in self.processes):
            time.sleep(0.05)
        hung = {rank for rank, one in enumerate(self.processes) if one.poll() is None}
        for rank in hung:
            self.processes[rank].send_signal(signal.SIGABRT)
        end = time.monotonic() + _DUMPING
        while time.monotonic() < end and any(self.processes[rank].poll() is None for rank in hung):
            time.sleep(0.05)
        self.kill()
        ended = [self.ended(rank) for rank in range(len(self.processes))]
        return [
            Ended(None, one.lines, one.log) if rank in hung else one
            for rank, one in enumerate(ended)
        ]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def clean_environment() -> dict[str, str]:
    """This process's environment without what a launcher or user put there."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_OURS)}
    # Several ranks on few cores: each with a pool of threads would only get in the others' way.
    return {**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def all_well(ended: list[Ended]) -> None:
    """Assert that all ranks ended well, and show what they wrote if not."""
    codes = [one.code for one in ended]
    assert codes == [0] * len(ended), f"{codes}\n" + "\n".join(
        f"rank {rank}: {one.lines[-5:]}\n{one.log[-3000:]}"
        for rank, one in enumerate(ended)
        if one.code != 0
    )
