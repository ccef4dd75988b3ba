# SPDX-License-Identifier: Apache-2.0
"""Runs that are interrupted, killed or stopped: they leave nothing, and say what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, Launched, pid_of
from p4reduce_lab.networks import mininet_net


@pytest.mark.long
@pytest.mark.mininet
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(mininet_net.unavailable() is not None, reason=str(mininet_net.unavailable()))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_in_mininet_that_is_interrupted_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = Launched(
        tmp_path, "run", "--ranks", "2", "--steps", "20000", "--net", "mininet", "--pcap"
    )
    run.wait_for(r"step +\d+/20000")
    prefix = f"p4r{run.process.pid}-"
    assert prefix in Path("/proc/net/dev").read_text()
    run.process.send_signal(number)
    assert run.wait() == (128 + number if number != signal.SIGKILL else -number), run.output
    deadline = time.monotonic() + DEADLINE
    while prefix in (interfaces := Path("/proc/net/dev").read_text()):
        assert time.monotonic() < deadline, interfaces
        time.sleep(0.05)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = Launched(tmp_path, "run", "--ranks", "2", "--steps", "20000")
    run.wait_for(r"step +\d+/20000")
    run.process.send_signal(number)
    code = run.wait()
    assert code == (-number if number == signal.SIGKILL else 128 + number), run.output
    assert "Traceback" not in run.output
    assert not (tmp_path / "build" / "run" / "summary.json").exists()


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("what", "rank", "name"),
    [
        ("p4reduce_lab.demo.ranks.worker", 1, "worker of rank 1"),
        ("p4reduce_switch", None, r"switch \(embedded\)"),
        ("p4reduce_controller", None, "controller"),
    ],
)
def test_a_run_whose_process_is_killed_ends_and_names_it(
    tmp_path: Path, what: str, rank: int | None, name: str
) -> None:
    run = Launched(tmp_path, "run", "--ranks", "2", "--steps", "20000")
    run.wait_for(r"step +\d+/20000")
    os.kill(pid_of(what, rank), signal.SIGKILL)
    assert run.wait() == 1
    assert re.search(f"{name}: killed by SIGKILL", run.output), run.output
    assert "the end of" in run.output
    assert "Traceback" not in run.output


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_run_whose_worker_hangs_ends_when_its_lease_does_and_names_the_rank(
    tmp_path: Path,
) -> None:
    run = Launched(tmp_path, "run", "--ranks", "3", "--steps", "20000")
    run.wait_for(r"step +\d+/20000")
    os.kill(pid_of("p4reduce_lab.demo.ranks.worker", 2), signal.SIGSTOP)
    assert run.wait() == 1
    assert re.search(r"rank 2\b.*(lost|heartbeat|lease)", run.output), run.output
    assert "Traceback" not in run.output


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = Launched(tmp_path, "run", "--ranks", "1", "--steps", "20000")
    first.wait_for(r"step +\d+/20000")
    second = subprocess.run(
        [*LAB, "run"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 130
    assert second.returncode == 1
    assert f"in use by another run (pid {first.process.pid})" in second.stderr
