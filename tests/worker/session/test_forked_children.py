# SPDX-License-Identifier: Apache-2.0
"""What a child of a rank inherits, such as a DataLoader's worker: no threads, no connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from p4reduce.ring.rank_address import RingListener

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

# Rank 1 ends, its child does not: the controller and the switch must notice, and the port be free.
OUTLIVED = """
import os, signal, subprocess, sys
import numpy as np
import p4reduce, p4reduce_lab

RANK = '''
import os, signal, numpy as np, p4reduce
comm = p4reduce.init(rank=1, world_size=2, timeout=60, job="first")
comm.allreduce(np.ones(3))
if not (child := os.fork()):
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
'''
with p4reduce_lab.local(ranks=2) as network:
    os.environ.update(network.variables)
    other = subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE)
    comm = p4reduce.init(rank=0, world_size=2, timeout=60, job="first")
    comm.allreduce(np.ones(3))
    child = int(other.stdout.readline())
    other.wait()
    try:
        try:
            comm.allreduce(np.ones(3))
        except p4reduce.WorkerLostError as error:
            print(str(error).rpartition(": ")[2])
        interface = os.environ["P4REDUCE_INTERFACE"].replace("{port}", "2")
        with p4reduce.init(
            rank=0, world_size=1, job="second", interface=interface, timeout=30
        ) as second:
            print(second.allreduce(np.ones(3, np.int32)))
    finally:
        os.kill(child, signal.SIGKILL)
"""

# What init says before its parent has called it, in a child of a rank, and in one whose parent
# has left its job.
JOINING = """
import os
import numpy as np
import p4reduce, p4reduce_lab

def in_a_child():
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        with p4reduce.init(rank=0, world_size=1, timeout=30, job="child") as comm:
            os._exit(int(comm.allreduce(np.ones(1, np.int32))[0]))
    except p4reduce.ConfigurationError as error:
        os._exit(2 if "which had called the controller" in str(error) else 3)

with p4reduce_lab.local(ranks=1) as network:
    os.environ.update(network.variables)
    print(in_a_child())
    with p4reduce.init(rank=0, world_size=1, timeout=60) as comm:
        comm.barrier()
        print(in_a_child())
        comm.barrier()
    print(in_a_child())
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


def test_a_forked_child_has_one_thread() -> None:
    assert output_of(PROGRAM, {}) == "1 [1 1 1]"


@pytest.mark.long
def test_a_rank_that_has_ended_is_lost_although_its_child_lives() -> None:
    assert output_of(OUTLIVED, {}).splitlines() == ["its process has ended", "[1 1 1]"]


@pytest.mark.long
def test_init_in_a_child() -> None:
    assert output_of(JOINING, {}).split() == ["1", "2", "2"]


def test_a_child_does_not_keep_the_rings_port() -> None:
    listener = RingListener("127.0.0.1", "")
    duplicate = listener.socket()
    ours, its = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        its.send(b"I run")
        its.recv(1)
        os._exit(0)
    its.close()
    try:
        assert ours.recv(5)
        duplicate.close()
        listener.close()
        RingListener(listener.address, "").close()
    finally:
        ours.close()
        os.waitpid(child, 0)


@pytest.mark.parametrize(("setting", "kept"), [({}, "0"), ({SETTING: "1"}, "1")])
def test_what_a_program_wants_of_grpc_is_kept(setting: dict[str, str], kept: str) -> None:
    program = f"import os, p4reduce; print(os.environ['{SETTING}'])"
    assert output_of(program, setting) == kept
