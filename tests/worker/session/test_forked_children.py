# SPDX-License-Identifier: Apache-2.0
"""What a child of a rank inherits, such as a DataLoader's worker: no threads, and no harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SETTING = "GRPC_ENABLE_FORK_SUPPORT"
# Prints how many threads the child has after a moment, and what the parent then sums.
PROGRAM = """
import gc, os, time
import numpy as np
import p4reduce, p4reduce_lab

with p4reduce_lab.local(ranks=1) as network:
    os.environ.update(network.variables)
    comm = p4reduce.init(rank=0, world_size=1, timeout=60)
    comm.allreduce(np.ones(3, np.float32))
    child = os.fork()
    if not child:
        del comm
        gc.collect()
        time.sleep(0.1)
        os._exit(len(os.listdir("/proc/self/task")))
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), comm.allreduce(np.ones(3, np.int32)))
    comm.close()
"""


CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}


def output_of(program: str, setting: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**CLEAN, **setting},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.own_start
def test_a_forked_child_has_one_thread() -> None:
    assert output_of(PROGRAM, {}) == "1 [1 1 1]"


@pytest.mark.own_start
@pytest.mark.parametrize(("setting", "kept"), [({}, "0"), ({SETTING: "1"}, "1")])
def test_what_a_program_wants_of_grpc_is_kept(setting: dict[str, str], kept: str) -> None:
    program = f"import os, p4reduce; print(os.environ['{SETTING}'])"
    assert output_of(program, setting) == kept
