# SPDX-License-Identifier: Apache-2.0
"""Whole runs through real processes: what they give, and that they leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from p4reduce_lab import bmv2, mininet_net

ROOT = Path(__file__).parent.parent.parent
LAB = [sys.executable, "-m", "p4reduce_lab"]
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("P4REDUCE_") and name not in ("RANK", "WORLD_SIZE", "BW")
}
# As root, "auto" would take BMv2 and Mininet where they are installed.
ENVIRONMENT |= {"SWITCH": "embedded", "NET": "local"}
DEADLINE = 120.0  # seconds; a test fails by it, and passes long before


class Launched:
    """A lab command under way, with its output in a file."""

    running: ClassVar[list[Launched]] = []

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.running.append(self)
        self._output = tmp_path / "output"
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [*LAB, *arguments],
                env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str) -> str:
        """Waits until the output has something that matches, and returns it."""
        deadline = time.monotonic() + DEADLINE
        while True:
            if found := re.search(pattern, self.output):
                return found.group()
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}"
            time.sleep(0.05)

    def wait(self) -> int:
        return self.process.wait(DEADLINE)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test if processes that have this run's mark in their environment are left."""
    mark = f"P4REDUCE_TEST_MARK={os.urandom(8).hex()}"
    name, value = mark.split("=")
    ENVIRONMENT[name] = value
    directories = set(Path("/tmp").glob("p4reduce-*"))
    yield
    for launched in Launched.running:
        launched.process.kill()  # a test that failed may have left it running
        launched.process.wait()
    Launched.running.clear()
    deadline = time.monotonic() + 10
    while True:
        processes = _processes_with(mark)
        left = set(Path("/tmp").glob("p4reduce-*")) - directories
        # Another test run on this machine may have made some meanwhile: ours are those
        # that nobody uses.
        left = {directory for directory in left if not _processes_with(str(directory))}
        if not processes and not left:
            break
        assert time.monotonic() < deadline, f"left behind: {processes} {left}"
        time.sleep(0.1)
    del ENVIRONMENT[name]


