# SPDX-License-Identifier: Apache-2.0
"""Contributions per second of two cores beside those of one: the gain of `--cores 2`.

Each core is a process of its own, as the switch has it, bound to a processor, with the compiled
program, one job of four ranks, and frames in memory as its load: so nothing but the data plane
counts. In each turn the first one runs alone, and then both at the same time. The rate of two is
the sum of their rates while both run, and is compared with that of one in the same turn.

Two rates are given. The first is by the clock. The second is per second of processor time: where
other processes take the processors away, only that one says something; what the cores take from
each other by shared caches, memory and clock rates is in both.

    python -m bench.switch.cores [--turns 15] [--seconds 0.5] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection

import numpy as np
from p4reduce.wire.frames import HEADER
from p4reduce_lab.errors import UnavailableError
from p4reduce_switch.native_pipeline import NativePipeline

from bench.program import Option, read_options, run, tell
from bench.switch.job import CONFIG, SLOTS, admit, frames_of
from bench.switch.run_many import run_many

ROUNDS = 8  # in each batch
RATES = ("second", "second of processor time")
_COUNTED = {"round": 1, "block": SLOTS, "next_block": SLOTS}  # what a further round adds to


def serve(connection: Connection, processor: int) -> None:
    """Be one core: run for as long as each message says, and answer with both `RATES`.

    It is given the same frames again and again, for later rounds.
    """
    os.sched_setaffinity(0, {processor})
    pipeline = NativePipeline(CONFIG.read_bytes())
    admit(pipeline)
    batch = frames_of(1, ROUNDS)
    ports = np.array([port for port, _ in batch], np.uint32).tobytes()
    frames = np.array([np.frombuffer(frame, np.uint8) for _, frame in batch])

    def load(seconds: float) -> tuple[float, float]:
        """Run batches for so long; only the program's own time counts."""
        count, clock, processor = 0, 0.0, 0.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            joined = frames.tobytes()
            began = time.monotonic(), time.process_time()
            results = run_many(pipeline, ports, joined, frames.shape[1])
            clock += time.monotonic() - began[0]
            processor += time.process_time() - began[1]
            if results != len(frames):
                raise RuntimeError(f"{results} results instead of {len(frames)}")
            count += results
            for name, step in _COUNTED.items():
                offset = HEADER.fields[name][1]  # type: ignore[index]
                field = frames[:, offset : offset + 4].copy().view(">u4")
                frames[:, offset : offset + 4] = (
                    (field + step * ROUNDS).astype(">u4").view(np.uint8)
                )
        return count / clock, count / processor

    load(0.05)
    connection.send(None)
    while (seconds := connection.recv()) is not None:
        connection.send(load(seconds))


def main() -> None:
    options = read_options(__doc__, turns=15, seconds=Option(0.5, "of each measurement"))
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise UnavailableError("this takes two processors, and here is one")
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for processor in processors[:2]:
        here, there = context.Pipe()
        processes.append(context.Process(target=serve, args=(there, processor), daemon=True))
        processes[-1].start()
        ends.append(here)
    for end in ends:
        end.recv()
    alone, both = [], []
    for turn in range(options.turns):
        one = ends[turn % 2]  # in turns: the processors need not be alike
        one.send(options.seconds)
        alone.append(one.recv())
        for end in ends:
            end.send(options.seconds)
        both.append(np.sum([end.recv() for end in ends], axis=0))
    for end, process in zip(ends, processes, strict=True):
        end.send(None)
        process.join(10)
    rows = []
    for name, one, two in zip(RATES, np.transpose(alone), np.transpose(both), strict=True):
        low, times, high = np.percentile(two / one, (25, 50, 75))
        rows.append(
            {
                "name": f"two cores, per {name}",
                "contributions_per_second": statistics.median(two.tolist()),
                "of_one_core": statistics.median(one.tolist()),
                "times_one_core": float(times),
                "times_lower_quartile": float(low),
                "times_upper_quartile": float(high),
            }
        )
    tell(options, rows)


if __name__ == "__main__":
    run(main)
