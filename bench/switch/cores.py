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
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from p4reduce.wire.frames import HEADER
from p4reduce_lab.errors import UnavailableError
from p4reduce_switch.native_pipeline import NativePipeline

from bench.program import Option, read_options, run, tell
from bench.switch.job import CONFIG, SLOTS, admit, frames_of
from bench.switch.run_many import run_many

ROUNDS = 8  # in each batch
_COUNTED = {"round": 1, "block": SLOTS, "next_block": SLOTS}  # what a further round adds to


@dataclass(frozen=True)
class Rates:
    """Contributions per second, by the clock and by processor time."""

    clock: float
    processor: float


class Load:
    """One core's program, and the frames that it is given again and again, for later rounds."""

    def __init__(self) -> None:
        self._pipeline = NativePipeline(CONFIG.read_bytes())
        admit(self._pipeline)
        batch = frames_of(1, ROUNDS)
        self._ports = np.array([port for port, _ in batch], np.uint32).tobytes()
        self._length = len(batch[0][1])
        frames = np.frombuffer(bytearray(b"".join(frame for _, frame in batch)), np.uint8)
        self._frames = frames.reshape(len(batch), self._length)

    def run(self, seconds: float) -> Rates:
        """Run batches for so long; only the program's own time counts."""
        frames, clock, processor = 0, 0.0, 0.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            joined = self._frames.tobytes()
            began = time.monotonic(), time.process_time()
            results = run_many(self._pipeline, self._ports, joined, self._length)
            clock += time.monotonic() - began[0]
            processor += time.process_time() - began[1]
            if results != len(self._frames):
                raise RuntimeError(f"{results} results instead of {len(self._frames)}")
            frames += results
            self._go_on()
        return Rates(frames / clock, frames / processor)

    def _go_on(self) -> None:
        for name, step in _COUNTED.items():
            kind, offset = HEADER.fields[name][:2]  # type: ignore[index]
            field = self._frames[:, offset : offset + 4].copy().view(">u4")
            assert kind.itemsize == field.itemsize
            field += step * ROUNDS
            self._frames[:, offset : offset + 4] = field.view(np.uint8)


def serve(connection: Connection, processor: int) -> None:
    """Be one core: run for as long as each message says, and answer with the rates."""
    os.sched_setaffinity(0, {processor})
    load = Load()
    load.run(0.05)
    connection.send(None)
    while (seconds := connection.recv()) is not None:
        connection.send(load.run(seconds))


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
    alone: list[Rates] = []
    both: list[Rates] = []
    for turn in range(options.turns):
        one = ends[turn % 2]  # in turns: the processors need not be alike
        one.send(options.seconds)
        alone.append(one.recv())
        for end in ends:
            end.send(options.seconds)
        found = [end.recv() for end in ends]
        both.append(Rates(sum(each.clock for each in found), sum(each.processor for each in found)))
    for end, process in zip(ends, processes, strict=True):
        end.send(None)
        process.join(10)
    rows = []
    for name in ("clock", "processor"):
        times = sorted(
            getattr(two, name) / getattr(one, name) for two, one in zip(both, alone, strict=True)
        )
        one, two = (
            statistics.median(getattr(each, name) for each in found) for found in (alone, both)
        )
        per = "second" if name == "clock" else "second of processor time"
        rows.append(
            {
                "name": f"two cores, per {per}",
                "contributions_per_second": two,
                "of_one_core": one,
                "times_one_core": statistics.median(times),
                "times_lower_quartile": times[len(times) // 4],
                "times_upper_quartile": times[-1 - len(times) // 4],
            }
        )
    tell(options, rows)


if __name__ == "__main__":
    run(main)
