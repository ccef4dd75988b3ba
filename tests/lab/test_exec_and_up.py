# SPDX-License-Identifier: Apache-2.0
"""`exec` and `up` with real switches and workers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, ROOT, Launched
from p4reduce_lab.execute import DRAIN, execute
from p4reduce_lab.ports import ports_for
from p4reduce_lab.topology import LabTopology

# One rank raises; the other is ended by the launcher, in the middle of a call.
FAILING = """
import numpy, p4reduce
comm = p4reduce.init()
comm.barrier()
assert comm.rank == 0
comm.barrier()
"""


# A rank that leaves only when the ranks of both jobs have been there: they run at the same time.
TOGETHER = """
import os, pathlib, time, numpy, p4reduce
comm = p4reduce.init()
assert comm.allreduce(numpy.ones(3, numpy.float32)).tolist() == [2, 2, 2]
where = os.environ["P4REDUCE_INTERFACE"]
print("at", where, flush=True)
pathlib.Path({directory!r}, f"there-{{os.environ['P4REDUCE_JOB']}}-{{comm.rank}}").touch()
deadline = time.monotonic() + 200
while len(list(pathlib.Path({directory!r}).glob("there-*"))) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.02)
comm.close()
"""


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_up_serves_workers_that_exec_starts(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "3", "--pcap")
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    assert exported.keys() == {
        "P4REDUCE_CONTROLLER",
        "P4REDUCE_INTERFACE",
        "P4REDUCE_STATE_DIR",
    }
    assert f"{exported['P4REDUCE_STATE_DIR']}/operator.token" in up.output
    environment = {**ENVIRONMENT, **exported}
    # More ranks than ports are refused here, not by a traceback of the last rank.
    done = _run([*LAB, "exec", "-n", "4", "--", "true"], environment)
    assert done.returncode == 2
    assert done.stderr.startswith("p4reduce-lab: 4 ranks need as many ports, but the switch")
    assert "`p4reduce-lab up --ports 4`" in done.stderr
    assert "Traceback" not in done.stderr
    # The operator's token is in the state directory: a job with a token of its own can be deleted.
    controller = [sys.executable, "-m", "p4reduce_controller", "job"]
    create = [*controller, "create", "-n", "2", "--token", "x" * 20, "secret"]
    assert _run(create, environment).returncode == 0
    done = _run([*controller, "delete", "secret"], environment)
    assert done.returncode == 0, done.stderr
    example = [sys.executable, str(ROOT / "examples" / "allreduce.py")]
    for _ in range(2):  # the switch is free again after a job
        done = _run([*LAB, "exec", "-n", "3", "--", *example], environment)
        assert done.returncode == 0, done.stdout + done.stderr
        # On a slow machine ranks also say that they wait for the others.
        said = [line for line in done.stdout.splitlines() if " has waited " not in line]
        assert sorted(said) == [f"[{rank}] rank {rank} of 3: sum 6, mean 2" for rank in range(3)]
        failed = _run([*LAB, "exec", "-n", "2", "--", sys.executable, "-c", FAILING], environment)
        assert failed.returncode == 1, failed.stdout + failed.stderr
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130
    assert len(list((tmp_path / "build" / "up").glob("port*.pcap"))) == 3


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "options",
    [
        ["--net", "local"],
        ["--net", "udp"],
        ["--tree", "2x2"],
        ["--switches", "2"],
        ["--cores", "2"],
    ],
    ids=["unix", "udp", "tree", "side by side", "cores"],
)
def test_two_jobs_at_once_get_ports_of_their_own(tmp_path: Path, options: list[str]) -> None:
    up = Launched(tmp_path, "up", *([] if "--tree" in options else ["--ports", "4"]), *options)
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    environment = {**ENVIRONMENT, **exported}
    script = tmp_path / "job.py"
    script.write_text(TOGETHER.format(directory=str(tmp_path)))
    command = [*LAB, "exec", "-n", "2", "--", sys.executable, str(script)]
    pair = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=DEADLINE)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    ports = re.findall(r"\] at (\S+)", "".join(said))
    assert len(set(ports)) == 4, ports
    # One that says which ports it wants gets them, or hears who has them.
    printed = [sys.executable, "-c", "import os; print(os.environ['P4REDUCE_INTERFACE'])"]
    done = _run([*LAB, "exec", "-n", "2", "--first-port", "3", "--", *printed], environment)
    assert sorted(re.findall(r"\[(\d)\] (\S+)", done.stdout)) == [
        (str(rank), exported["P4REDUCE_INTERFACE"].replace("{port}", str(rank + 3)))
        for rank in range(2)
    ]
    done = _run([*LAB, "exec", "-n", "2", "--first-port", "4", "--", "true"], environment)
    assert done.returncode == 2
    assert "the switch has no port 5: its ports are 1 to 4" in done.stderr
    with ports_for(exported["P4REDUCE_CONTROLLER"], 3) as got:
        assert got == [1, 2, 3]
        done = _run([*LAB, "exec", "-n", "2", "--", "true"], environment)
        assert done.returncode == 2
        assert "other jobs have 1 to 3 of 1 to 4" in done.stderr
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


@pytest.mark.usefixtures("nothing_left")
def test_exec_leaves_captures_and_the_commands_own_options_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    own = ["--pcap", "-n", "7", "--switch", "mine"]
    run = Launched(tmp_path, "exec", "-n", "1", "--pcap", sys.executable, str(script), *own)
    assert run.wait() == 0, run.output
    assert f"[0] {own}" in run.output
    assert len(list((tmp_path / "build" / "exec").glob("port*.pcap"))) == 1


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("example", "text"),
    [
        ("allreduce.py", "sum 3, mean 1.5"),
        pytest.param(
            "embedding.py",
            "mean square error 0.9.* to 0.[0-4].* sent a step",
            marks=pytest.mark.long,
        ),
    ],
)
def test_exec_starts_a_switch_of_its_own(tmp_path: Path, example: str, text: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / example)]
    run = Launched(tmp_path, "exec", "-n", "2", "--", *command)
    assert run.wait() == 0, run.output
    assert re.search(rf"\[1\] rank 1 of 2: {text}", run.output), run.output


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("options", "switches"),
    [
        (["--tree", "2x2"], ["", "-leaf-1", "-leaf-2"]),
        (["-n", "4", "--switches", "2"], ["", "-b"]),
    ],
    ids=["tree", "side by side"],
)
def test_exec_gives_a_script_several_switches(
    tmp_path: Path, options: list[str], switches: list[str]
) -> None:
    example = str(ROOT / "examples" / "allreduce.py")
    command = [*options, "--pcap", "--", sys.executable, example]
    run = Launched(tmp_path, "exec", *command)
    assert run.wait() == 0, run.output
    for rank in range(4):
        assert f"[{rank}] rank {rank} of 4: sum 10, mean 2.5" in run.output
    for name in switches:  # each has seen frames: a capture's head has 24 bytes
        assert (tmp_path / "build" / "exec" / f"port1{name}.pcap").stat().st_size > 24


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "options", [["--tree", "2x1"], ["--ports", "2", "--switches", "2"]], ids=["tree", "two"]
)
def test_up_leaves_several_switches_running(tmp_path: Path, options: list[str]) -> None:
    up = Launched(tmp_path, "up", *options)
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    environment = {**ENVIRONMENT, **exported}
    example = [sys.executable, str(ROOT / "examples" / "allreduce.py")]
    done = _run([*LAB, "exec", "-n", "2", "--", *example], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1] rank 1 of 2: sum 3, mean 1.5" in done.stdout
    # What it says of the command line is to be typed as it is.
    lists = re.findall(r"^  p4reduce-controller (.*job list)$", up.output, re.MULTILINE)
    assert len(lists) == len(exported["P4REDUCE_CONTROLLER"].split(","))
    for words in lists:
        done = _run([sys.executable, "-m", "p4reduce_controller", *words.split()], environment)
        assert done.returncode == 0, done.stdout + done.stderr
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130


def test_what_ranks_leave_running_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon keeps its rank's output open. There are `DRAIN` seconds for all ranks together."""
    waits: list[float] = []
    join = threading.Thread.join

    def join_and_note(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "output":
            waits.append(timeout or 0.0)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", join_and_note)
    there = tmp_path / "there"
    there.touch()
    daemon = f"while [ -e {there} ]; do sleep 0.1; done"
    running = {"P4REDUCE_CONTROLLER": "unix:/nowhere", "P4REDUCE_INTERFACE": "unix:/nowhere"}
    try:
        command = ["sh", "-c", f"setsid sh -c '{daemon}' &"]
        assert execute(command, LabTopology.side_by_side(3), running) == 0
    finally:
        there.unlink()
    assert len(waits) == 3
    assert sum(waits) < 1.5 * DRAIN
