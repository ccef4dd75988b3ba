# SPDX-License-Identifier: Apache-2.0
"""Child processes and run directories: nothing outlives its launcher, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes import tether
from p4reduce_lab.processes.children import ChildFailedError, Processes
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.processes.threads import thread_seconds

DEADLINE = 120.0  # seconds; a test fails by it, and passes long before
LONG = 1000  # seconds: what sleeps that long does not end by itself before the deadline


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_goes_to_the_log_and_the_environment_is_added_to(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start(
            "a",
            ["sh", "-c", "echo $COLOUR $HOME; echo trouble >&2"],
            log=tmp_path / "a.log",
            environment={"COLOUR": "green"},
        )
        wait_until(lambda: child.returncode is not None, "the child ends")
    assert (tmp_path / "a.log").read_text() == f"green {os.environ['HOME']}\ntrouble\n"


@pytest.mark.parametrize(
    ("script", "how"), [("exit 3", "exit code 3"), ("kill -9 $$", "killed by SIGKILL")]
)
def test_a_failure_names_the_child_how_it_ended_and_its_last_words(
    tmp_path: Path, script: str, how: str
) -> None:
    with Processes() as processes:
        processes.start("good", ["sleep", str(LONG)])
        child = processes.start(
            "bad", ["sh", "-c", f"echo first; echo last; {script}"], log=tmp_path / "l"
        )
        wait_until(lambda: child.returncode is not None, "the child ends")
        with pytest.raises(ChildFailedError) as caught:
            processes.check()
        assert [one.name for one in caught.value.children] == ["bad"]
    assert f"bad: {how}" in str(caught.value)
    assert "    last" in str(caught.value)


def test_only_those_who_may_finish_may() -> None:
    with Processes() as processes:
        child = processes.start("short", ["true"])
        wait_until(lambda: child.returncode == 0, "the child ends")
        processes.check(may_finish=[child])
        with pytest.raises(ChildFailedError, match="short: exit code 0"):
            processes.check()


def test_a_program_that_is_not_there_is_a_failure_with_its_name(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start("x", ["/nonexistent/program"], log=tmp_path / "x.log")
        wait_until(lambda: child.returncode is not None, "the child ends")
        with pytest.raises(ChildFailedError, match="/nonexistent/program: No such file"):
            processes.check()


def test_a_program_that_may_not_run_ends_as_in_a_shell(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch(0o644)
    command = [sys.executable, tether.__file__, str(os.getpid()), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (126, f"{program}: Permission denied\n")


def test_end_takes_what_ignores_sigterm_and_what_a_child_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        f"trap '' TERM; sleep {LONG} & echo $! $$ > {pids}.new; mv {pids}.new {pids}; "
        f"wait; sleep {LONG}"
    )
    processes = Processes()
    processes.start("stubborn", ["sh", "-c", script])
    wait_until(pids.exists, "the child has started its own")
    processes.end(grace=0.3)
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), f"{pid} has ended")


LAUNCHER = f"""
import sys, time
from pathlib import Path
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.processes.rundir import run_directory
with run_directory() as directory, Processes() as processes:
    child = processes.start("child", ["sleep", "{LONG}"])
    (directory / "something").write_text("x")
    print(child.process.pid, directory, flush=True)
    time.sleep({LONG})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_is_killed_leaves_no_child_and_no_directory(number: int) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        pid, directory = launcher.stdout.readline().split()
        child, run = int(pid), Path(os.fsdecode(directory))
        # The tether may not have taken hold yet; a program in place of Python says it has.
        wait_until(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes(), "it sleeps")
        assert run.stat().st_mode & 0o777 == 0o700
        launcher.send_signal(number)
        launcher.wait(DEADLINE)
        wait_until(lambda: not alive(child), "the child has ended")
        wait_until(lambda: not run.exists(), "the directory has gone")


def test_a_run_directory_is_short_enough_for_sockets_and_goes() -> None:
    with run_directory() as directory:
        assert len(str(directory / "switch" / "port64.sock")) < 60
    assert not directory.exists()


def test_results_of_an_earlier_run_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("old")
    (tmp_path / "a.log").write_text("old")
    (tmp_path / "mine.txt").write_text("keep")
    with results_directory(tmp_path, replace=("summary.json", "*.log")):
        assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", ".lock"}


def test_a_results_directory_in_use_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    with results_directory(tmp_path, replace=()):
        message = rf"in use by another run \(pid {os.getpid()}\).*--output"
        with pytest.raises(LabError, match=message), results_directory(tmp_path, replace=()):
            pass
    with results_directory(tmp_path, replace=()):
        pass  # free again


def test_a_results_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LabError, match=r"cannot write results to .*file/under"),
        results_directory(tmp_path / "file" / "under", replace=()),
    ):
        pass


def test_threads_that_end_meanwhile_hide_no_others() -> None:
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for one in [threading.Thread(target=int) for _ in range(8)]:
                one.start()

    coming = threading.Thread(target=come_and_go)
    coming.start()
    try:
        for _ in range(1000):
            assert str(os.getpid()) in thread_seconds()
    finally:
        done.set()
        coming.join()


def test_a_process_that_has_ended_has_no_threads() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert thread_seconds(ended.pid) == {}
