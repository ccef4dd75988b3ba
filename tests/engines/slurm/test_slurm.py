# SPDX-License-Identifier: Apache-2.0
"""Slurm jobs with a network in their allocation, on a cluster of two nodes on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from needed import (
    DEADLINE,
    ROOT,
    mark_of,
    marked,
    marked_processes,
    needs,
    nothing_is_left,
    wait_for_socket,
)

pytestmark = [
    pytest.mark.engines,
    needs(programs=("slurmctld", "slurmd", "munged", "setpriv")),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd with a prolog needs root"),
]
SCRIPTS = ROOT / "examples" / "slurm"

CONFIGURATION = """
ClusterName=p4reduce
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={top}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
StateSaveLocation={top}/state
SlurmctldPidFile={top}/slurmctld.pid
SlurmctldLogFile={top}/slurmctld.log
SlurmdPidFile={top}/slurmd.%n.pid
SlurmdLogFile={top}/slurmd.%n.log
SlurmdSpoolDir={top}/spool.%n
Prolog={top}/scripts/prolog
TaskProlog={top}/scripts/task-prolog
Epilog={top}/scripts/epilog
PrologFlags=Alloc
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=NO
"""

# The names of this cluster's nodes lead nowhere, so the scripts are told this machine's address.
SETTINGS = """
lab={lab}
shared_directory() {{ echo {top}/shared; }}
state={top}/run
patience=120
export P4REDUCE_HOST={address} {mark}
"""

PROGRAM = """
import os, signal, sys
import numpy as np
import p4reduce

with p4reduce.init(timeout=60) as comm:
    one = comm.allreduce(np.ones(1000, np.float32))
    assert one.tolist() == [comm.size] * 1000
    if comm.rank == 0:
        print("summed by", comm.size, "for", os.environ["P4REDUCE_INTERFACE"], flush=True)
    how = sys.argv[1]
    if how == "die" and comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    going = how != "once"
    while going:
        try:
            comm.allreduce(one)
            # All ranks end after the same sum: the one in which rank 0 has seen the file.
            seen = comm.rank == 0 and os.path.exists(how)
            going = comm.allreduce(np.array([float(seen)]))[0] == 0
        except p4reduce.P4ReduceError as error:
            print(f"rank {comm.rank}: {type(error).__name__}: {error}", flush=True)
            raise
"""


class Cluster:
    """munged, slurmctld and two slurmd, under a folder of their own."""

    def __init__(self, top: Path, environment: dict[str, str], address: str) -> None:
        self.top = top
        (top / "state").mkdir()
        (top / "program.py").write_text(PROGRAM)
        mark = f"P4REDUCE_TEST_MARK={environment['P4REDUCE_TEST_MARK']}"
        lab = Path(sys.executable).parent / "p4reduce-lab"
        shutil.copytree(SCRIPTS, top / "scripts")
        settings = SETTINGS.format(lab=lab, top=top, address=address, mark=mark)
        (top / "scripts" / "settings").write_text(settings)
        self.configuration = top / "slurm.conf"
        self.configuration.write_text(
            CONFIGURATION.format(top=top, host=socket.gethostname(), ports=free_ports(3))
        )
        self.environment = {
            **environment,
            "SLURM_CONF": str(self.configuration),
            "P4REDUCE_HOST": address,
            "PATH": f"{lab.parent}:{environment['PATH']}",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        top = self.top
        key = top / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": top / "munge.sock", "pid-file": top / "munged.pid",
                 "log-file": top / "munged.log", "seed-file": top / "munged.seed"}  # fmt: skip
        self._start("munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items()))
        wait_until((top / "munge.sock").exists, "munged")
        self._start("slurmctld", "-D")
        for node in ("node1", "node2"):
            self._start("slurmd", "-D", "-N", node)
        wait_until(lambda: self.ask("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", "nodes")

    def _start(self, *command: str) -> None:
        with (self.top / f"{command[0]}.out").open("ab") as out:
            self.processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=out, stderr=out, start_new_session=True
                )
            )

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def submit(self, *arguments: str) -> int:
        """Submit a job; its output is in `output(job)`."""
        said = self.ask("sbatch", "--parsable", f"--output={self.top}/job-%j.out", *arguments)
        return int(said)

    def output(self, job: int) -> str:
        path = self.top / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        said = self.ask("scontrol", "show", "job", str(job), "--oneliner")
        return said.partition("JobState=")[2].partition(" ")[0]

    def wait(self, job: int) -> str:
        """Wait for a job's end, its epilog included, and return its state."""
        busy = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED")
        wait_until(lambda: self.state(job) not in busy, f"the end of job {job}")
        idle = ["sinfo", "-h", "-o", "%T %D"]
        wait_until(lambda: self.ask(*idle).strip() == "idle 2", "idle nodes")
        return self.state(job)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        wait_until(lambda: all(one.poll() is not None for one in self.processes), "end of Slurm")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe.getsockname()[0]
    with ExitStack() as stack:
        environment = stack.enter_context(marked())
        made = Cluster(tmp_path_factory.mktemp("slurm"), environment, address)
        stack.callback(made.close)
        made.start()
        yield made


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.2)


