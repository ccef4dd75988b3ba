# SPDX-License-Identifier: Apache-2.0
"""What the live page costs the data plane: sums with and without it, in pairs.

    python -m bench.page.paired [--ranks 4] [--pairs 60] [--sums 25]

Two systems run beside each other, a switch and a controller each: one controller serves the page
to browsers that read it, the other serves none. In each pair both sum the same tensors, one after
the other, in an order that is drawn. So what else the machine does meets both alike. The ratios of
a pair are what it takes with the page by what it takes without: time, and processor time of the
switch. The interval is of the ratios' median, with 95 % confidence by the binomial distribution of
ranks, which supposes nothing of how they are distributed. The control runs the same pairs with no
page on either side.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from bench.measure import cpu_seconds, in_turns
from bench.page.load import rank_of, watching
from bench.program import Row, read_options, run, tell
from bench.ranks import running

NUMBERS = 65_536  # in each sum
CONFIDENCE = 0.95
PATIENCE = 300.0  # seconds that ranks may take to join, and for their part of a pair


@dataclass(frozen=True)
class Interval:
    """The median of some numbers, and where it is with 95 % confidence."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Interval:
        """Return that of at least six numbers."""
        count, ordered = len(numbers), sorted(numbers)
        if count < 6:
            raise ValueError(f"{count} numbers: an interval of {CONFIDENCE:.0%} takes at least 6")
        outside, below = 0, 0.0  # how many are left out at each end, and how probable that is
        while (below := below + math.comb(count, outside) / 2**count) <= (1 - CONFIDENCE) / 2:
            outside += 1
        return cls(ordered[outside - 1], statistics.median(ordered), ordered[-outside])


class Side:
    """A system whose ranks are threads of this process, and sum when they are told to.

    `stack` closes it. Each time there are `sums` sums.
    """

    def __init__(self, stack: ExitStack, ranks: int, sums: int, *, page: bool) -> None:
        self._sums = sums
        self.system, _ = stack.enter_context(running(ranks, web=page))
        self._begin, self._end = threading.Barrier(ranks + 1), threading.Barrier(ranks + 1)
        self._over = False
        self._threads = [
            threading.Thread(target=self._rank, args=(rank, ranks), daemon=True)
            for rank in range(ranks)
        ]
        for thread in self._threads:
            thread.start()
        stack.callback(self._leave)

    def _rank(self, rank: int, ranks: int) -> None:
        mine = np.ones(NUMBERS, np.float32)
        with rank_of(self.system, rank, ranks, "paired") as comm:
            while True:
                self._begin.wait()
                if self._over:
                    return
                for _ in range(self._sums):
                    comm.allreduce(mine)
                self._end.wait(PATIENCE)

    def _leave(self) -> None:
        """All ranks leave, while the switch is still there."""
        self._over = True
        with contextlib.suppress(threading.BrokenBarrierError):  # a rank has failed, and said so
            self._begin.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)

    def sums(self) -> tuple[float, float]:
        """Have its ranks sum; return seconds, and those of the switch's processor time."""
        pid = str(self.system.switch_pid)
        before = cpu_seconds(pid)
        self._begin.wait(PATIENCE)
        begun = time.perf_counter()
        self._end.wait(PATIENCE)
        return time.perf_counter() - begun, cpu_seconds(pid) - before


def measured(ranks: int, pairs: int, sums: int, browsers: int | None) -> tuple[Interval, Interval]:
    """Compare a system without the page to one with it and its browsers. None: no page at all.

    Returns the ratios of seconds, and of the switch's processor time.
    """
    with ExitStack() as stack:
        plain = Side(stack, ranks, sums, page=False)
        other = Side(stack, ranks, sums, page=browsers is not None)
        if browsers:  # in a process of their own, as they are elsewhere
            given = (other.system.page_address, browsers)
            watcher = get_context("spawn").Process(target=_watch, args=given)
            watcher.start()
            stack.callback(watcher.join)
            stack.callback(watcher.kill)
        found = in_turns(
            {"plain": plain.sums, "other": other.sums},
            pairs,
            warm_up=1,  # what is done once
            order=lambda _, names: random.sample(names, len(names)),
        )
    ratios = np.array(found["other"]) / np.array(found["plain"])
    seconds, switch = (Interval.of(column.tolist()) for column in ratios.T)
    return seconds, switch


def _watch(address: str, browsers: int) -> None:
    with watching(address, browsers):
        threading.Event().wait()


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The ratios of time, and of the switch's processor time, by browsers."""
    for browsers in (None, *options.browsers):
        name = "no page on either side" if browsers is None else f"{browsers} browsers"
        found = measured(options.ranks, options.pairs, options.sums, browsers)
        row: dict[str, Any] = {"name": name}
        for what, interval in zip(("seconds", "switch"), found, strict=True):
            row |= {f"{what}_{end}": one for end, one in asdict(interval).items()}
        yield row


def main() -> None:
    options = read_options(__doc__, ranks=4, pairs=60, sums=25, browsers=[0, 1, 50])
    tell(
        options,
        rows(options),
        f"{options.ranks} ranks, {options.pairs} pairs of {options.sums} sums of {NUMBERS:,} "
        "numbers each; what it takes with the page by what it takes without",
    )


if __name__ == "__main__":
    run(main)
