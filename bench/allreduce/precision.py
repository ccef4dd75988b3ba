# SPDX-License-Identifier: Apache-2.0
"""What narrow lanes cost and save: bytes, time and error of a float32 all-reduce.

The ranks reduce a tensor in lanes of each width in turns. Its elements are normal, each
stretch of 4,096 with a scale of its own, evenly from 2^-10 to 1 in the exponent. Errors are those
of the sum against a float64 sum: the worst one as a share of the bound that `p4reduce.error_bound`
states for its block, and their root mean square by that of the sum. Then the average of 64 calls
with other seeds: if rounding is unbiased, its error is an eighth of one call's.

Bytes are those of whole Ethernet frames that a rank sends, without the few that timers repeat.

    python -m bench.allreduce.precision [--workers 4] [--switch embedded|bmv2] [--json FILE]
        [--docs]
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import p4reduce

from bench.measure import bytes_of, calls_in_turns, median_of
from bench.pages import DOCS
from bench.program import SWITCH, read_options, run, tell, tell_table
from bench.ranks import TIMEOUT, run_ranks

LANES = {"int32": 256, "int16": 512, "int8": 1024, "int4": 2048}  # per block
ELEMENTS = 1 << 19
STRETCH = 4096
SEEDS = 64
TURNS = 7
HEAD = ("lanes", "per frame", "MB per rank", "time", "worst error", "error", "mean of 64 calls")

Floats = npt.NDArray[np.float32]


def tensor(rank: int) -> Floats:
    """What a rank contributes."""
    rng = np.random.default_rng(rank)
    # The scales are all ranks'.
    scales = np.exp2(np.random.default_rng(1000).uniform(-10, 0, ELEMENTS // STRETCH))
    values: Floats = (rng.standard_normal(ELEMENTS) * np.repeat(scales, STRETCH)).astype(np.float32)
    return values


def rms(values: npt.NDArray[np.float64]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def errors(comm: p4reduce.Communicator, mine: Floats, precision: str) -> dict[str, float]:
    """How far sums are off."""
    tensors = np.array([tensor(rank) for rank in range(comm.size)], np.float64)
    exact = tensors.sum(axis=0)
    width = LANES[precision]
    largest = np.abs(tensors).max(axis=0).reshape(-1, width).max(axis=1)
    bounds = np.repeat(p4reduce.error_bound(largest, comm.size, precision), width)
    bounds += np.spacing(np.abs(exact).astype(np.float32)) / 2  # the result is float32
    total = np.zeros(ELEMENTS)
    for seed in range(SEEDS):
        total += comm.allreduce(mine, precision=precision, seed=seed)
        if seed == 0:
            one = total - exact
    return {
        "of_bound": float((np.abs(one) / bounds).max()),
        "relative_rms": rms(one) / rms(exact),
        "averaged": rms(total / SEEDS - exact) / rms(one),
    }


def rank() -> dict[str, dict[str, object]]:
    """What each rank does: bytes, times in seconds and errors of each precision."""
    with p4reduce.init(slots=128, timeout=TIMEOUT) as comm:
        mine = tensor(comm.rank)
        out = np.empty_like(mine)
        calls = {name: partial(comm.allreduce, mine, precision=name, out=out) for name in LANES}
        up = {name: bytes_of(comm, call)[0] for name, call in calls.items()}
        times = calls_in_turns(comm, calls, TURNS)
        return {
            name: {"up": up[name], "times": times[name], **errors(comm, mine, name)}
            for name in LANES
        }


def main() -> None:
    options = read_options(__doc__, docs="docs/lanes.md", workers=4, switch=SWITCH)
    reports = run_ranks(rank, options.workers, switch=options.switch)
    rows = []
    for name, figures in reports[0].items():
        ms = 1e3 * median_of(reports, name, "times")
        rows.append({"name": name, "up": figures.pop("up"), "ms": ms, **figures})
        del rows[-1]["times"]
    cells = [
        [
            one["name"],
            str(LANES[one["name"]]),
            f"{one['up'] / 1e6:.2f}",
            f"{one['ms']:.0f} ms",
            f"{one['of_bound']:.0%} of the bound",
            f"{one['relative_rms']:.1e}",
            f"{one['averaged']:.3f} of that",
        ]
        for one in tell(options, rows)
    ]
    tell_table(options, DOCS / "lanes.md", "precision", HEAD, cells)


if __name__ == "__main__":
    run(main)
