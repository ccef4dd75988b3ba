# SPDX-License-Identifier: Apache-2.0
"""Switch and controller in the care of different processes, as engines with actors have them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from p4reduce import launch
from p4reduce_lab import local_network
from p4reduce_lab.processes import janitor

DEADLINE = 120.0


@pytest.fixture
def shared() -> Iterator[str]:
    with local_network.environment({}):
        yield f"test-{secrets.token_hex(6)}"


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def both(shared: str) -> tuple[launch.Network, launch.Network]:
    """Both parts, started at the same time."""
    with ThreadPoolExecutor() as pool:
        parts = pool.map(
            lambda part: launch.start(2, part=part, shared=shared), ("switches", "controller")
        )
        switches, controller = parts
    return switches, controller


def test_switches_are_started_again_while_ranks_sum(shared: str) -> None:
    switches, controller = both(shared)
    directory = Path(f"/tmp/p4reduce-{shared}")
    over = threading.Event()
    sums: list[list[float]] = []

    def rank_of(rank: int) -> None:
        with p4reduce.init(rank, 2, job="parts", timeout=DEADLINE) as comm:
            going = True
            while going:
                sums.append(comm.allreduce(np.ones(4, np.float32)).tolist())
                going = not comm.allreduce(np.array([over.is_set()], np.int32))[0]

    assert switches.pids.keys() == {"network", "switch"}
    assert controller.pids.keys() == {"network", "controller"}
    assert directory.stat().st_mode & 0o777 == 0o700
    try:
        with local_network.environment(controller.variables), ThreadPoolExecutor() as pool:
            ranks = [pool.submit(rank_of, rank) for rank in range(2)]
            try:
                until(lambda: sums)
                for pid in switches.pids.values():
                    os.kill(pid, signal.SIGKILL)
                switches.close()
                before = len(sums)
                switches = launch.start(2, part="switches", shared=shared)
                until(lambda: len(sums) > before + 2)
            finally:
                over.set()
                for rank in ranks:
                    rank.result(DEADLINE)
    finally:
        switches.close()
        assert directory.exists()  # the controller has it still
        controller.close()
    assert all(one == [2.0] * 4 for one in sums)
    until(lambda: not directory.exists())


HOLDER = """
import sys, time
from p4reduce import launch
network = launch.start(2, part="controller", shared=sys.argv[1])
print("up", flush=True)
time.sleep(1000)
"""


def test_a_job_outlives_the_process_that_held_the_controller(shared: str) -> None:
    switches = launch.start(2, part="switches", shared=shared)
    command = [sys.executable, "-c", HOLDER, shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder, switches:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        ready = json.loads(Path(f"/tmp/p4reduce-{shared}/controller.ready").read_text())
        variables = {**switches.variables, "P4REDUCE_CONTROLLER": ready["address"]}
        with local_network.environment(variables), ThreadPoolExecutor() as pool:
            begun, killed = threading.Barrier(3, timeout=DEADLINE), threading.Event()

            def rank_of(rank: int) -> list[float]:
                with p4reduce.init(rank, 2, job="held", timeout=DEADLINE) as comm:
                    comm.allreduce(np.ones(4, np.float32))
                    begun.wait()
                    assert killed.wait(DEADLINE)
                    return comm.allreduce(np.ones(4, np.float32)).tolist()

            sums = [pool.submit(rank_of, rank) for rank in range(2)]
            begun.wait()
            holder.kill()
            with launch.start(2, part="controller", shared=shared):
                killed.set()
                assert [one.result(DEADLINE) for one in sums] == [[2.0] * 4] * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"part": "switch", "shared": "test-12345678"}, "part 'switch' is neither"),
        ({"part": "switches"}, "shared as '': give both"),
        ({"part": "controller", "shared": "../../etc"}, "shared as '../../etc': give both"),
    ],
)
def test_what_no_part_is_is_refused(arguments: dict[str, str], says: str, shared: str) -> None:
    with pytest.raises(p4reduce.ConfigurationError, match=says):
        launch.start(2, **arguments)  # type: ignore[arg-type]


def test_the_last_janitor_removes_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "shared"

    def one() -> subprocess.Popen[bytes]:
        command = ["python3", "-I", "-S", janitor.__file__, "--shared", str(directory)]
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert made.stdout is not None
        assert made.stdout.readline() == b"held\n"
        return made

    first, second = one(), one()
    (directory / "file").touch()
    first.communicate(timeout=DEADLINE)
    assert (directory / "file").exists()
    third = one()
    second.communicate(timeout=DEADLINE)
    assert (directory / "file").exists()
    third.communicate(timeout=DEADLINE)
    assert not directory.exists()
