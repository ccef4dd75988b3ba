# SPDX-License-Identifier: Apache-2.0
"""How well the link that `measure_link` finds tells what an all-reduce takes.

The ranks measure their link, and then reduce tensors of which each has some blocks: the same on all
ranks, or its own. The model's time for just these blocks is once with the price of a frame that
was measured, and once by bytes alone. Shown are the measured times as multiples of the model's,
from the least to the greatest of several systems, each with its own switch, controller and ranks.

    python -m bench.allreduce.measured_link [--workers 4] [--systems 4] [--docs]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import p4reduce
from p4reduce.compression import measure_link

from bench.measure import calls_in_turns
from bench.pages import DOCS
from bench.program import read_options, run, tell_table
from bench.ranks import TIMEOUT, run_ranks
from bench.sparse.tensors import LANES, Masks, draw

BLOCKS = 1024
REPETITIONS = 7
HEAD = ("each rank sends", "with the price of a frame", "by bytes alone")


def cases(ranks: int) -> dict[str, Masks]:
    """Which blocks each rank sends, shape (ranks, BLOCKS)."""
    found = {}
    for share in (0.05, 0.25):
        for overlap, text in (("aligned", "the same blocks"), ("independent", "its own blocks")):
            found[f"{share:.0%}, {text}"] = draw(overlap, ranks, BLOCKS, share, [0])
    return {**found, "all": np.ones((ranks, BLOCKS), dtype=np.bool_)}


def compare() -> dict[str, list[float]]:
    """Measured time by the model's, with the price of a frame and by bytes alone."""
    with p4reduce.init(timeout=TIMEOUT) as comm:
        priced = measure_link(comm)
        models = (priced, replace(priced, frame_seconds=0.0))
        times = {}
        for name, masks in cases(comm.size).items():
            tensor = np.repeat(masks[comm.rank], LANES).astype(np.float32)
            call = {"it": lambda tensor=tensor: comm.allreduce(tensor)}
            taken = calls_in_turns(comm, call, REPETITIONS, warm_up=1)["it"]
            slowest = float(np.median(comm.allgather(np.array([taken])).max(axis=0)))
            traffic = priced.traffic_of(masks)
            times[name] = [slowest / float(model.seconds(traffic)) for model in models]
        return times


def main() -> None:
    options = read_options(__doc__, to_json=False, docs="docs/experiments.md", workers=4, systems=4)
    found = [run_ranks(compare, options.workers)[0] for _ in range(options.systems)]
    cells = []
    for name in found[0]:
        columns = np.array([one[name] for one in found]).T
        cells.append([name, *(f"{min(column):.1f} to {max(column):.1f}" for column in columns)])
    tell_table(options, DOCS / "experiments.md", "measured-link", HEAD, cells, "")


if __name__ == "__main__":
    run(main)
