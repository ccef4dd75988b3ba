# SPDX-License-Identifier: Apache-2.0
"""How much goes through which switch: measured by each rank, agreed by all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from p4reduce.switches.shares import (
    LEAST_SHARE,
    MOST_WHOLE,
    PERIOD,
    RUN,
    WHOLE,
    Shares,
    SwitchRate,
)
from slow_links import Link, SlowLinks


def agreed(shares: Shares, *rows: list[float]) -> bool:
    return shares.agree(np.sum([shares.row(row) for row in rows], axis=0, dtype=np.int32))


def test_equal_at_first_and_every_block_once() -> None:
    shares = Shares(3, 2)
    assert shares.ranges(300) == [(0, 100), (100, 200), (200, 300)]
    shares.weights = [700, 16, 308]
    for blocks in (48, 49, 1000, 123_457):
        ends = shares.ranges(blocks)
        assert ends[0][0] == 0
        assert ends[-1][1] == blocks
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


def test_few_blocks_stay_together() -> None:
    assert not Shares(2, 2).cuts(2 * MOST_WHOLE)
    assert Shares(2, 2).cuts(2 * MOST_WHOLE + 1)


def test_what_is_not_cut_stays_at_a_switch_for_a_run() -> None:
    shares = Shares(2, 2)
    turns = [shares.take_one(1) for _ in range(8 * RUN)]
    changes = sum(one != other for one, other in itertools.pairwise(turns))
    assert turns[:RUN] == [0] * RUN
    assert changes <= 9
    assert abs(turns.count(0) - turns.count(1)) <= RUN


def test_what_is_not_cut_goes_by_the_shares() -> None:
    shares = Shares(2, 2)
    shares.weights = [768, 256]
    turns = [shares.take_one(8) for _ in range(4000)]
    assert abs(turns.count(0) - 3000) <= RUN / 8


def test_new_shares_hold_for_what_comes_after() -> None:
    """What was not cut before has no weight then, or all goes to one switch for a long time."""
    shares = Shares(2, 2)
    for _ in range(10_000):
        shares.take_one(30)
    assert agreed(shares, [9000.0, 3000.0])
    assert shares.weights == [640, 384]
    turns = [shares.take_one(30) for _ in range(4000)]
    assert abs(turns.count(0) - 2500) <= RUN


@pytest.mark.parametrize(
    ("parts", "busy"),
    [
        ([(0, 10), (5, 6)], 10),
        ([(5, 6), (0, 10)], 10),  # a short one ends within a long one
        ([(0, 4), (2, 8), (9, 10)], 9),
        ([(3, 4), (2, 5), (1, 6)], 5),
    ],
)
def test_time_in_flight_counts_once(parts: list[tuple[float, float]], busy: float) -> None:
    rate = SwitchRate()
    for started, over in parts:
        rate.add(10, started, over)
    assert rate.take() == pytest.approx(10 * len(parts) / busy)


def test_shares_are_as_the_sums_of_rates() -> None:
    shares = Shares(2, 2)
    assert agreed(shares, [1000.0, 3000.0], [5000.0, 3000.0]) is False  # as it is
    assert agreed(shares, [9000.0, 3000.0], [9000.0, 3000.0])
    assert shares.weights == [640, 384]  # halfway
    assert agreed(shares, [3000.0, 1000.0], [9000.0, 3000.0])
    assert shares.weights == [704, 320]


def test_what_a_rank_has_not_measured_changes_nothing() -> None:
    shares = Shares(2, 1)
    assert not agreed(shares, [0.0, 5.0])
    assert shares.weights == [512, 512]


def test_no_switch_is_forgotten() -> None:
    shares = Shares(2, 1)
    while agreed(shares, [1e9, 1.0]):
        pass
    assert shares.weights[1] == LEAST_SHARE
    first, stop = shares.ranges(64 * 40)[1]
    assert stop > first


def test_rates_of_many_ranks_do_not_overflow() -> None:
    shares = Shares(2, 64)
    total = np.sum([shares.row([1e12, 1e12])] * 64, axis=0, dtype=np.int64)
    assert (total <= np.iinfo(np.int32).max).all()


def test_every_so_many_calls_the_ranks_agree() -> None:
    shares = Shares(2, 2)
    due = [shares.due() for _ in range(3 * PERIOD)]
    assert [number for number, one in enumerate(due, 1) if one] == [PERIOD, 2 * PERIOD, 3 * PERIOD]


def test_time_counts_once_and_only_while_something_is_under_way() -> None:
    rate = SwitchRate()
    assert rate.take() == 0
    rate.add(100, 1.0, 2.0)
    rate.add(100, 1.5, 2.5)  # half of it at the same time
    rate.add(100, 9.0, 9.5)
    assert rate.take() == pytest.approx(300 / 2.0)
    assert rate.take() == 0


@pytest.mark.parametrize("ratio", [2, 8])
def test_a_slow_switch_gets_fewer_blocks(ratio: int, rng: np.random.Generator) -> None:
    """Links of different rates, in virtual time: soon all take equally long."""
    fast = 12.5e6
    networks = [
        SlowLinks(2, 16, rng, up=lambda rate=rate: Link(rate), down=lambda rate=rate: Link(rate))
        for rate in (fast, fast / ratio)
    ]
    shares, rates, now = Shares(2, 2), [SwitchRate(), SwitchRate()], 0.0
    for _ in range(9):
        taken = [0.0, 0.0]
        for switch, (first, stop) in enumerate(shares.ranges(200)):
            taken[switch], _ = networks[switch].allreduce(stop - first)
            rates[switch].add(stop - first, now, now + taken[switch])
        now += max(taken)
        agreed(shares, *[[rate.take() for rate in rates]] * 2)
        print(shares.weights, taken)
    assert shares.weights[0] / WHOLE == pytest.approx(ratio / (1 + ratio), abs=0.06)
    assert max(taken) < 1.3 * min(taken)
