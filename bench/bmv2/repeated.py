# SPDX-License-Identifier: Apache-2.0
"""Measurements in turns: what else the machine does then falls on all that are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.bmv2.contributions import Result


@dataclass(frozen=True)
class Summary:
    """Medians of several measurements of the same.

    Attributes:
        contributions_per_second: of all ranks together; `slowest` and `fastest` likewise.
        rate_ratio: the median of the ratios, turn by turn, of this rate to that of the first
            of those that are compared.
        switch_us: CPU time of all the switch's threads for a contribution.
        busiest_thread_us: of the one that has most; in BMv2 that is ingress.
        busiest_thread_load: the share of a core that it used, 0 to 1. Well below 1, something else
            was the bottleneck.
        thread_us_ratio: as `rate_ratio`, of `busiest_thread_us`. Other load on
            the machine hardly changes it.
        thread_us_ratio_low: a quarter of the turns had a ratio below it;
            `thread_us_ratio_high`: a quarter had one above. How far they are apart says
            what this many turns can tell.
        load_us: CPU time of the process that sends and receives, for a contribution.
    """

    name: str
    contributions_per_second: float
    slowest: float
    fastest: float
    rate_ratio: float
    switch_us: float
    busiest_thread_us: float
    busiest_thread_load: float
    thread_us_ratio: float
    thread_us_ratio_low: float
    thread_us_ratio_high: float
    load_us: float


def in_turns(cases: Mapping[str, Callable[[], Result]], turns: int) -> list[Summary]:
    """Measure each case once per turn, and sum up.

    Every other turn goes backwards: where the machine becomes slower or faster meanwhile, that
    falls on the first case as often as on the last.
    """
    results: dict[str, list[Result]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            results[name].append(cases[name]())
    return [_summary(name, of, results[next(iter(cases))]) for name, of in results.items()]


def _summary(name: str, results: list[Result], first: list[Result]) -> Summary:
    def median(of: Callable[[Result], float]) -> float:
        return statistics.median(map(of, results))

    def ratios(of: Callable[[Result], float]) -> list[float]:
        return sorted(of(one) / of(other) for one, other in zip(results, first, strict=True))

    by_thread = ratios(lambda one: one.busiest_thread_us)
    rates = [result.contributions_per_second for result in results]
    return Summary(
        name=name,
        contributions_per_second=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        rate_ratio=statistics.median(ratios(lambda one: one.contributions_per_second)),
        switch_us=median(lambda one: one.switch_us),
        busiest_thread_us=median(lambda one: one.busiest_thread_us),
        busiest_thread_load=median(lambda one: one.busiest_thread_load),
        thread_us_ratio=statistics.median(by_thread),
        thread_us_ratio_low=by_thread[len(by_thread) // 4],
        thread_us_ratio_high=by_thread[-1 - len(by_thread) // 4],
        load_us=median(lambda one: one.load_us),
    )


def show(summaries: list[Summary]) -> None:
    """Print a line each."""
    for one in summaries:
        print(
            f"{one.name:44} {one.contributions_per_second:8,.0f}/s"
            f" ({one.slowest:,.0f} to {one.fastest:,.0f}; {one.rate_ratio:.2f}x)"
            f"  switch {one.switch_us:.1f} us, busiest thread {one.busiest_thread_us:.1f} us"
            f" ({one.thread_us_ratio:.2f}x, half of the turns {one.thread_us_ratio_low:.2f} to"
            f" {one.thread_us_ratio_high:.2f}; {one.busiest_thread_load:.0%} of a core)"
            f"  load {one.load_us:.1f} us"
        )
