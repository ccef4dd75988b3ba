# SPDX-License-Identifier: Apache-2.0
"""A switch and a controller as processes of their own, and ranks as threads of this one."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import p4reduce
from p4reduce.control.client import ControlClient

T = TypeVar("T")

DEADLINE = 60.0  # seconds; how long anything may take before a test fails
LEASE = 3.0
PORTS = 8


def wait_for(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still not so after {DEADLINE} s: {what}"
        time.sleep(0.02)


class System:
    """The embedded switch with ports 1 to 8 on Unix sockets, and its controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count()
        p4runtime = f"unix:{directory}/p4runtime.sock"
        self.controller = f"unix:{directory}/controller.sock"
        ports = [f"--port={n}=unix:{directory}/port{n}.sock" for n in range(1, PORTS + 1)]
        self._start("switch", "p4reduce_switch", "--grpc-addr", p4runtime, *ports)
        self._start(
            *("controller", "p4reduce_controller", "serve", "--switch", p4runtime),
            *("--listen", self.controller, "--ports", f"1-{PORTS}"),
            *("--lease", f"{LEASE:g}", "--state-dir", f"{directory}/state"),
        )
        self.control = ControlClient(self.controller)

    def _start(self, name: str, module: str, *arguments: str) -> None:
        ready = self._directory / f"{name}.ready"
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, "--ready-file", str(ready)],
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        wait_for(lambda: ready.exists() or process.poll() is not None, f"{name} is ready")
        assert process.poll() is None, log.read_text()

    def close(self) -> None:
        self.control.close()
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def new_job(self) -> str:
        return f"test-{next(self._numbers)}"

    def interface(self, port: int) -> str:
        return f"unix:{self._directory}/port{port}.sock"

    def init(
        self, rank: int, world_size: int, job: str, *, first_port: int = 1, **options: Any
    ) -> p4reduce.Communicator:
        """Join as a rank; rank r is at port `first_port` + r."""
        arguments: dict[str, Any] = {
            "controller": self.controller,
            "timeout": DEADLINE,
            "interface": self.interface(first_port + rank),
        }
        return p4reduce.init(rank, world_size, job=job, **(arguments | options))

    def run(
        self,
        world_size: int,
        work: Callable[[p4reduce.Communicator], T],
        **options: Any,
    ) -> list[T]:
        """Run `work` as each rank of a new job; return what each returned."""
        job = self.new_job()

        def rank(number: int) -> T:
            with self.init(number, world_size, job, **options) as comm:
                return work(comm)

        return at_once([lambda number=number: rank(number) for number in range(world_size)])


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run functions in threads; return what they return, or raise what the first one raised."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, work: Callable[[], T]) -> None:
        try:
            results[number] = work()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(number, work), daemon=True)
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]


def outcome(work: Callable[[], Any]) -> Any:
    """What a function returns, or the error that it raises."""
    try:
        return work()
    except p4reduce.P4ReduceError as error:
        return error
