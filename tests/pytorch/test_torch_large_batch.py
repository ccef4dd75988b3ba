# SPDX-License-Identifier: Apache-2.0
"""Rates, warm-up and LARS are what their papers' formulas give, also with sharded parameters."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

from p4reduce.torch.large_batch import (  # noqa: E402
    LARS,
    from_digits,
    linear_rate,
    sqrt_rate,
    to_digits,
    warm_up,
)


def test_rates_follow_the_batch() -> None:
    assert linear_rate(0.1, 256, 16) == pytest.approx(1.6)
    assert sqrt_rate(0.1, 256, 16) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="batch=0"):
        linear_rate(0.1, 0, 16)
    with pytest.raises(ValueError, match="rate=-1"):
        sqrt_rate(-1, 16, 16)


def test_the_warm_up_is_gradual() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.6)
    schedule = warm_up(optimizer, 5, 0.1)
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 1.6])
    with pytest.raises(ValueError, match="base_rate=3"):
        warm_up(optimizer, 5, 3)


def test_a_step_of_lars_is_the_papers() -> None:
    weight, gradient = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    one, bias = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(torch.ones(2))
    optimizer = LARS([one, bias], lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.01)
    speed, plain = torch.zeros(1, 2), torch.zeros(2)
    for _ in range(3):
        one.grad, bias.grad = gradient.clone(), torch.ones(2)
        optimizer.step()
        # Algorithm 1: the local rate, then the momentum.
        local = 0.01 * weight.norm() / (gradient.norm() + 0.1 * weight.norm())
        speed = 0.9 * speed + 0.5 * local * (gradient + 0.1 * weight)
        weight, plain = weight - speed, 0.9 * plain + 0.5
    torch.testing.assert_close(one.data, weight)
    assert bias[0].item() == pytest.approx(1 - 0.5 * (1 + 1.9 + 2.71))


def test_lars_keeps_its_rate_also_as_a_tensor() -> None:
    ends = []
    for rate in (0.5, torch.tensor(0.5)):
        weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
        optimizer = LARS([weight], lr=rate)
        for _ in range(3):
            weight.grad = torch.tensor([[0.0, 2.0]])
            optimizer.step()
        assert rate == 0.5
        ends.append(weight.data)
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"lr": 0}, "lr=0"),
        ({"lr": 1, "momentum": 1}, "momentum=1"),
        ({"lr": 1, "trust": 0}, "trust"),
    ],
)
def test_lars_refuses_what_does_not_fit(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LARS([torch.nn.Parameter(torch.ones(1))], **wrong)


def test_lars_refuses_sparse_gradients_and_changes_nothing() -> None:
    table = torch.nn.Embedding(5, 3, sparse=True)
    before = table.weight.detach().clone()
    optimizer = LARS(table.parameters(), lr=0.5)
    table(torch.tensor([1, 1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"of shape \(5, 3\) is sparse"):
        optimizer.step()
    assert torch.equal(table.weight, before)


def test_squares_are_summed_exactly() -> None:
    """Over as many ranks as a job can have."""
    draw = np.random.default_rng(5)
    numbers = draw.random((4096, 100)) * 2.0 ** draw.integers(-80, 120, (4096, 100))
    digits = np.sum([to_digits(one) for one in numbers], axis=0, dtype=np.int64)
    assert digits.max() <= np.iinfo(np.int32).max
    sums = from_digits(digits.astype(np.int32))
    exact = [float(sum(Fraction(one) for one in column)) for column in numbers.T]
    np.testing.assert_allclose(sums, exact, rtol=1e-15)
    odd = from_digits(to_digits(np.array([np.inf, np.nan, 2.0**152, 0.0, 1.5])))
    np.testing.assert_array_equal(odd, [np.nan, np.nan, np.nan, 0.0, 1.5])


@pytest.mark.timeout(300)
def test_lars_of_shards_is_that_of_whole_parameters(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 3, ["large_batch.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        (record,) = one.records
        assert max(record["apart"]) < 1e-5, record
        assert record["calls"] == 5  # one for each step


@pytest.mark.timeout(300)
def test_the_linear_rule_keeps_the_accuracy(system: TorchSystem, tmp_path: Path) -> None:
    program = [str(EXAMPLES / "pytorch_large_batch.py"), "--seeds", "1"]
    program += ["--only", "unscaled", "--only", "linear", "--only", "lars"]
    ended = Ranks(system, 2, program, tmp_path / "ranks").wait()
    all_well(ended)
    found = [
        re.fullmatch(r"(\w+) +(\d+) steps  accuracy ([0-9.]+) %", line) for line in ended[0].lines
    ]
    figures = {one[1]: float(one[3]) for one in found if one}
    # The base comes to 91.9 % in sixteen times as many steps.
    assert figures["linear"] > 90
    assert figures["lars"] > 88
    assert figures["unscaled"] < figures["linear"] - 4