def _processes_with(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in environment or text in command:
            found.append(f"{process.name}: {command}")
    return found


def _pid_of(what: str, rank: int | None = None) -> int:
    """The pid of a process of this test's run, by words of its command."""
    mark = f"P4REDUCE_TEST_MARK={ENVIRONMENT['P4REDUCE_TEST_MARK']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranked = rank is None or f"RANK={rank}".encode() in variables
        if mark in variables and what in command and "tether" not in command and ranked:
            return int(process.name)
    raise AssertionError(f"no process {what!r} of rank {rank}")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_short_run_gives_what_numpy_gives(tmp_path: Path, workers: int) -> None:
    _check_run(tmp_path, "embedded", workers)


@pytest.mark.usefixtures("nothing_left")
def test_a_compressed_run_tells_what_it_saved_beside_the_uncompressed_one(tmp_path: Path) -> None:
    arguments = ["--workers", "2", "--steps", "40", "--output", "out"]
    run = Launched(tmp_path, "run", *arguments, "--compression", "topk:0.2")
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    compression = summary["compression"]
    assert compression["name"] == "topk:0.2"
    assert compression["level_median"] == 8
    assert compression["total_blocks"] == 38
    # 8 blocks up and at most 16 down, and frames without lanes, instead of 38 and 38.
    assert 0.1 < compression["bytes"] / compression["uncompressed_bytes"] < 0.55
    assert abs(compression["uncompressed_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert summary["test_accuracy"] > 0.7
    assert summary["weights_sha256"] != compression["uncompressed_weights_sha256"]
    assert summary["compared_elements"] == 2 * 40 * (summary["parameters"] + 1)
    assert re.search(r"bytes saved +\d+\.\d%: \d+\.\d MB a worker instead of", run.output)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", ["restart-switch", "restart-controller"])
def test_a_run_ends_with_the_undisturbed_weights_when_something_is_killed(
    tmp_path: Path, fault: str
) -> None:
    _check_fault(tmp_path, fault, "embedded")


@pytest.mark.usefixtures("nothing_left")
def test_the_others_train_to_the_end_when_a_worker_is_killed(tmp_path: Path) -> None:
    arguments = ["--workers", "3", "--steps", "90", "--output", "out", "--fault", "kill-worker"]
    run = Launched(tmp_path, "run", *arguments)
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    fault = summary["fault"]
    assert fault["survivors"] == 2
    assert fault["resumed"] >= fault["step"] >= 30
    assert summary["identical_on_all_ranks"] is True
    assert summary["identical_results_on_all_ranks"] is True
    assert summary["error_of_bound"] <= 1, "sums are those of the ranks that were there"
    # The batches are the same, split over fewer ranks.
    assert abs(summary["test_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert re.search(r"rank 0 of job .*: WorkerLostError: .*rank 1", run.output)
    assert re.search(r"rank 0 of job .*: is rank 0 of 2 now", run.output)
    assert any("is rank 1 of 2 now" in text for text in fault["notices"]), "rank 2 closed the gap"


def _check_fault(tmp_path: Path, fault: str, switch: str) -> None:
    arguments = ["--workers", "2", "--steps", "90", "--output", "out", "--switch", switch]
    run = Launched(tmp_path, "run", *arguments, "--fault", fault)
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["fault"]["name"] == fault
    assert summary["fault"]["undisturbed_weights_sha256"] == summary["weights_sha256"]
    assert summary["identical_on_all_ranks"] is True
    assert 30 <= summary["fault"]["step"] < 90
    assert summary["fault"]["away_seconds"] > 0
    if fault == "restart-switch":
        assert summary["fault"]["recoveries"] >= 1
        assert summary["fault"]["pause_seconds"] > summary["fault"]["usual_seconds"]
        assert "looking for the switch" in run.output
    else:
        assert summary["fault"]["recoveries"] == 0
    assert "the same, bit for bit" in run.output


@pytest.mark.bmv2
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
def test_a_short_run_on_bmv2_gives_what_numpy_gives(tmp_path: Path) -> None:
    _check_run(tmp_path, "bmv2", 2)


@pytest.mark.bmv2
@pytest.mark.mininet
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
@pytest.mark.skipif(mininet_net.unavailable() is not None, reason=str(mininet_net.unavailable()))
def test_both_switches_in_mininet_and_out_of_it_train_the_same_weights(tmp_path: Path) -> None:
    weights = {
        (switch, network): _check_run(tmp_path, switch, 2, network)["weights_sha256"]
        for switch, network in (("bmv2", "mininet"), ("embedded", "mininet"), ("embedded", "local"))
    }
    assert len(set(weights.values())) == 1, weights


@pytest.mark.mininet
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(mininet_net.unavailable() is not None, reason=str(mininet_net.unavailable()))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_in_mininet_that_is_interrupted_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = Launched(
        tmp_path, "run", "--workers", "2", "--steps", "1000000", "--net", "mininet", "--pcap"
    )
    run.wait_for(r"step +\d+/1000000")
    prefix = f"p4r{run.process.pid}-"
    assert prefix in Path("/proc/net/dev").read_text()
    run.process.send_signal(number)
    assert run.wait() == (128 + number if number != signal.SIGKILL else -number), run.output
    deadline = time.monotonic() + 10
    while prefix in (interfaces := Path("/proc/net/dev").read_text()):
        assert time.monotonic() < deadline, interfaces
        time.sleep(0.05)


def _check_run(tmp_path: Path, switch: str, workers: int, network: str = "local") -> dict[str, Any]:
    arguments = ["--workers", str(workers), "--steps", "15", "--output", "out", "--pcap"]
    run = Launched(tmp_path, "run", *arguments, "--switch", switch, "--net", network)
    assert run.wait() == 0, run.output
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["switch"] == switch
    assert summary["network"] == network
    assert len(list((tmp_path / "out").glob("*.pcap"))) >= workers
    assert summary["workers"] == workers
    assert summary["steps"] == 15
    assert abs(summary["test_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert summary["test_accuracy"] > 0.7
    assert summary["identical_on_all_ranks"] is True
    assert summary["max_relative_error"] < 1e-6
    assert summary["error_of_bound"] <= 1
    assert summary["compared_elements"] == 15 * (summary["parameters"] + 1)
    assert summary["results"] >= 15 * (summary["parameters"] // 256)
    assert summary["contributions"] == workers * summary["results"]
    assert 0 < summary["training_seconds"] < summary["seconds"]
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert "15/15" in run.output
    assert "bit-identical" in run.output
    assert "\x1b" not in run.output, "colours where there is no terminal"
    return summary


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = Launched(tmp_path, "run", "--workers", "2", "--steps", "1000000")
    run.wait_for(r"step +\d+/1000000")
    run.process.send_signal(number)
    code = run.wait()
    assert code == (-number if number == signal.SIGKILL else 128 + number), run.output
    assert "Traceback" not in run.output
    assert not (tmp_path / "build" / "run" / "summary.json").exists()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("what", "rank", "name"),
    [
        ("p4reduce_lab worker", 1, "worker of rank 1"),
        ("p4reduce_switch", None, r"switch \(embedded\)"),
        ("p4reduce_controller", None, "controller"),
    ],
)
def test_a_run_whose_process_is_killed_ends_and_names_it(
    tmp_path: Path, what: str, rank: int | None, name: str
) -> None:
    run = Launched(tmp_path, "run", "--workers", "2", "--steps", "1000000")
    run.wait_for(r"step +\d+/1000000")
    os.kill(_pid_of(what, rank), signal.SIGKILL)
    assert run.wait() == 1
    assert re.search(f"{name}: killed by SIGKILL", run.output), run.output
    assert "the end of" in run.output
    assert "Traceback" not in run.output


@pytest.mark.usefixtures("nothing_left")
def test_a_run_whose_worker_hangs_ends_when_its_lease_does_and_names_the_rank(
    tmp_path: Path,
) -> None:
    run = Launched(tmp_path, "run", "--workers", "3", "--steps", "1000000")
    run.wait_for(r"step +\d+/1000000")
    os.kill(_pid_of("p4reduce_lab worker", 2), signal.SIGSTOP)
    assert run.wait() == 1
    assert re.search(r"rank 2\b.*(lost|heartbeat|lease)", run.output), run.output
    assert "Traceback" not in run.output


@pytest.mark.usefixtures("nothing_left")
def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = Launched(tmp_path, "run", "--workers", "1", "--steps", "1000000")
    first.wait_for(r"step +\d+/1000000")
    second = subprocess.run(
        [*LAB, "run"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 130
    assert second.returncode == 1
    assert f"in use by another run (pid {first.process.pid})" in second.stderr


@pytest.mark.usefixtures("nothing_left")
def test_up_serves_workers_that_exec_starts(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "3")
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    assert exported.keys() == {"P4REDUCE_CONTROLLER", "P4REDUCE_INTERFACE"}
    example = [sys.executable, str(ROOT / "examples" / "allreduce.py")]
    for _ in range(2):  # the switch is free again after a job
        done = subprocess.run(
            [*LAB, "exec", "-n", "3", "--", *example],
            env={**ENVIRONMENT, **exported},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()) == [
            f"[{rank}] rank {rank} of 3: sum 6, mean 2" for rank in range(3)
        ]
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("example", "text"),
    [
        ("allreduce.py", "sum 3, mean 1.5"),
        ("embedding.py", "mean square error 0.9.* to 0.[0-4].* sent a step"),
    ],
)
def test_exec_starts_a_switch_of_its_own(tmp_path: Path, example: str, text: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / example)]
    run = Launched(tmp_path, "exec", "-n", "2", "--", *command)
    assert run.wait() == 0, run.output
    assert re.search(rf"\[1\] rank 1 of 2: {text}", run.output), run.output
