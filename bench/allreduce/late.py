# SPDX-License-Identifier: Apache-2.0
"""How long does a step take with one slow rank: plain, with gradient coding, with a deadline?

Ranks sleep where they would compute, so that the machine's cores are no part of the answer. The
slow rank sleeps `factor` times as long. Plain steps, coded ones with each number of copies, and
partial sums are measured in turn in each round, on the ranks that are not slow; "sum" is an
all-reduce of all ranks without computing. In a tree the ranks of a leaf are a group.

    python -m bench.allreduce.late [--workers 8 | --tree 4x2] [--factors 1,2,5] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.late import FractionalRepetition, PartialSums
from p4reduce_lab.topology import LabTopology

from bench.measure import in_turns, median_of, timed
from bench.program import Option, read_options, run, some, tell
from bench.ranks import TIMEOUT, run_ranks

SLOW = 1  # the rank that is
COPIES = (2, 4)
SUM, PLAIN, LEAVES, DEADLINE = "sum", "plain", "leaves", "deadline"


def rounds(
    elements: int, compute: float, factors: list[float], steps: int, repetitions: int, in_tree: bool
) -> dict[str, list[float]]:
    """What each rank does: returns its seconds per step, of the slow rank as of the others."""
    array = np.ones(elements, np.float32)
    with p4reduce.init(timeout=TIMEOUT) as comm:
        limits: dict[str, Any] = {"timeout": TIMEOUT, "history": 10 * steps}
        if in_tree:
            coded = {LEAVES: FractionalRepetition(comm, groups="switches", **limits)}
        else:
            coded = {str(copies): FractionalRepetition(comm, copies, **limits) for copies in COPIES}
        partial_sums = PartialSums(comm, **limits)

        def part(seconds: float, _: int) -> npt.NDArray[np.float32]:
            time.sleep(seconds)
            return array

        def plain(seconds: float) -> None:
            comm.allreduce(part(seconds, 0))

        def without_late(seconds: float) -> None:
            # Who is behind takes what it missed, and computes for the sum after that.
            if not (comm.rank == SLOW and partial_sums.behind):
                time.sleep(seconds)
            partial_sums.allreduce(array, deadline=0.05 * compute, at_least=comm.size - 1)

        def per_step(step: Callable[[], object]) -> float:
            def all_steps() -> None:
                for _ in range(steps):
                    step()

            return timed(all_steps, comm.barrier) / steps

        ways: dict[str, Callable[[], float]] = {}
        for factor in factors:
            seconds = compute * (factor if comm.rank == SLOW else 1.0)
            works: dict[str, Callable[[], object]] = {
                SUM: lambda: comm.allreduce(array),
                PLAIN: partial(plain, seconds),
                **{way: partial(sums.sum, partial(part, seconds)) for way, sums in coded.items()},
                DEADLINE: partial(without_late, seconds),
            }
            ways |= {f"{way} {factor}": partial(per_step, step) for way, step in works.items()}
        times = in_turns(ways, repetitions, warm_up=1)  # the first round has pages to touch
        for sums in (*coded.values(), partial_sums):
            sums.close()
    return times


def main() -> None:
    options = read_options(
        __doc__,
        workers=8,
        tree=Option(
            None, "over a tree of switches, like 4x2; no --workers then", LabTopology.parse
        ),
        elements=Option(65_536, "float32 numbers of a sum"),
        compute=Option(0.2, "seconds for a part, c"),
        factors=Option("1,2,5", "how much slower the slow rank is"),
        steps=Option(5, "steps in a row of each kind"),
        repetitions=3,
    )
    factors, c = [float(factor) for factor in options.factors.split(",")], options.compute
    tree: LabTopology | None = options.tree
    workers = options.workers if tree is None else tree.ranks
    given = some(options, "elements", "compute", "steps", "repetitions")
    given |= {"factors": factors, "in_tree": tree is not None}
    reports = run_ranks(rounds, workers, switches=tree or 1, **given)
    fast = [report for rank, report in enumerate(reports) if rank != SLOW]
    rows = []
    for factor in factors:
        total = median_of(fast, f"{SUM} {factor}")
        expected = {SUM: total, PLAIN: factor * c + total, DEADLINE: c + total}
        if tree is None:
            expected |= {str(copies): copies * c + total for copies in COPIES}
        else:
            expected[LEAVES] = len(tree.nodes[-1].ranks) * c + total
        for way, seconds in expected.items():
            took = median_of(fast, f"{way} {factor}")
            figures = {"seconds": took, "expected": seconds, "ratio": took / seconds}
            rows.append({"factor": factor, "way": way, **figures})
    tell(options, rows, f"{workers} workers, c = {c:g} s, {options.elements:,} float32 numbers")


if __name__ == "__main__":
    run(main)
