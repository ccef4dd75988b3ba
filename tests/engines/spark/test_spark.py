# SPDX-License-Identifier: Apache-2.0
"""Barrier stages of Spark and its TorchDistributor, on a cluster of two executors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from needed import DEADLINE, ROOT, marked, needs, pid_of, wait_for_socket

pytestmark = [
    pytest.mark.engines,
    needs(programs=("java",), packages=("pyspark",)),
]
ENGINES = Path(__file__).parents[1]

# What all programs begin with. `nothing_left` is asked while Spark's own processes continue.
BEGIN = """
import os, signal, sys, tempfile, time
import numpy as np
from needed import marked_processes
from p4reduce.spark import barrier_run
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local-cluster[2,1,1024]")
builder = builder.config("spark.ui.enabled", "false")
spark = builder.config("spark.stage.maxConsecutiveAttempts", "2").getOrCreate()
context = spark.sparkContext
numbers = context.range(10, numSlices=2)

def nothing_left():
    deadline = time.monotonic() + 60
    mark = "P4REDUCE_TEST_MARK=" + os.environ["P4REDUCE_TEST_MARK"]
    while left := [one for one in marked_processes(mark).values() if "-m p4reduce_" in one]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)

def is_first(name):  # whether this is the first run of this task with this name
    path = f"{folder}/{name}-{BarrierTaskContext.get().partitionId()}"
    was_there = os.path.exists(path)
    open(path, "w").close()
    return not was_there

folder = tempfile.mkdtemp()

def sums(comm, rows):
    mine = np.full(600, sum(rows), np.float32)
    return comm.allreduce(mine).tolist() == [45] * 600 and (comm.rank, comm.size)
"""


def spark(environment: dict[str, str], script: Path, *arguments: str) -> subprocess.Popen[str]:
    paths = [str(ENGINES), os.environ.get("PYTHONPATH", "")]
    own = {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        # Many short lives of Java on few cores: no second compiler, no collector's threads.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=own, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Write a program to a file: given by `-c`, its words would be found among processes."""

    def write(program: str) -> Path:
        script = tmp_path / "program.py"
        script.write_text(BEGIN + program)
        return script

    return write


def own_words(output: str) -> str:
    """What a program said, without the traces of Java's threads and the words of Spark's log."""
    lines = output.splitlines()
    return "\n".join(one for one in lines if not re.match(r"\tat |\d\d/\d\d/\d\d ", one))


def run(script: Path, *arguments: str, changed: Sequence[tuple[str, str]] = ()) -> str:
    """Run it, and return what it printed, if it ended well and left nothing behind."""
    with marked() as environment:
        process = spark({**environment, **dict(changed)}, script, *arguments)
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, own_words(output)
    return output


def test_partitions_are_ranks(written: Callable[[str], Path]) -> None:
    run(
        written("""
for _ in range(2):  # Spark gives the same processes to both stages
    assert barrier_run(numbers, sums) == [(0, 2), (1, 2)]
    nothing_left()
assert barrier_run(context.range(10, numSlices=1), sums) == [(0, 1)]
told = numbers.map(lambda _: [one for one in os.environ if one.startswith("P4REDUCE_CONT")])
assert told.collect() == [[]] * 10
rows = spark.createDataFrame([(one,) for one in range(10)], ["x"]).repartition(2)
def total(comm, rows):
    return int(comm.allreduce(np.array([sum(row.x for row in rows)], np.int32))[0])
assert barrier_run(rows, total) == [45, 45]
""")
    )


def test_a_failed_task_makes_the_stage_run_again(written: Callable[[str], Path]) -> None:
    run(
        written("""
def failing(how):
    def task(comm, rows):
        first = is_first(how)
        comm.allreduce(np.ones(3, np.float32))
        if first and comm.rank == 1:
            if how == "raise":
                raise ValueError("only once")
            os.kill(os.getpid(), signal.SIGKILL)
        return sums(comm, rows)
    return task

for how in ("raise", "kill"):
    assert barrier_run(numbers, failing(how)) == [(0, 2), (1, 2)]
    nothing_left()
""")
    )


def test_what_cannot_start_is_the_error_of_the_stage(written: Callable[[str], Path]) -> None:
    output = run(
        written("""
try:
    barrier_run(numbers, sums)
except Exception as error:
    print("said:", "ConfigurationError" in str(error) and "203.0.113.7" in str(error))
nothing_left()
"""),
        changed=[("P4REDUCE_HOST", "203.0.113.7")],
    )
    assert "said: True" in output


