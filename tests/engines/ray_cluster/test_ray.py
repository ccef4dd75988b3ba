# SPDX-License-Identifier: Apache-2.0
"""Ray Train and Ray's collectives by the switch, on two raylets on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needed import (
    DEADLINE,
    ROOT,
    mark_of,
    marked,
    marked_processes,
    needs,
    nothing_is_left,
    pid_of,
    sockets_seen,
    wait_for_socket,
)

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(900),
    needs(packages=("ray", "torch", "pyarrow", "sklearn")),
]
HERE = Path(__file__).parent
STORE = 80 * 2**20  # bytes; the least that Ray takes is 75 MB
FOLDER = re.compile(r"/tmp/p4reduce-[0-9a-f]+")
NETWORK = ("p4reduce_switch", "p4reduce_controller", "p4reduce_lab", "janitor.py")


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of programs that are to run on it."""
    from ray.cluster_utils import Cluster

    with marked() as environment:
        before = dict(os.environ)
        os.environ |= environment  # the raylets' workers have it too
        made = None
        try:
            made = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 2,
                    "object_store_memory": STORE,
                    "include_dashboard": False,
                },
            )
            made.add_node(num_cpus=2, object_store_memory=STORE)
            yield {**environment, "RAY_ADDRESS": made.address, "RAY_DEDUP_LOGS": "0"}
        finally:
            if made is not None:
                made.shutdown()
            os.environ.clear()
            os.environ |= before


def started(environment: dict[str, str], log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=out, stderr=subprocess.STDOUT
        )


def ended(run: subprocess.Popen[bytes], log: Path) -> str:
    try:
        run.wait(2 * DEADLINE)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        raise AssertionError(log.read_text()[-6000:]) from None
    return log.read_text()


def until(what: Any, log: Path, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 2 * DEADLINE
    while not what():
        assert run.poll() is None, log.read_text()[-6000:]
        if time.monotonic() > deadline:
            run.kill()  # or the next test would lack its workers
            raise AssertionError(log.read_text()[-6000:])
        time.sleep(0.1)


def network_of(environment: dict[str, str]) -> dict[int, str]:
    """The processes of networks; those of Ray are the cluster's."""
    return {
        pid: command
        for pid, command in marked_processes(mark_of(environment)).items()
        if any(word in command for word in NETWORK)
    }


def no_network_is_left(environment: dict[str, str]) -> None:
    nothing_is_left(environment, NETWORK)
    folders = {found for one in sockets_seen(environment) for found in FOLDER.findall(one)}
    deadline = time.monotonic() + DEADLINE
    while left := [folder for folder in folders if Path(folder).exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def kept(directory: Path) -> bool:
    """Whether Ray has the checkpoint, from which it would start again."""
    return any(directory.rglob("checkpoint_manager_snapshot.json"))


def test_four_workers_learn_as_one_process(cluster: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    example = str(ROOT / "examples" / "ray_digits.py")
    output = ended(started(cluster, log, example, "--storage", str(tmp_path / "results")), log)
    together = re.search(r"accuracy with 4 workers: (\S+)", output)
    alone = re.search(r"accuracy of one process: +(\S+)", output)
    sent = re.search(r"rank 0 sent (\S+) MB", output)
    assert together is not None, output[-6000:]
    assert alone is not None
    assert sent is not None
    assert float(together[1]) == pytest.approx(float(alone[1]), abs=0.005)
    assert float(alone[1]) > 0.9
    # 21 steps of 9,610 parameters of four bytes each: all of the gradients went that way.
    assert float(sent[1]) > 21 * 9610 * 4 / 1e6
    no_network_is_left(cluster)


@pytest.mark.parametrize("victim", ["p4reduce_switch", "p4reduce_controller"])
def test_a_killed_service_comes_back(victim: str, cluster: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = started(cluster, log, str(HERE / "looping.py"), str(tmp_path), "0")
    until((tmp_path / "begun").exists, log, run)
    service = pid_of(cluster, f"-m {victim}")
    pid_of(cluster, "--lease 45 ")
    wait_for_socket(cluster, f"-m {victim}")
    os.kill(service, signal.SIGKILL)

    def is_back() -> bool:
        words = f"-m {victim}"
        return any(words in one and pid != service for pid, one in network_of(cluster).items())

    until(is_back, log, run)
    (tmp_path / "end").touch()
    output = ended(run, log)
    assert run.returncode == 0, output[-6000:]
    assert "'again': False" in output
    assert not list(tmp_path.glob("error-*"))
    no_network_is_left(cluster)


def test_a_killed_worker_comes_back(cluster: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = started(cluster, log, str(HERE / "looping.py"), str(tmp_path), "1", "suicide")
    until(lambda: len(list(tmp_path.glob("again-*"))) == 4, log, run)
    for error in tmp_path.glob("error-*"):  # Ray may end a worker before it learns of the loss
        text = error.read_text()
        assert text.startswith("DistBackendError")
        assert "rank 1" in text
    (tmp_path / "end").touch()
    output = ended(run, log)
    assert run.returncode == 0, output[-6000:]
    assert "'again': True" in output
    assert "'size': 4" in output
    no_network_is_left(cluster)


def test_a_lost_network_is_an_error_on_all_ranks_which_train_again(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    run = started(cluster, log, str(HERE / "looping.py"), str(tmp_path), "1")
    until((tmp_path / "begun").exists, log, run)
    until(lambda: kept(tmp_path), log, run)
    os.kill(pid_of(cluster, "-m p4reduce_lab.deploy"), signal.SIGKILL)
    until(lambda: len(list(tmp_path.glob("error-*"))) == 4, log, run)
    for rank in range(4):
        assert (tmp_path / f"error-{rank}").read_text().startswith("DistBackendError")
    (tmp_path / "end").touch()
    output = ended(run, log)
    assert run.returncode == 0, output[-6000:]
    assert "'again': True" in output
    no_network_is_left(cluster)


def test_a_network_that_does_not_start_is_an_error_of_fit(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    program = """
import ray.train
from ray.train.torch import TorchTrainer
from p4reduce.ray import P4ReduceConfig
TorchTrainer(
    lambda: None,
    torch_config=P4ReduceConfig(lease=0.01),
    scaling_config=ray.train.ScalingConfig(num_workers=2),
).fit()
"""
    log = tmp_path / "log"
    run = started(cluster, log, "-c", program)
    output = ended(run, log)
    assert run.returncode != 0
    assert "a lease of 0.01 s; it must be" in output
    no_network_is_left(cluster)
