# SPDX-License-Identifier: Apache-2.0
"""Contributions a second through the embedded switch, in process and on one core, both engines.

Four ranks contribute 1,024 bytes of lanes each to every round of every slot; a quarter of the
frames complete a round and come back as four results. Machine code and Python take the same
frames in turn. Prints the best and the median of several runs, in processor time, because other
processes only ever make it slower. With --earlier FOLDER another compiled program takes turns too;
bench/bmv2/compare.py says how to get one.
"""

from __future__ import annotations

import statistics
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline

from bench.measure import in_turns
from bench.program import Option, read_options, run, tell
from bench.switch.job import CONFIG, admit, frames_of
from bench.switch.run_many import run_many


def measure_python(pipeline: Pipeline, frames: list[tuple[int, bytes]]) -> tuple[float, int]:
    """Seconds of processor time, and how many frames came back."""
    process = pipeline.process
    results = 0
    start = time.process_time()
    for port, frame in frames:
        results += len(process(port, frame))
    return time.process_time() - start, results


def measure_native(pipeline: NativePipeline, frames: list[tuple[int, bytes]]) -> tuple[float, int]:
    """The same, for frames that a loop in C hands over."""
    ports = struct.pack(f"={len(frames)}I", *(port for port, _ in frames))
    joined = b"".join(frame for _, frame in frames)
    length = len(frames[0][1])
    start = time.process_time()
    results = run_many(pipeline, ports, joined, length)
    return time.process_time() - start, results


def main() -> None:
    options = read_options(
        __doc__,
        runs=40,
        rounds=Option(8, "rounds in each run"),
        earlier=Option(None, "folder of another program's p4reduce.json", Path),
    )
    engines: dict[str, tuple[Pipeline, Any]] = {
        "native": (NativePipeline(CONFIG.read_bytes()), measure_native),
        "python": (Pipeline(CONFIG.read_bytes()), measure_python),
    }
    if options.earlier is not None:
        other = (options.earlier / "p4reduce.json").read_bytes()
        engines["native, earlier"] = NativePipeline(other), measure_native
    rounds = dict.fromkeys(engines, 1)

    def rate(name: str) -> float:
        pipeline, measure = engines[name]
        frames = frames_of(rounds[name], options.rounds)
        rounds[name] += options.rounds
        seconds, results = measure(pipeline, frames)
        if results != len(frames):
            raise SystemExit(f"{name}: {results} results came back instead of {len(frames)}")
        return float(len(frames) / seconds)

    for pipeline, _ in engines.values():
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
    for name in (name for name in rates if name != "native"):
        pairs = [a / b for a, b in zip(rates["native"], rates[name], strict=True)]
        ratio = statistics.median(pairs)
        print(f"native against {name}, median of {len(pairs)} pairs: {ratio:.3f} times")


if __name__ == "__main__":
    run(main)
