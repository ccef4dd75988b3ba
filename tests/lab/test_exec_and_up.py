# SPDX-License-Identifier: Apache-2.0
"""`exec` and `up` with real switches and workers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, ROOT, Launched

# One rank raises; the other is ended by the launcher, in the middle of a call.
FAILING = """
import numpy, p4reduce
comm = p4reduce.init()
comm.barrier()
assert comm.rank == 0
comm.barrier()
"""


@pytest.mark.usefixtures("nothing_left")
def test_up_serves_workers_that_exec_starts(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "3")
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    assert exported.keys() == {"P4REDUCE_CONTROLLER", "P4REDUCE_INTERFACE"}

    def execute(workers: int, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAB, "exec", "-n", str(workers), "--", sys.executable, *command],
            env={**ENVIRONMENT, **exported},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    for _ in range(2):  # the switch is free again after a job
        done = execute(3, str(ROOT / "examples" / "allreduce.py"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()) == [
            f"[{rank}] rank {rank} of 3: sum 6, mean 2" for rank in range(3)
        ]
        failed = execute(2, "-c", FAILING)
        assert failed.returncode == 1, failed.stdout + failed.stderr
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
