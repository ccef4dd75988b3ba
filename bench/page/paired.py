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
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System

from bench.measure import cpu_seconds
from bench.page.load import rank_of, watching
from bench.program import Row, read_options, run, tell

NUMBERS = 65_536  # in each sum
SUMS = 25  # of a system in a pair, by default
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
        while True:
            below += math.comb(count, outside) / 2**count
            if below > (1 - CONFIDENCE) / 2:
                break
            outside += 1
        return cls(ordered[outside - 1], statistics.median(ordered), ordered[-outside])


@dataclass(frozen=True)
class Cost:
    """What some sums took: seconds, and the switch's seconds of processor time."""

    seconds: float
    switch: float


class Side:
    """A system whose ranks are threads of this process, and sum when they are told to.

    Args:
        stack: closes it.
        ranks: how many.
        sums: how many at a time.
        page: whether the controller serves the live page.
    """

    def __init__(self, stack: ExitStack, ranks: int, sums: int, *, page: bool) -> None:
        self._sums = sums
        directory = stack.enter_context(run_directory())
        choice = replace(choose("embedded", "local"), web=page)
        self._system = stack.enter_context(System(choice, directory, directory, ranks))
        self._system.start()
        self._system.wait_ready()
        self._begin, self._end = threading.Barrier(ranks + 1), threading.Barrier(ranks + 1)
        self._over = False
        self._threads = [
            threading.Thread(target=self._rank, args=(rank, ranks), daemon=True)
            for rank in range(ranks)
        ]
        for thread in self._threads:
            thread.start()
        stack.callback(self._leave)

    @property
    def page(self) -> str:
        """The page's address."""
        assert self._system.page_address is not None
        return self._system.page_address

    def _rank(self, rank: int, ranks: int) -> None:
        comm = rank_of(self._system.variables(), rank, ranks, "paired")
        mine = np.ones(NUMBERS, np.float32)
        with comm:
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

    def sums(self) -> Cost:
        """Have its ranks do their sums."""
        before = self._switch_seconds()
        self._begin.wait(PATIENCE)
        begun = time.perf_counter()
        self._end.wait(PATIENCE)
        return Cost(time.perf_counter() - begun, self._switch_seconds() - before)

    def _switch_seconds(self) -> float:
        """Processor time that the threads of the switch have used."""
        children = self._system.processes.children
        [switch] = [one for one in children if one.name != "controller"]
        return cpu_seconds(switch.process.pid)


def ratios(first: Side, second: Side, pairs: int) -> list[Cost]:
    """Return the second's time divided by the first's, for each pair."""
    first.sums(), second.sums()  # what is done once
    found = []
    for _ in range(pairs):
        if random.random() < 0.5:
            one, other = first.sums(), second.sums()
        else:
            other = second.sums()
            one = first.sums()
        found.append(Cost(other.seconds / one.seconds, other.switch / one.switch))
    return found


def measured(ranks: int, pairs: int, sums: int, browsers: int | None) -> tuple[Interval, Interval]:
    """Compare a system without the page to one with it and its browsers. None: no page at all.

    Returns:
        Of the ratios of seconds, and of the switch's processor time.
    """
    with ExitStack() as stack:
        plain = Side(stack, ranks, sums, page=False)
        other = Side(stack, ranks, sums, page=browsers is not None)
        if browsers:  # in a process of their own, as they are elsewhere
            watcher = get_context("spawn").Process(target=_watch, args=(other.page, browsers))
            watcher.start()
            stack.callback(watcher.join)
            stack.callback(watcher.kill)
        found = ratios(plain, other, pairs)
    return Interval.of([one.seconds for one in found]), Interval.of([one.switch for one in found])


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
    options = read_options(__doc__, ranks=4, pairs=60, sums=SUMS, browsers=[0, 1, 50])
    tell(
        options,
        rows(options),
        f"{options.ranks} ranks, {options.pairs} pairs of {options.sums} sums of {NUMBERS:,} "
        "numbers each; what it takes with the page by what it takes without",
    )


if __name__ == "__main__":
    run(main)
