# SPDX-License-Identifier: Apache-2.0
"""Formulas of arXiv 2003.06377 against brute force, its closed checks, and the descent lemma."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernels_spec import energies, unit_rows
from p4reduce.compression.costs import (
    Affine,
    CostModel,
    Encoding,
    Packets,
    Payload,
    SwitchLink,
)
from p4reduce.compression.levels import Scheme, choose, measure

Array = npt.NDArray[Any]

MODELS: dict[str, CostModel] = {
    "payload": Payload(),
    "affine": Affine(1.0, 300.0),
    "ethernet": Packets.ethernet(),
    "802.15.4": Packets.ieee802154(),
    "802.15.4 lean": Packets.ieee802154(110, 23),
}
SEEDS = range(5)


def gradient_of(seed: int, size: int) -> Array:
    print(f"seed {seed}, size {size}")
    random = np.random.default_rng(seed)
    shape = random.uniform(0.2, 1.0)
    values = random.standard_normal(size) * np.arange(1, size + 1) ** -shape
    values[random.random(size) < 0.2] = 0.0
    values[0] = 1.0
    return random.permutation(values)


def brute_sparse(gradient: Array, unit: int) -> list[tuple[Array, float]]:
    """Q_T for all T by the definition, each with its T."""
    rows = unit_rows(gradient, unit)
    order = sorted(range(len(rows)), key=lambda i: -float((rows[i] ** 2).sum()))
    result = []
    for level in range(1, np.count_nonzero(rows.any(axis=1)) + 1):
        sent = np.zeros_like(rows)
        sent[order[:level]] = rows[order[:level]]
        result.append((sent.reshape(-1), float(level)))
    return result


def brute_signs(gradient: Array, unit: int) -> list[tuple[Array, float]]:
    rows = unit_rows(gradient, unit)
    order = sorted(range(len(rows)), key=lambda i: -float(np.abs(rows[i]).sum()))
    result = []
    for level in range(1, np.count_nonzero(rows.any(axis=1)) + 1):
        sent = np.zeros_like(rows)
        sent[order[:level]] = np.sign(rows[order[:level]]) * np.linalg.norm(gradient)
        result.append((sent.reshape(-1), float(level)))
    return result


def brute_probabilities(weights: Array, level: int) -> Array:
    """p = min(1, lambda w) with sum `level`, lambda found by bisection."""
    low, high = 0.0, 1.0 / weights[weights > 0].min() * 2
    for _ in range(200):
        middle = (low + high) / 2
        if np.minimum(1.0, middle * weights).sum() < level:
            low = middle
        else:
            high = middle
    result: Array = np.minimum(1.0, high * weights)
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", [1, 7])
@pytest.mark.parametrize("scheme", [Scheme.SPARSE, Scheme.SIGNS])
def test_alpha_and_gamma_follow_from_their_definition(seed: int, unit: int, scheme: Scheme) -> None:
    gradient = gradient_of(seed, 60)
    levels = measure(gradient, scheme, unit)
    padded = unit_rows(gradient, unit).reshape(-1)
    brute = (brute_sparse if scheme is Scheme.SPARSE else brute_signs)(gradient, unit)
    assert len(levels.alpha) == len(brute)
    for index, (sent, _) in enumerate(brute):
        inner, size = padded @ sent, sent @ sent
        assert levels.alpha[index] == pytest.approx(inner**2 / (padded @ padded * size))
        assert levels.step[index] == pytest.approx(inner / size)
        assert levels.gamma(index + 1, 5.0) == pytest.approx(inner / size / 5.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", [1, 7])
def test_stochastic_levels_follow_from_their_definition(seed: int, unit: int) -> None:
    gradient = gradient_of(seed, 60)
    levels = measure(gradient, Scheme.STOCHASTIC, unit)
    weights = np.sqrt(energies(gradient, unit))[levels.order]
    for level in range(1, len(levels.alpha) + 1):
        expected = brute_probabilities(weights, level)
        assert levels.probabilities(level) == pytest.approx(expected, abs=1e-9)
        alpha = (weights**2).sum() / (weights**2 / expected).sum()
        assert levels.alpha[level - 1] == pytest.approx(alpha)
        assert levels.step[level - 1] == pytest.approx(alpha)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", list(Scheme))
def test_choice_is_the_best_of_all_levels(seed: int, model: str, scheme: Scheme) -> None:
    gradient = gradient_of(seed, 500)
    encoding = scheme.encoding(500)
    levels = measure(gradient, scheme)
    best, best_level = 0.0, 0
    for level in range(1, len(levels.alpha) + 1):
        # One level at a time, not the array expression under test.
        value = levels.alpha[level - 1] / float(MODELS[model].cost(level, encoding))
        if value > best:
            best, best_level = value, level
    choice = choose(levels, MODELS[model], encoding)
    assert choice.level == best_level
    assert choice.alpha / choice.cost == best


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lane_bits", [32, 16, 8, 4])
def test_choice_of_blocks_is_the_best_of_all_levels(seed: int, lane_bits: int) -> None:
    link = SwitchLink(4, 1e8, 1e-3, slots=8, lane_bits=lane_bits)
    gradient = gradient_of(seed, 30 * link.lanes - 5)
    encoding = Scheme.SPARSE.encoding(gradient.size, link.lanes)
    energy = np.sort([float((row**2).sum()) for row in unit_rows(gradient, link.lanes)])[::-1]
    values = []
    for level in range(1, int(np.count_nonzero(energy)) + 1):
        union = 30 * (1 - (1 - level / 30) ** 4)
        halves = union - level
        frames_down = 8 + union + halves
        down = 8 * (1024 * union + (78 + 24) * frames_down) / 1e8
        waiting = 1e-3 * np.ceil(union / 8)
        values.append(energy[:level].sum() / energy.sum() / (1e-3 + max(down, waiting)))
    choice = choose(measure(gradient, unit=link.lanes), link, encoding)
    assert choice.level == int(np.argmax(values)) + 1
    assert choice.alpha / choice.cost == pytest.approx(max(values))


@pytest.mark.parametrize("seed", SEEDS)
def test_payload_alone_never_pays_for_a_second_element(seed: int) -> None:
    gradient = gradient_of(seed, 1000)
    assert choose(measure(gradient), Payload(), Scheme.SPARSE.encoding(1000)).level == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_affine_cost_has_one_interior_peak(seed: int) -> None:
    gradient = gradient_of(seed, 1000)
    levels = measure(gradient)
    model, encoding = Affine(1.0, 2000.0), Scheme.SPARSE.encoding(1000)
    costs = model.cost(np.arange(1, len(levels.alpha) + 1), encoding)
    slope = np.diff(levels.alpha / costs)
    rising = slope > 1e-18
    peak = int(np.argmin(rising))
    assert 0 < peak < len(slope), "the peak is inside"
    assert not rising[peak:].any(), "and only one"
    assert choose(levels, model, encoding).level == peak + 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", ["ethernet", "802.15.4", "802.15.4 lean"])
def test_only_full_packets_are_sent(seed: int, model: str) -> None:
    gradient = gradient_of(seed, 2000)
    packets = MODELS[model]
    assert isinstance(packets, Packets)
    encoding = Scheme.SPARSE.encoding(2000)
    levels = measure(gradient)
    level = choose(levels, packets, encoding).level
    one_more = packets.cost(level + 1, encoding)
    assert level == len(levels.alpha) or one_more > packets.cost(level, encoding)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheme", [Scheme.SPARSE, Scheme.SIGNS])
@pytest.mark.parametrize("model", ["payload", "affine", "802.15.4"])
def test_descent_lemma_holds_at_each_step_on_a_quadratic(
    seed: int, scheme: Scheme, model: str
) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    factor = random.standard_normal((40, 40))
    hessian = factor @ factor.T
    smoothness = float(np.linalg.eigvalsh(hessian)[-1])
    x = random.standard_normal(40)
    encoding = scheme.encoding(40)
    for _ in range(30):
        gradient = hessian @ x
        levels = measure(gradient, scheme)
        choice = choose(levels, MODELS[model], encoding)
        sent = (brute_sparse if scheme is Scheme.SPARSE else brute_signs)(gradient, 1)
        before = x @ hessian @ x / 2
        x = x - levels.gamma(choice.level, smoothness) * sent[choice.level - 1][0]
        promised = choice.alpha / (2 * smoothness) * (gradient @ gradient)
        assert x @ hessian @ x / 2 <= before - promised + 1e-9 * before


def test_stochastic_descent_holds_in_expectation_on_a_quadratic() -> None:
    """Exact: the mean of a quadratic needs only the mean and variance of Q, which are known."""
    random = np.random.default_rng(3)
    factor = random.standard_normal((40, 40))
    hessian = factor @ factor.T
    smoothness = float(np.linalg.eigvalsh(hessian)[-1])
    x = random.standard_normal(40)
    gradient = hessian @ x
    levels = measure(gradient, Scheme.STOCHASTIC)
    for level in range(1, 41):
        gamma = levels.gamma(level, smoothness)
        probability = np.empty(40)
        probability[levels.order] = levels.probabilities(level)
        variance = gradient**2 * (1 / probability - 1)
        mean = x - gamma * gradient
        expected = mean @ hessian @ mean / 2 + gamma**2 / 2 * (np.diag(hessian) @ variance)
        promised = levels.alpha[level - 1] / (2 * smoothness) * (gradient @ gradient)
        assert expected <= x @ hessian @ x / 2 - promised + 1e-9


@pytest.mark.parametrize("number", [0.0, 1e-170])
def test_a_gradient_without_energy_has_level_zero(number: float) -> None:
    """It is zero, or the squares of its numbers are, in float64."""
    for scheme in Scheme:
        levels = measure(np.full(10, number), scheme)
        assert len(levels.alpha) == len(levels.order) == 0
        assert choose(levels, Payload(), scheme.encoding(10)).level == 0


def test_gradients_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        measure(np.array([1.0, np.nan]))


def test_encodings_count_bits_as_the_paper_does() -> None:
    dimension, level = 47236, 10
    assert Scheme.SPARSE.encoding(dimension).bits(level) == level * (16 + 32)
    assert Scheme.SIGNS.encoding(dimension).bits(level) == 32 + level * (16 + 1)
    assert Scheme.SPARSE.encoding(dimension, float_bits=64).bits(level) == level * (16 + 64)
    assert Scheme.SPARSE.encoding(dimension).dense_bits == dimension * 32
    assert Encoding(1).index_bits == 0


def test_packets_cost_the_same_full_or_not() -> None:
    radio = Packets.ieee802154()
    encoding = Encoding(2**16)
    per_packet = 8 * 51 // 48
    assert radio.cost(1, encoding) == radio.cost(per_packet, encoding) == 8 * 133
    assert radio.cost(per_packet + 1, encoding) == 2 * 8 * 133
