# SPDX-License-Identifier: Apache-2.0
"""Contributions a second through the embedded switch, in process and on one core, both engines.

Four ranks contribute 1,024 bytes of lanes each to every round of every slot; a quarter of the
frames complete a round and come back as four results. Machine code and Python take the same
frames in turn. Times are of the processor. Prints the best of several runs, as other processes
only ever make one slower, and the median.
"""

from __future__ import annotations

import statistics
import struct
import time
from functools import partial

from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline

from bench.measure import in_turns
from bench.program import Option, read_options, run, tell
from bench.switch.job import CONFIG, admit, frames_of
from bench.switch.run_many import run_many


def run_frames(pipeline: Pipeline, frames: list[tuple[int, bytes]]) -> tuple[float, int]:
    """Seconds of processor time, and how many frames came back."""
    if isinstance(pipeline, NativePipeline):  # a loop in C hands them over
        ports = struct.pack(f"={len(frames)}I", *(port for port, _ in frames))
        joined = b"".join(frame for _, frame in frames)
        start = time.process_time()
        results = run_many(pipeline, ports, joined, len(frames[0][1]))
    else:
        process = pipeline.process
        start = time.process_time()
        results = sum(len(process(port, frame)) for port, frame in frames)
    return time.process_time() - start, results


def main() -> None:
    options = read_options(__doc__, runs=40, rounds=Option(8, "rounds in each run"))
    engines = {
        "native": NativePipeline(CONFIG.read_bytes()),
        "python": Pipeline(CONFIG.read_bytes()),
    }
    rounds = dict.fromkeys(engines, 1)

    def rate(name: str) -> float:
        frames = frames_of(rounds[name], options.rounds)
        rounds[name] += options.rounds
        seconds, results = run_frames(engines[name], frames)
        if results != len(frames):
            raise SystemExit(f"{name}: {results} results came back instead of {len(frames)}")
        return len(frames) / seconds

    for pipeline in engines.values():
        admit(pipeline)
    rates = in_turns({name: partial(rate, name) for name in engines}, options.runs)
    rows = [
        {
            "name": f"{name}: 4 ranks, 1,024 bytes of lanes",
            "best_contributions_per_second": max(found),
            "median_contributions_per_second": statistics.median(found),
            "best_us": 1e6 / max(found),
        }
        for name, found in rates.items()
    ]
    tell(options, rows)


if __name__ == "__main__":
    run(main)