def ours(cluster: Cluster) -> dict[int, str]:
    """The processes of networks and ranks, without Slurm's own."""
    return {
        pid: command
        for pid, command in marked_processes(mark_of(cluster.environment)).items()
        if "p4reduce" in command and not command.startswith(("slurm", "munged"))
    }


def command(cluster: Cluster, way: str) -> tuple[str, ...]:
    return (sys.executable, str(cluster.top / "program.py"), way)


def by_prolog(cluster: Cluster, way: str) -> tuple[str, ...]:
    line = shlex.join(["srun", "--kill-on-bad-exit=1", *command(cluster, way)])
    return ("--comment=p4reduce", "-N2", "--ntasks-per-node=2", f"--wrap={line}")


def by_script(cluster: Cluster, way: str) -> tuple[str, ...]:
    return (str(SCRIPTS / "train.sbatch"), *command(cluster, way))


NETWORK = ("-m p4reduce",)
WAYS = pytest.mark.parametrize("start", [by_script, by_prolog])


@WAYS
def test_ranks_of_two_nodes(cluster: Cluster, start: Callable[..., tuple[str, ...]]) -> None:
    job = cluster.submit(*start(cluster, "once"))
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    assert "summed by 4 for udp:" in cluster.output(job)
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)
    assert not list((cluster.top / "shared").glob(f"{job}.sh*"))


@needs(packages=("sklearn",))
def test_the_pages_command_trains_as_one_process(cluster: Cluster) -> None:
    example = str(ROOT / "examples" / "digits.py")
    job = cluster.submit(str(SCRIPTS / "train.sbatch"), sys.executable, example)
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    together = re.findall(r"accuracy of 4 ranks: (\S+)", cluster.output(job))
    alone = re.search(r"accuracy of one process: (\S+)", cluster.output(job))
    assert alone is not None, cluster.output(job)
    assert together == [alone[1]] * 4
    assert float(alone[1]) > 0.9
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)


def test_a_job_that_asks_for_no_network(cluster: Cluster) -> None:
    job = cluster.submit("-N2", "-n2", "--wrap=srun env")
    assert cluster.wait(job) == "COMPLETED"
    assert "P4REDUCE_CONTROLLER" not in cluster.output(job)


PLACED = """
import os
from p4reduce.environment import placement
from p4reduce.errors import ConfigurationError
step = os.environ.get("SLURM_STEP_ID")
try:
    place = placement(None, None)
    print(f"step {step}: rank {place.rank} of {place.world_size}", flush=True)
except ConfigurationError as error:
    print(f"step {step}: {str(error).partition(':')[0]} {'srun' in str(error)}", flush=True)
"""


