# SPDX-License-Identifier: Apache-2.0
"""The same script under torchrun, mpirun and p4reduce-lab exec."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from p4reduce_lab.networks import mininet_net
from torch_system import EXAMPLES, PROGRAMS, TorchSystem, clean_environment, free_port

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

NO_MININET = mininet_net.unavailable()
HELLO = str(PROGRAMS / "hello.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def run(command: list[str], system: TorchSystem | None, directory: Path) -> str:
    """Run a command to its end, which has to be well; return what it printed."""
    variables = clean_environment() | ({} if system is None else system.variables)
    done = subprocess.run(
        command,
        env=variables,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rendezvous", ["--standalone", "static"])
def test_torchrun(rendezvous: str, system: TorchSystem, tmp_path: Path) -> None:
    way = [rendezvous] if rendezvous != "static" else ["--master-port", str(free_port())]
    output = run([*TORCHRUN, *way, HELLO], system, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2, attempt 0: 4.0" in output


@pytest.mark.timeout(300)
def test_torchrun_starts_again_after_a_rank_was_killed(system: TorchSystem, tmp_path: Path) -> None:
    command = [*TORCHRUN, "--standalone", "--max-restarts", "2", HELLO, "die"]
    output = run(command, system, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2, attempt 1: 4.0" in output


@pytest.mark.timeout(300)
def test_the_core_library_needs_no_argument_in_torchrun(
    system: TorchSystem, tmp_path: Path
) -> None:
    output = run([*TORCHRUN, "--standalone", HELLO, "core"], system, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2: 2.0" in output


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI: openmpi-bin")
def test_mpirun(system: TorchSystem, tmp_path: Path) -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, HELLO]
    output = run(command, system, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2, attempt 0: 4.0" in output


# torchrun takes a node for the rendezvous's host, and tells its address, by the host's name, which
# is the same on both.
NODE = f"""exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2
--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT --rdzv-conf is_host=$((1 - RANK))
--local-addr 10.0.0.$((RANK + 1)) --max-restarts 2 {HELLO} die"""


@pytest.mark.timeout(300)
@pytest.mark.root
@pytest.mark.skipif(NO_MININET is not None, reason=str(NO_MININET))
def test_torchrun_on_two_nodes_starts_again_on_both(tmp_path: Path) -> None:
    # Each of exec's two "ranks" is a node: torchrun in a network namespace of its own.
    lab = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "2", "--switch", "embedded"]
    command = [*lab, "--net", "mininet", "--", "sh", "-c", " ".join(NODE.split())]
    output = run(command, None, tmp_path)
    for rank in range(4):  # whose node had no dead rank counts no restart
        assert f"rank {rank} of 4, attempt {int(rank < 2)}: 16.0" in output


@pytest.mark.timeout(300)
def test_the_example_goes_on_after_a_rank_was_killed(system: TorchSystem, tmp_path: Path) -> None:
    example = [str(EXAMPLES / "pytorch_elastic.py"), "--kill", "1"]
    command = [*TORCHRUN, "--standalone", "--max-restarts", "3", *example]
    output = run([*command, "--checkpoint", str(tmp_path / "saved.pt")], system, tmp_path)
    for rank in range(2):
        assert f"rank {rank}: attempt 1 goes on from step 30" in output
        assert f"rank {rank}: attempt 1 is through" in output


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "switches",
    [["-n", "2"], ["--tree", "2x1"], ["-n", "2", "--switches", "2"]],
    ids=["one switch", "tree", "two"],
)
def test_exec(tmp_path: Path, switches: list[str]) -> None:
    lab = [sys.executable, "-m", "p4reduce_lab", "exec", *switches, "--switch", "embedded"]
    output = run([*lab, "--net", "local", "--", sys.executable, HELLO], None, tmp_path)
    for rank in range(2):
        assert f"rank {rank} of 2, attempt 0: 4.0" in output
