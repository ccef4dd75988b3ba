# SPDX-License-Identifier: Apache-2.0
"""A rank that joins job after job, and ends each in another way: what test_lives.py runs.

Arguments: a seed, which all ranks have, and how many jobs. Rank, world size, interface and
controller are in the environment. What C works on has to outlive it: arrays whose handles the
caller drops, jobs that are left while their collectives are under way, forks, and the
interpreter's own end with a job still open.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
from typing import Any

import numpy as np
import p4reduce

TIMEOUT = 120.0  # seconds
SIZES = [1, 7, 255, 256, 257, 3000, 20_000]  # around a block of 256, and many of them


def begin(comm: p4reduce.Communicator, draw: random.Random) -> list[Any]:
    """Start some collectives; returns their handles."""
    handles: list[Any] = []
    for _ in range(draw.randrange(1, 12)):
        size, kind = draw.choice(SIZES), draw.randrange(6)
        floats = np.arange(size, dtype=np.float32) % 13
        rows = p4reduce.SparseRows(np.array([1, 5]), np.ones((2, 64), np.float32), (50, 64))
        if kind == 0:
            handles.append(comm.allreduce_async(floats, out=floats))
        elif kind == 1:
            handles.append(comm.broadcast_async(floats, root=size % comm.size))
        elif kind == 2:
            handles.append(comm.allgather_async(floats, [size] * comm.size))
        elif kind == 3:
            whole = np.arange(size * comm.size, dtype=np.int32)
            handles.append(comm.reduce_scatter_async(whole))
        elif kind == 4:
            handles.append(comm.allreduce_async(rows))
        else:
            comm.allreduce(np.int32(size))  # in this thread
    return handles


def wait_for(handles: list[Any]) -> None:
    for handle in handles:
        handle.wait()


def closed(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    wait_for(handles)
    comm.close()


def handles_dropped(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    handles.clear()
    comm.close()


def left_by_an_error(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    with contextlib.suppress(KeyError), comm:
        raise KeyError


def all_dropped(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    handles.clear()


def forked(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    child = os.fork()
    if not child:
        handles.clear()
        del comm
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    closed(comm, handles)


def awaited_elsewhere(comm: p4reduce.Communicator, handles: list[Any]) -> None:
    """Another thread waits while this one closes."""
    thread = threading.Thread(target=wait_for, args=(handles,))
    thread.start()
    comm.close()
    thread.join()


IN_ORDER = [closed, handles_dropped, forked, awaited_elsewhere]
AT_ONCE = [left_by_an_error, all_dropped]  # which the others may learn of


def main() -> None:
    seed, jobs = int(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(seed)
    for number in range(jobs):
        comm = p4reduce.init(job=f"lives-{seed}-{number}", timeout=TIMEOUT)
        ending = draw.choice(IN_ORDER + AT_ONCE)
        try:
            ending(comm, begin(comm, draw))
        except p4reduce.WorkerLostError:
            if ending not in AT_ONCE:
                raise
            comm.close()
        del comm
        gc.collect()
    # The interpreter ends with a job open, and collectives under way.
    last = p4reduce.init(job=f"lives-{seed}-last", timeout=TIMEOUT)
    kept = [last, begin(last, draw)]
    print(f"rank {last.rank} ends with {len(kept[1])} under way", flush=True)


if __name__ == "__main__":
    main()