def test_only_tasks_of_a_step_are_ranks(cluster: Cluster) -> None:
    """Not the batch script, which Slurm calls task 0 of all, nor a command of salloc."""
    program = cluster.top / "placed.py"
    program.write_text(PLACED)
    python = shlex.join([sys.executable, str(program)])
    own = f"P4REDUCE_RANK=1 P4REDUCE_WORLD_SIZE=2 {python}"
    lines = f"{python}; {own}; srun -n4 {python}; srun -n3 {python}; srun -N1 -n1 env {own}"
    job = cluster.submit("-N2", "-n4", f"--wrap={lines}")
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    batch, by_hand, *steps, within = cluster.output(job).splitlines()
    assert batch == "step None: no rank True"
    assert by_hand == "step None: rank 1 of 2"
    of_four = [f"step 0: rank {rank} of 4" for rank in range(4)]
    of_three = [f"step 1: rank {rank} of 3" for rank in range(3)]
    assert sorted(steps) == [*of_four, *of_three]
    assert within == "step 2: rank 1 of 2"
    said = cluster.ask("salloc", "-n4", sys.executable, str(program))
    assert said.splitlines() == ["step None: no rank True"]


@WAYS
def test_a_killed_rank_ends_the_job(
    cluster: Cluster, start: Callable[..., tuple[str, ...]]
) -> None:
    job = cluster.submit(*start(cluster, "die"))
    assert cluster.wait(job) == "FAILED", cluster.output(job)
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)


def test_a_killed_rank_is_named_by_the_others_without_srun(cluster: Cluster) -> None:
    line = shlex.join(["srun", "--kill-on-bad-exit=0", *command(cluster, "die")])
    job = cluster.submit("--comment=p4reduce", "-N2", "--ntasks-per-node=2", f"--wrap={line}")
    assert cluster.wait(job) == "FAILED", cluster.output(job)
    for rank in (0, 2, 3):
        named = rf"^rank {rank}: WorkerLostError: .*rank 1"
        assert re.search(named, cluster.output(job), re.MULTILINE), cluster.output(job)
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)


@WAYS
def test_a_killed_network_is_an_error_on_the_ranks(
    cluster: Cluster, start: Callable[..., tuple[str, ...]]
) -> None:
    job = cluster.submit(*start(cluster, "/nonexistent"))
    wait_until(lambda: "summed by 4" in cluster.output(job), "first sum")
    wait_for_socket(cluster.environment, "-m p4reduce_switch")
    [network] = [pid for pid, line in ours(cluster).items() if "p4reduce-lab deploy" in line]
    os.kill(network, signal.SIGKILL)
    assert cluster.wait(job) == "FAILED", cluster.output(job)
    # `srun --kill-on-bad-exit` ends the others when the first has its error.
    assert re.search(r"^rank \d: \w+Error: ", cluster.output(job), re.MULTILINE)
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)


@WAYS
@pytest.mark.parametrize("victim", ["p4reduce_switch", "p4reduce_controller"])
def test_a_killed_service_is_started_again(
    cluster: Cluster, start: Callable[..., tuple[str, ...]], victim: str, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = cluster.submit(*start(cluster, str(end)))
    wait_until(lambda: "summed by 4" in cluster.output(job), "first sum")
    wait_for_socket(cluster.environment, f"-m {victim}")
    pids = [pid for pid, line in ours(cluster).items() if f"-m {victim}" in line]
    os.kill(pids[0], signal.SIGKILL)

    def others() -> list[int]:
        return [pid for pid, line in ours(cluster).items() if f"-m {victim}" in line]

    wait_until(lambda: len(others()) == len(pids) and pids[0] not in others(), "another one")
    end.touch()
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    assert not ours(cluster)
    nothing_is_left(cluster.environment, NETWORK)


@WAYS
def test_a_cancelled_job_leaves_nothing(
    cluster: Cluster, start: Callable[..., tuple[str, ...]]
) -> None:
    job = cluster.submit(*start(cluster, "/nonexistent"))
    wait_until(lambda: "summed by 4" in cluster.output(job), "first sum")
    cluster.ask("scancel", str(job))
    assert cluster.wait(job) == "CANCELLED"
    wait_until(lambda: not ours(cluster), "end of all processes")
    nothing_is_left(cluster.environment, NETWORK)


def test_a_network_that_does_not_start_fails_the_script(cluster: Cluster) -> None:
    job = cluster.submit("--export=ALL,P4REDUCE_HOST=203.0.113.7", *by_script(cluster, "once"))
    assert cluster.wait(job) == "FAILED"
    assert "203.0.113.7" in cluster.output(job)
