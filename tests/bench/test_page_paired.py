# SPDX-License-Identifier: Apache-2.0
"""The paired comparison of sums with and without the live page: its interval, and one small run."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("starlette", reason="the page needs it")

from bench.page.paired import Interval, measured


def test_the_interval_is_that_of_the_binomial_table() -> None:
    """Of 20 numbers in order the 6th and the 15th enclose the median in 95.9 % of all cases."""
    numbers = list(range(1, 21))
    random.shuffle(numbers)
    assert Interval.of(numbers) == Interval(6, 10.5, 15)
    assert Interval.of(range(6)) == Interval(0, 2.5, 5)
    with pytest.raises(ValueError, match="takes at least 6"):
        Interval.of([1.0] * 5)


def test_the_interval_has_the_median_as_often_as_it_says() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    drawn = (Interval.of([draw.expovariate(1) for _ in range(25)]) for _ in range(2000))
    inside = sum(each.low <= 0.6931 <= each.high for each in drawn)
    assert inside >= 0.93 * 2000, f"seed {seed}"


@pytest.mark.long
def test_two_systems_take_turns() -> None:
    for found in measured(2, 6, 3, 1):
        assert 0 < found.low <= found.median <= found.high
