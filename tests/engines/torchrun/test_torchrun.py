# SPDX-License-Identifier: Apache-2.0
"""torchrun on a network of `p4reduce-lab deploy`: what is killed is mended, or an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from needed import DEADLINE, marked, needs, pid_of, wait_for_socket

pytestmark = [pytest.mark.engines, needs(packages=("torch",))]
SERVICES = ("p4reduce_switch", "p4reduce_controller")
DEPLOY = "p4reduce_lab deploy"

PROGRAM = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist

here = Path(sys.argv[1])
dist.init_process_group("p4reduce", timeout=timedelta(seconds=20))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
try:
    going = True
    while going:
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        assert ones.tolist() == [2] * 1000
        if attempt == "0":
            (here / f"{rank}.new").write_text(str(os.getpid()))
            (here / f"{rank}.new").replace(here / f"{rank}.pid")
        end = torch.tensor([float(rank == 0 and (here / "end").exists())])
        dist.all_reduce(end)
        going = not end.item()
except BaseException as error:
    (here / f"error-{rank}").write_text(f"{type(error).__name__}: {error}")
    raise
dist.destroy_process_group()
print(f"rank {rank}, attempt {attempt}: through", flush=True)
"""


class Run:
    """A network, and two ranks that sum over it until `end`."""

    def __init__(self, here: Path, environment: dict[str, str], *options: str) -> None:
        self.here = here
        self.environment = environment
        (here / "program.py").write_text(PROGRAM)
        self.output = here / "output"
        lab = [sys.executable, "-m", "p4reduce_lab", "deploy", "-n", "2"]
        self.network = self._start([*lab, "--variables", str(here / "net.sh")], here / "network")
        try:
            self.until(self.here / "net.sh", self.network)
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            torchrun += ["--master-port", "0", "--standalone", *options]
            script = '. "$0" && exec "$@"'
            program = [str(here / "program.py"), str(here)]
            self.ranks = self._start(
                ["bash", "-c", script, str(here / "net.sh"), *torchrun, *program], self.output
            )
        except BaseException:
            self.network.kill()
            raise

    def _start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )

    def until(self, file: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not file.exists():
            assert process.poll() is None, self.said()
            assert time.monotonic() < deadline, f"no {file}: {self.said()}"
            time.sleep(0.05)

    def until_all_sum(self) -> None:
        for rank in (0, 1):
            self.until(self.here / f"{rank}.pid", self.ranks)

    def end(self) -> None:
        (self.here / "end").touch()

    def said(self) -> str:
        logs = [path.read_text() for path in (self.here / "network", self.output) if path.exists()]
        return "\n".join(logs)[-8000:]

    def error(self, rank: int) -> str:
        path = self.here / f"error-{rank}"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for process in (self.ranks, self.network):
            process.terminate()
            process.wait(DEADLINE)


@contextmanager
def run(here: Path, *options: str) -> Iterator[Run]:
    """Ranks that sum; afterwards nothing of them or of the network may be left."""
    with marked() as environment:
        made = Run(here, environment, *options)
        try:
            made.until_all_sum()
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("victim", SERVICES)
def test_a_killed_service_is_started_again(victim: str, tmp_path: Path) -> None:
    with run(tmp_path) as made:
        wait_for_socket(made.environment, f"-m {victim}")
        os.kill(pid_of(made.environment, f"-m {victim}"), signal.SIGKILL)
        made.end()
        assert made.ranks.wait(DEADLINE) == 0, made.said()
        for rank in (0, 1):
            assert f"rank {rank}, attempt 0: through" in made.said()


def test_a_killed_rank_is_named_and_torchrun_starts_all_again(tmp_path: Path) -> None:
    # torchrun looks once in ten seconds, so that the other rank has learnt of it by then.
    with run(tmp_path, "--max-restarts", "1", "--monitor-interval", "10") as made:
        os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGKILL)
        made.until(tmp_path / "error-0", made.ranks)
        made.end()
        assert made.ranks.wait(DEADLINE) == 0, made.said()
        assert re.match("DistBackendError: .*rank 1", made.error(0)), made.error(0)
        for rank in (0, 1):
            assert f"rank {rank}, attempt 1: through" in made.said()


def test_a_killed_network_is_an_error_on_both_ranks(tmp_path: Path) -> None:
    with run(tmp_path, "--monitor-interval", "30") as made:
        wait_for_socket(made.environment, "-m p4reduce_switch")
        os.kill(pid_of(made.environment, DEPLOY), signal.SIGKILL)
        assert made.ranks.wait(DEADLINE) != 0
        for rank in (0, 1):
            assert re.match(r"Dist\w+Error: p4reduce: ", made.error(rank)), made.said()
