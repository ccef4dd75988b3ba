# SPDX-License-Identifier: Apache-2.0
"""Processor time per number, for tables of lanes, compressors and hooks: interleaved runs."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping

_FILLING = 2  # rounds that fill residuals, and do not count


def read_options(description: str | None) -> argparse.Namespace:
    """Return `elements` and `repeat` of the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--repeat", type=int, default=7)
    return parser.parse_args()


def nanoseconds(
    cases: Mapping[str, Callable[[], float]], given: argparse.Namespace
) -> dict[str, float]:
    """Return the median per number of each case, in ns.

    Args:
        cases: run once and return seconds of processor time. They take turns.
        given: of `read_options`.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(given.repeat + _FILLING):
        for name, once in cases.items():
            took = once()
            if turn >= _FILLING:
                times[name].append(took)
    return {name: statistics.median(taken) / given.elements * 1e9 for name, taken in times.items()}
