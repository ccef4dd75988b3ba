# SPDX-License-Identifier: Apache-2.0
"""`p4reduce.init()` with nothing set: the ranks of a launcher start their own network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from needed import DEADLINE, marked, pid_of
from p4reduce.environment import LAUNCHERS, OWN

RANKS = 3

PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np
import p4reduce

here = Path(sys.argv[1])
comm = p4reduce.init(timeout=200.0)
total = comm.allreduce(np.full(5000, comm.rank + 1, np.float32))
print(f"rank {comm.rank} of {comm.size}: {total[0]}, {len(comm.switches)} switches", flush=True)
with p4reduce.init(job="another", timeout=200.0) as other:  # by the same network
    (here / f"{comm.rank}.new").write_text(str(os.getpid()))
    (here / f"{comm.rank}.new").replace(here / f"{comm.rank}.pid")
    while "stay" in sys.argv:
        going = other.allreduce(np.array([not (here / "end").exists()], np.int32), timeout=200.0)
        if going[0] < comm.size:
            break
comm.close()
print(f"rank {comm.rank} is through", flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def by_hand(rank: int, port: int) -> dict[str, str]:
    return {"P4REDUCE_RANK": str(rank), "P4REDUCE_WORLD_SIZE": str(RANKS), **master(port)}


def env(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), **master(port)}


def master(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}


def open_mpi(rank: int, port: int) -> dict[str, str]:
    world = {name: str(RANKS) for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")}
    ranks = {name: str(rank) for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")}
    return {**world, **ranks, "PMIX_NAMESPACE": f"{port}1"}


def mpich(rank: int, port: int) -> dict[str, str]:
    world = {"PMI_SIZE": str(RANKS), "MPI_LOCALNRANKS": str(RANKS)}
    return {**world, "PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)}


def slurm(rank: int, port: int) -> dict[str, str]:
    step = {"SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(RANKS)}
    return {**step, **place}


class Ranks:
    """Processes of a launcher.

    Args:
        here: a directory for their files.
        environment: of `marked`.
        launcher: says what a launcher sets.
    """

    def __init__(
        self,
        here: Path,
        environment: dict[str, str],
        launcher: Callable[[int, int], dict[str, str]] = env,
        *arguments: str,
    ) -> None:
        self.here = here
        self.environment = environment
        placed = {
            name for one in (*LAUNCHERS, OWN) for name in (one.rank_name, one.world_size_name)
        }
        clean = {name: text for name, text in environment.items() if name not in placed}
        port = free_port()
        self.processes = []
        for rank in range(RANKS):
            with (here / f"output-{rank}").open("wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", PROGRAM, str(here), *arguments],
                        env={**clean, **launcher(rank, port)},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def output(self, rank: int) -> str:
        return (self.here / f"output-{rank}").read_text()

    def until(self, file: str) -> Path:
        deadline = time.monotonic() + DEADLINE
        while not (path := self.here / file).exists():
            assert all(one.poll() is None for one in self.processes), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        return path

    def wait(self) -> list[int]:
        return [one.wait(DEADLINE) for one in self.processes]

    def kill(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait(DEADLINE)

    def said(self) -> str:
        return "\n".join(self.output(rank) for rank in range(RANKS))[-6000:]


@pytest.mark.parametrize("launcher", [by_hand, env, open_mpi, mpich, slurm])
def test_nothing_is_set_but_what_a_launcher_sets(
    launcher: Callable[[int, int], dict[str, str]], tmp_path: Path
) -> None:
    with marked() as environment:
        ranks = Ranks(tmp_path, environment, launcher)
        assert ranks.wait() == [0] * RANKS, ranks.said()
        for rank in range(RANKS):
            assert f"rank {rank} of 3: 6.0, 1 switches" in ranks.output(rank)
            assert f"rank {rank} is through" in ranks.output(rank)


def test_two_jobs_of_mpich_at_once_do_not_meet(tmp_path: Path) -> None:
    """MPICH gives a job no name, so its proxy's process stands for it, also behind shells."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to(shutil.which("bash") or "/bin/bash")
    program = "import numpy as np, p4reduce, sys; comm = p4reduce.init(timeout=200.0); "
    program += "sum = comm.allreduce(np.full(9, int(sys.argv[1]), np.int32)); "
    program += "sys.stdout.write(f'{sum[0]}\\n')"
    start = 'for rank in 0 1; do PMI_RANK=$rank sh -c \'"$@"; true\' sh "$@" & done; wait'
    with marked() as environment:
        placed = {
            name for one in (*LAUNCHERS, OWN) for name in (one.rank_name, one.world_size_name)
        }
        clean = {name: text for name, text in environment.items() if name not in placed}
        world = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7"}
        jobs = [
            subprocess.Popen(
                [proxy, "-c", start, "proxy", sys.executable, "-c", program, number],
                env={**clean, **world},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in ("1", "10")
        ]
        said = [job.communicate(timeout=DEADLINE)[0] for job in jobs]
        assert [one.split() for one in said] == [["2", "2"], ["20", "20"]]


@pytest.mark.parametrize("victim", ["p4reduce_switch", "p4reduce_controller"])
def test_a_killed_service_is_started_again(victim: str, tmp_path: Path) -> None:
    with marked() as environment:
        ranks = Ranks(tmp_path, environment, env, "stay")
        for rank in range(RANKS):
            ranks.until(f"{rank}.pid")
        os.kill(pid_of(environment, f"-m {victim}"), signal.SIGKILL)
        (tmp_path / "end").touch()
        assert ranks.wait() == [0] * RANKS, ranks.said()


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_killed_rank_is_named_also_if_it_has_started_the_network(
    victim: int, tmp_path: Path
) -> None:
    with marked() as environment:
        ranks = Ranks(tmp_path, environment, env, "stay")
        pid = int(ranks.until(f"{victim}.pid").read_text())
        for rank in range(RANKS):
            ranks.until(f"{rank}.pid")
        os.kill(pid, signal.SIGKILL)
        codes = ranks.wait()
        for rank in range(RANKS):
            if rank != victim:
                assert codes[rank] == 1
                says = f"WorkerLostError: job 'another' has failed: rank {victim} (host "
                assert says in ranks.output(rank), ranks.said()


def test_a_killed_network_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    with marked() as environment:
        ranks = Ranks(tmp_path, environment, env, "stay")
        for rank in range(RANKS):
            ranks.until(f"{rank}.pid")
        os.kill(pid_of(environment, "-m p4reduce_lab.deploy"), signal.SIGKILL)
        assert ranks.wait() == [1] * RANKS
        for rank in range(RANKS):
            assert "LaunchError: the network has ended: " in ranks.output(rank), ranks.said()


def test_it_ends_with_ranks_that_are_all_killed(tmp_path: Path) -> None:
    with marked() as environment:
        ranks = Ranks(tmp_path, environment, env, "stay")
        for rank in range(RANKS):
            ranks.until(f"{rank}.pid")
        ranks.kill()
