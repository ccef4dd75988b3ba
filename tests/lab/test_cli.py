# SPDX-License-Identifier: Apache-2.0
"""p4reduce-lab's arguments, and ``exec`` with commands that need no switch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from launched import DEADLINE
from p4reduce_lab.cli import commands

LAB = [sys.executable, "-m", "p4reduce_lab"]
# A system that runs elsewhere; nothing here talks to it.
ELSEWHERE = {"P4REDUCE_CONTROLLER": "unix:/nowhere", "P4REDUCE_INTERFACE": "unix:/port{port}"}


def lab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("P4REDUCE_")}
    return subprocess.run(
        [*LAB, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize("number", ["0", "-3", "65", "four"])
@pytest.mark.parametrize("command", [["run"], ["exec", "true"]])
def test_senseless_numbers_of_workers_are_refused(command: list[str], number: str) -> None:
    done = CliRunner().invoke(commands, [command[0], "--ranks", number, *command[1:]])
    assert done.exit_code == 2
    assert number in done.output


def test_an_unknown_switch_is_refused_with_the_known_ones() -> None:
    done = lab("run", SWITCH="tofino")
    assert done.returncode == 2
    assert "tofino" in done.stderr
    assert "embedded" in done.stderr


def test_an_unknown_compression_is_refused_at_once_with_the_known_ones() -> None:
    done = lab("run", COMPRESSION="gzip")
    assert done.returncode == 2
    assert "'--compression' (env var: 'COMPRESSION'): compression 'gzip'" in done.stderr
    assert "topk:SHARE" in done.stderr
    assert "Switch:" not in done.stdout


def test_the_lab_refuses_another_network_at_once() -> None:
    done = lab("lab", NET="local")
    assert (done.returncode, done.stdout) == (2, "")
    assert "NET=local is not possible here: the lab is a Mininet network" in done.stderr


@pytest.mark.parametrize("bandwidth", ["-1Mbit", "0bit", "nan", "5Gbit", "100", "abc"])
@pytest.mark.parametrize(("command", "net"), [("run", "auto"), ("run", "local"), ("lab", "auto")])
def test_a_senseless_bandwidth_is_refused_at_once(command: str, net: str, bandwidth: str) -> None:
    done = CliRunner().invoke(commands, [command], env={"BW": bandwidth, "NET": net})
    assert done.exit_code == 2
    assert "Invalid value for '--bandwidth' (env var: 'BW')" in done.output
    assert bandwidth in done.output
    assert "Switch:" not in done.output


def test_a_bandwidth_without_links_to_limit_is_refused_at_once() -> None:
    done = lab("run", BW="100Mbit", NET="local")
    assert (done.returncode, done.stdout) == (2, "")
    assert "BW=100Mbit needs NET=mininet" in done.stderr


def test_stop_tells_a_lab_of_another_user_from_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(commands, ["stop", "--output", str(tmp_path)])
    assert f"no lab has been up in {tmp_path}" in str(done.exception)
    lock = tmp_path / ".lock"
    lock.mkdir()  # root, too, cannot open that for writing
    done = CliRunner().invoke(commands, ["stop", "--output", str(tmp_path)])
    assert f"cannot open {lock}: Is a directory; end the lab as the user" in str(done.exception)


def test_bmv2_where_it_is_not_says_what_to_install() -> None:
    done = lab("run", SWITCH="bmv2", PATH="/nowhere")
    assert done.returncode == 2
    assert "simple_switch_grpc" in done.stderr
    assert "install" in done.stderr


def test_exec_gives_each_process_its_rank_and_prefixes_what_it_says() -> None:
    script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK $P4REDUCE_CONTROLLER; printf unfinished >&2"
    done = lab("exec", "-n", "3", "--", "sh", "-c", script, **ELSEWHERE)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[{rank}] {text}"
        for rank in range(3)
        for text in (f"{rank}/3 {rank} unix:/nowhere", "unfinished")
    )


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_exec_ends_all_when_one_fails_and_exits_like_it(end: str, code: int) -> None:
    done = lab(
        "exec", "-n", "3", "--", "sh", "-c", f"test $RANK = 1 && {end}; sleep 3000", **ELSEWHERE
    )
    assert done.returncode == code
    assert "rank 1" in done.stderr


def test_exec_passes_options_on_to_the_command() -> None:
    done = lab("exec", "-n", "1", "--", "echo", "--help", "-n", **ELSEWHERE)
    assert done.stdout == "[0] --help -n\n"


def test_exec_finds_this_environments_python_first() -> None:
    done = lab("exec", "-n", "1", "--", "python", "-c", "import p4reduce", **ELSEWHERE)
    assert (done.returncode, done.stderr) == (0, "")


def test_exec_with_half_of_a_systems_variables_says_which_is_missing() -> None:
    done = lab("exec", "true", P4REDUCE_CONTROLLER="unix:/nowhere")
    assert done.returncode == 1
    assert "P4REDUCE_INTERFACE is not" in done.stderr


def test_ctrl_c_ends_exec_and_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = subprocess.Popen(
        [*LAB, "exec", "-n", "2", "--", "sh", "-c", f"echo $$ >> {pids}; exec sleep 3000"],
        env={**os.environ, **ELSEWHERE},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + DEADLINE
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "Traceback" not in error
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists()
