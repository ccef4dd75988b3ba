# SPDX-License-Identifier: Apache-2.0
"""One rank of the runs over the switch; run.py starts it with `p4reduce-lab exec`.

Trains each task with each compression, all gradients summed by the switch, and has rank 0 write
what was counted: bytes of its own communicator, loss and accuracy.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import p4reduce
from p4reduce.compression import (
    Agreement,
    Cat,
    CompressedAllreduce,
    Compressor,
    MemoryCat,
    Packets,
    TopK,
    Uncompressed,
)
from simulate import run_rank
from study import AGREED, CAT, LANES, MEMORY_CAT, UNCOMPRESSED, switch_link
from tasks import TASKS, Task

RADIO_METHOD = "CAT for IEEE 802.15.4"
PACKETS = {"CAT for Ethernet packets": Packets.ethernet(), RADIO_METHOD: Packets.ieee802154()}
METHODS = (UNCOMPRESSED, "top 2 blocks", CAT, CAT + AGREED, MEMORY_CAT, MEMORY_CAT + AGREED,
           *PACKETS)  # fmt: skip


def compressor(method: str, task: Task, rank: int, feedback: bool) -> Compressor:
    """One of METHODS."""
    size, link = task.ranks, switch_link(task.ranks)
    if method == UNCOMPRESSED:
        return Uncompressed(world_size=size)
    if method == "top 2 blocks":
        share = 2 / -(-task.dimension // LANES)
        return TopK(world_size=size, density=min(1.0, share), error_feedback=feedback)
    if method in PACKETS:
        return Cat(world_size=size, unit=1, cost=PACKETS[method], error_feedback=feedback)
    agreement = Agreement.BLOCKS if method.endswith(AGREED) else Agreement.OWN
    kind = MemoryCat if method.startswith(MEMORY_CAT) else Cat
    return kind(world_size=size, cost=link, error_feedback=feedback, agreement=agreement)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    task = TASKS[given.task]()
    results = []
    with p4reduce.init(timeout=120.0) as communicator:

        def moved() -> int:
            return communicator.stats.bytes_sent + communicator.stats.bytes_received

        for method in METHODS:
            made = compressor(method, task, communicator.rank, True)
            before, began = communicator.stats, time.perf_counter()
            reduce = CompressedAllreduce(communicator, made)
            trace = run_rank(task, communicator.rank, reduce, given.steps, moved)
            after, ended = communicator.stats, time.perf_counter()
            counts = ("bytes_sent", "bytes_received", "retransmissions")
            results.append(
                {
                    "method": method,
                    "steps": trace.steps,
                    "losses": trace.losses,
                    "accuracy": trace.accuracy,
                    "moved": [count - trace.moved[0] for count in trace.moved[1:]],
                    "seconds": ended - began,
                    **{name: getattr(after, name) - getattr(before, name) for name in counts},
                }
            )
        communicator.barrier()
    if communicator.rank == 0:
        given.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