@pytest.mark.parametrize("victim", ["p4reduce_switch", "p4reduce_controller"])
def test_a_killed_service_is_started_again(
    victim: str, tmp_path: Path, written: Callable[[str], Path]
) -> None:
    program = """
def task(comm, rows):
    begun, killed = arguments
    first = is_first("service")
    total, going = 0, True
    while going:
        assert comm.allreduce(np.ones(1000, np.float32)).tolist() == [2] * 1000
        total += 1
        if total == 1 and comm.rank == 0:
            open(begun, "w").close()
        last = comm.rank == 0 and os.path.exists(killed)
        going = comm.allreduce(np.array([last], np.int32))[0] == 0
    assert comm.allreduce(np.ones(1000, np.float32)).tolist() == [2] * 1000
    return first

arguments = sys.argv[1:]
print("first runs", barrier_run(numbers, task))
nothing_left()
"""
    begun, killed = tmp_path / "begun", tmp_path / "killed"
    with marked() as environment:
        process = spark(environment, written(program), str(begun), str(killed))
        while not begun.exists():
            assert process.poll() is None, own_words(process.communicate()[0])
        wait_for_socket(environment, f"-m {victim}")
        os.kill(pid_of(environment, f"-m {victim}"), signal.SIGKILL)
        killed.touch()
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, own_words(output)
    assert "first runs [True, True]" in output


# Sums until there is the second file; the first says that it does.
LOOP = """
def task(comm, rows):
    begun, end = arguments
    first = is_first("loop")
    going = True
    while going:
        assert comm.allreduce(np.ones(1000, np.float32)).tolist() == [2] * 1000
        if comm.rank == 0 and first:
            open(begun, "w").close()
        last = comm.rank == 0 and os.path.exists(end)
        going = comm.allreduce(np.array([last], np.int32))[0] == 0
    return first

arguments = sys.argv[1:]
print("first runs", barrier_run(numbers, task, timeout=20, lease=45.0))
nothing_left()
"""


def begun_loop(
    environment: dict[str, str], script: Path, begun: Path, end: Path
) -> subprocess.Popen[str]:
    process = spark(environment, script, str(begun), str(end))
    while not begun.exists():
        assert process.poll() is None, own_words(process.communicate()[0])
        time.sleep(0.05)
    wait_for_socket(environment, "-m p4reduce_switch")
    pid_of(environment, "--lease 45 ")
    return process


def test_a_killed_executor_makes_the_stage_run_again(
    tmp_path: Path, written: Callable[[str], Path]
) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    with marked() as environment:
        process = begun_loop(environment, written(LOOP), begun, end)
        os.kill(pid_of(environment, "--executor-id 1 "), signal.SIGKILL)
        end.touch()
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, own_words(output)
    assert "first runs [False, False]" in output


def test_a_killed_driver_ends_all(tmp_path: Path, written: Callable[[str], Path]) -> None:
    with marked() as environment:
        process = begun_loop(environment, written(LOOP), tmp_path / "begun", tmp_path / "end")
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_killed_network_fails_the_stage_which_runs_again(written: Callable[[str], Path]) -> None:
    run(
        written("""
def task(comm, rows):
    first = is_first("network")
    comm.allreduce(np.ones(3, np.float32))
    if first and comm.rank == 0:
        mark = "P4REDUCE_TEST_MARK=" + os.environ["P4REDUCE_TEST_MARK"]
        for pid, command in marked_processes(mark).items():
            if "-m p4reduce_lab.deploy" in command:
                os.kill(pid, signal.SIGKILL)
    while first:
        comm.allreduce(np.ones(3, np.float32))
    return sums(comm, rows)

assert barrier_run(numbers, task, timeout=10) == [(0, 2), (1, 2)]
nothing_left()
""")
    )


def test_the_example_equals_mllib() -> None:
    example = ROOT / "examples" / "spark_logistic.py"
    with marked() as environment:
        process = spark(environment, example, "--features", "300")
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, own_words(output)
    off = re.search(r"300 coefficients off MLlib's by at most (\S+)", output)
    assert off is not None, own_words(output)
    assert float(off[1]) < 1e-3


TRAINING = """
import os, sys
import torch
import torch.distributed as dist

def train(steps):
    dist.init_process_group("p4reduce")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1))
    torch.manual_seed(dist.get_rank())
    x = torch.randn(200, 20)
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    off = (model.module.weight - 1).abs().max().item()
    backend = dist.get_backend()
    dist.destroy_process_group()
    assert off < 1e-3, off
    return backend, dist.is_initialized()
"""


@needs(packages=("torch", "pandas", "pyarrow"))
def test_torch_distributor(tmp_path: Path, written: Callable[[str], Path]) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING + "print('trained', *train(int(sys.argv[1])))\n")
    said = tmp_path / "said"
    output = run(
        written(
            TRAINING
            + f"SAID = {str(said)!r}\n"
            + """
from pyspark.ml.torch.distributor import TorchDistributor

both = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
assert both.run(train, 100) == ("p4reduce", False)
nothing_left()
both.run(sys.argv[1], 100)
nothing_left()

def fails():
    dist.init_process_group("p4reduce")
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    try:
        while True:
            dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        with open(SAID, "w") as file:
            file.write(f"{type(error).__name__}: {error}")
        raise

try:
    both.run(fails)
except Exception as error:
    said = str(error)
    print("failed:", "TorchDistributor failed" in said or "failed with return code" in said)
nothing_left()
"""
        ),
        str(script),
    )
    assert "trained p4reduce False" in output
    assert "failed: True" in output
    # Spark may end the other task before that one learns of it.
    if said.exists():
        assert re.match("DistBackendError: .*rank 1", said.read_text())
