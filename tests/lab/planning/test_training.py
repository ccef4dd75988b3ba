# SPDX-License-Identifier: Apache-2.0
"""Steps of training, against hand-computed cases."""

from __future__ import annotations

import math

import pytest
from p4reduce_lab.planning.training import (
    TrainingStep,
    amdahl,
    efficiency,
    even_step,
    hiding_factor,
    step_time,
)


def test_gradients_come_at_an_even_pace_during_backward() -> None:
    step = even_step(0.3, 100, 40, forward=1 / 3)
    assert step.buckets == (40, 40, 20)
    assert step.ready == pytest.approx((1 / 3 + 2 / 3 * 0.4, 1 / 3 + 2 / 3 * 0.8, 1))
    assert step.parameters == 100


def test_sums_that_overlap_and_those_that_do_not() -> None:
    step = TrainingStep(1.0, (10, 20), (0.5, 1.0))
    time = step_time(step, lambda size: 0.03 * size)
    # The first from 0.5 to 0.8; the second from 1.0 to 1.6.
    assert time.communication == pytest.approx(0.9)
    assert time.after == pytest.approx(1.9)
    assert time.overlapped == pytest.approx(1.6)
    assert time.exposed == pytest.approx(0.6)
    assert time.share == pytest.approx(0.9 / 1.9)


def test_sums_wait_for_each_other() -> None:
    time = step_time(TrainingStep(1.0, (10, 10), (0.5, 0.6)), lambda size: 0.4)
    assert time.overlapped == pytest.approx(1.3)


def test_a_step_is_no_shorter_than_its_computing() -> None:
    assert step_time(TrainingStep(1.0, (1,), (0.2,)), lambda size: 0.1).overlapped == 1.0


def test_amdahls_law() -> None:
    assert amdahl(0.5, 2) == pytest.approx(4 / 3)
    assert amdahl(0.9, math.inf) == pytest.approx(10)
    assert amdahl(1.0, math.inf) == math.inf
    assert amdahl(0.0, 100) == 1.0
    with pytest.raises(ValueError, match="share of 2"):
        amdahl(2, 3)
    with pytest.raises(ValueError, match="0 times"):
        amdahl(0.5, 0)


def test_the_batch_that_hides_sums() -> None:
    step = TrainingStep(1.0, (1, 1), (0.5, 1.0))
    # The last sum of 0.2 s has to fit into 5 % of a longer step; both of them into 55 %.
    assert hiding_factor(step, [0.2, 0.2]) == pytest.approx(4)
    assert hiding_factor(step, [5.3, 0.2]) == pytest.approx(10)
    assert hiding_factor(step, [0.2, 0.2], waits=0.0) == math.inf


def test_that_batch_is_just_enough() -> None:
    step = even_step(0.1, 1000, 100)
    each = [0.004 + 0.0001 * size for size in step.buckets]
    factor = hiding_factor(step, each)
    times = [
        step_time(step.with_compute(f * factor), lambda size: 0.004 + 0.0001 * size)
        for f in (1, 0.99)
    ]
    assert times[0].exposed / times[0].compute == pytest.approx(0.05)
    assert times[1].exposed / times[1].compute > 0.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingStep(0, (1,), (1,)), "above 0"),
        (lambda: TrainingStep(1, (), ()), "0 buckets"),
        (lambda: TrainingStep(1, (1,), (1, 1)), "2 moments"),
        (lambda: TrainingStep(1, (-1,), (1,)), "negative"),
        (lambda: TrainingStep(1, (1,), (1.5,)), "from 0 to 1"),
        (lambda: even_step(1, 0, 1), "0 parameters"),
        (lambda: even_step(1, 1, 0), "0 elements"),
    ],
)
def test_what_cannot_be_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_the_efficiency_of_ranks_that_share_a_batch() -> None:
    # 0.8 s on one rank and 0.2 s for the sum: 1 s; eight ranks take 0.1 and 0.2 s.
    assert efficiency(8, 0.2 / 0.8) == pytest.approx(1.0 / (8 * 0.3))
    assert efficiency(1, 3.0) == 1.0
    assert efficiency(64, 0.0) == 1.0
    with pytest.raises(ValueError, match="0 ranks"):
        efficiency(0, 0.1)
    with pytest.raises(ValueError, match=r"-1\.0 times"):
        efficiency(2, -1.0)
