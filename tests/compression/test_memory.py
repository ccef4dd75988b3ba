# SPDX-License-Identifier: Apache-2.0
"""MemoryCat: where its rule is the paper's, what it measures, and what it is worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import (
    Affine,
    Agreement,
    Cat,
    CostModel,
    MemoryCat,
    Packets,
    Payload,
    Scheme,
    SwitchLink,
    TopK,
    measure,
)
from p4reduce.compression.memory import NUMBERS, Evidence, MemoryState

Array = npt.NDArray[Any]
MODELS: dict[str, CostModel] = {
    "payload": Payload(),
    "affine": Affine(),
    "ethernet": Packets.ethernet(),
    "802.15.4": Packets.ieee802154(),
}
SIZE = 2000


def gradient_of(seed: int, size: int = SIZE) -> Array:
    """Few large elements, many small ones."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    return (random.standard_normal(size) * random.lognormal(0, 1.5, size)).astype(np.float32)


def evidence(compressor: MemoryCat) -> Evidence:
    state = compressor.states["w"]
    assert isinstance(state, MemoryState)
    return state.own


# -- The rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", list(MODELS))
def test_the_first_step_is_the_papers(model: str) -> None:
    gradient = gradient_of(1)
    paper = Cat(unit=1, cost=MODELS[model]).compress("w", gradient)
    memory = MemoryCat(unit=1, cost=MODELS[model]).compress("w", gradient)
    assert memory.level == paper.level
    np.testing.assert_array_equal(memory.values, paper.values)


def test_steps_of_a_run() -> None:
    alpha = np.array([0.1, 0.5, 1.0])
    nothing_known = Evidence()
    assert nothing_known.steps_of_a_run(alpha, 0) == pytest.approx(1 / alpha)
    assert nothing_known.steps_of_a_run(alpha, 20) == pytest.approx(20 + 1 / alpha)
    # Units wait three times as long as alpha says, and nothing that waits is of use any more.
    worthless = Evidence(waiting=-1.0, persistent=1.0, aged=6.0, lag=2.0, energy=1.0)
    expected = 20 / alpha + 1 + 3 * (1 / alpha - 1)
    assert worthless.steps_of_a_run(alpha, 20) == pytest.approx(expected)
    # At age 2 half of the worth is left, so at age 3 about a third.
    fading = Evidence(waiting=1.0, persistent=2.0, aged=6.0, lag=2.0, energy=3.0)
    useful = 0.5 ** (3 * (1 / alpha - 1) / 2)
    expected = 20 / (alpha + useful * (1 - alpha)) + 1 + 3 * (1 / alpha - 1)
    assert fading.steps_of_a_run(alpha, 20) == pytest.approx(expected)


def test_the_level_is_the_cheapest_of_all_by_brute_force() -> None:
    cost = Affine()
    compressor = MemoryCat(unit=1, cost=cost)
    for step in range(6):
        gradient = gradient_of(1) + np.float32(0.3) * gradient_of(10 + step)
        level = compressor.compress("w", gradient).level
        alpha = measure(gradient).alpha
        best, cheapest = 0, np.inf
        for candidate in range(1, len(alpha) + 1):
            share = alpha[candidate - 1 : candidate]
            steps = float(evidence(compressor).steps_of_a_run(share, step)[0])
            price = steps * float(cost.cost(candidate, Scheme.SPARSE.encoding(SIZE)))
            if price < cheapest:
                best, cheapest = candidate, price
        assert level == best


# -- What is measured --------------------------------------------------------------------------


def test_a_gradient_that_stays_the_same_keeps_its_worth_and_the_level_falls() -> None:
    gradient = gradient_of(2)
    memory, paper = MemoryCat(unit=1, cost=Affine()), Cat(unit=1, cost=Affine())
    levels = [memory.compress("w", gradient).level for _ in range(40)]
    assert {paper.compress("w", gradient).level for _ in range(40)} == {levels[0]}
    known = evidence(memory)
    assert known.waiting == pytest.approx(known.persistent, rel=1e-3)
    assert known.fading == pytest.approx(0, abs=1e-3)
    assert levels[-1] < levels[0] / 2


def test_what_waits_for_a_gradient_that_has_turned_is_worth_nothing() -> None:
    compressor = MemoryCat(unit=1, cost=Affine())
    fading = []
    for step in range(20):
        compressor.compress("w", gradient_of(3) if step < 15 else -gradient_of(3))
        fading.append(evidence(compressor).fading)
    assert fading[14] == pytest.approx(0, abs=1e-3)
    assert fading[-1] > 0.3, "a third is lost with each step"


def test_noise_is_not_taken_for_worth_that_waits() -> None:
    """With batches' noise of twice the gradient's norm, <e, g> is still what waits of the signal;
    in |g|² four fifths are noise."""
    signal = gradient_of(4)
    noise = np.random.default_rng(5).standard_normal((200, SIZE)).astype(np.float32)
    noise *= np.float32(2 * np.linalg.norm(signal) / np.sqrt(SIZE))
    compressor = MemoryCat(unit=1, cost=Affine())
    ratios = []
    for step in range(200):
        compressor.compress("w", signal + noise[step])
        known = evidence(compressor)
        if step >= 50:
            age, squared = known.aged / known.energy, known.energy
            ratios.append((known.waiting / age, known.persistent / age, squared))
    waiting, persistent, squared = np.mean(ratios, axis=0) * 0.1  # ten steps' sums
    assert persistent == pytest.approx(float(signal @ signal), rel=0.15)
    assert squared == pytest.approx(5 * float(signal @ signal), rel=0.15)
    assert waiting < persistent  # the largest elements of the signal never wait


def test_tensors_have_memories_of_their_own_and_reset_clears_them() -> None:
    compressor = MemoryCat(unit=1, cost=Affine())
    for _ in range(5):
        compressor.compress("w", gradient_of(6))
    alone = MemoryCat(unit=1, cost=Affine()).compress("v", gradient_of(7)).level
    assert compressor.compress("v", gradient_of(7)).level == alone
    compressor.reset("w")
    assert compressor.compress("w", gradient_of(6)).level == alone_level(gradient_of(6))


def alone_level(gradient: Array) -> int:
    return MemoryCat(unit=1, cost=Affine()).compress("w", gradient).level


# -- Several ranks -----------------------------------------------------------------------------


def test_ranks_that_agree_choose_the_same_blocks_in_every_step() -> None:
    link = SwitchLink(3, 1e7, 1e-3)
    ranks = [MemoryCat(world_size=3, cost=link, agreement=Agreement.BLOCKS) for _ in range(3)]
    size = 256 * 40
    seen = set()
    for step in range(8):
        # By itself rank 0 would trust what waits, as its gradient stays, and rank 2 would not.
        gradients = [
            gradient_of(1, size) + np.float32(rank) * gradient_of(100 * rank + step, size)
            for rank in range(3)
        ]
        pairs = list(zip(ranks, gradients, strict=True))
        proposed = [rank.propose("w", gradient) for rank, gradient in pairs]
        assert proposed[0] is not None
        assert len(proposed[0]) == 2 * 40 + NUMBERS
        agreed = np.sum(np.array(proposed), axis=0)
        sent = [rank.compress("w", gradient, agreed) for rank, gradient in pairs]
        blocks = [one.values.reshape(-1, 256).any(axis=1) for one in sent]
        assert all((mask == blocks[0]).all() for mask in blocks)
        assert all(one.level == sent[0].level for one in sent)
        seen.add(sent[0].level)
        total = np.sum([one.values for one in sent], axis=0)
        for rank in ranks:
            rank.decompress("w", total)
    assert len(seen) > 1, "the level is one of each step"


def test_the_lag_is_that_of_the_level_agreed_on() -> None:
    """Not of the level that the rank would have had: here 1, but the mean is some hundreds."""
    flat = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    peaked = np.float32(0.01) * flat
    peaked[3] = 10
    ranks = [
        MemoryCat(world_size=2, unit=1, cost=Affine(), agreement=Agreement.LEVEL) for _ in range(2)
    ]
    pairs = list(zip(ranks, (flat, peaked), strict=True))
    proposed = [rank.propose("w", gradient) for rank, gradient in pairs]
    agreed = np.sum(np.array(proposed), axis=0)
    for rank, gradient in pairs:
        level = rank.compress("w", gradient, agreed).level
        state = rank.states["w"]
        assert isinstance(state, MemoryState)
        assert level not in [one[0] for one in proposed if one is not None]
        assert state.lag == pytest.approx(1 / measure(gradient).alpha[level - 1] - 1)


@pytest.mark.parametrize(
    "wrong", [{"error_feedback": False}, {"scheme": Scheme.SIGNS}, {"scheme": Scheme.STOCHASTIC}]
)
def test_without_feedback_or_with_other_schemes_there_is_no_such_rule(wrong: Any) -> None:
    with pytest.raises(ValueError, match="with error feedback, not for"):
        MemoryCat(**wrong)


# -- What it is worth --------------------------------------------------------------------------


def test_on_real_data_it_is_cheaper_than_the_papers_rule_and_near_the_best_fixed_level() -> None:
    pytest.importorskip("sklearn", reason="the experiments need scikit-learn")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))
    import study
    from simulate import run, spent
    from tasks import breast_cancer

    task, model = breast_cancer(), Affine()
    _, target = study.uncompressed(task, 60, 0.9)

    def price(make: Any) -> float:
        trace = run(task, make, target=target, steps=200)
        reached = trace.steps_to(target)
        assert reached is not None
        return float(spent(trace, task, model, Scheme.SPARSE, 1)[reached - 1])

    fixed = min(
        price(lambda rank, level=level: TopK(world_size=4, unit=1, density=level / task.dimension))
        for level in (4, 8, 16, 32, 64, 128)
    )
    paper = price(lambda rank: Cat(world_size=4, unit=1, cost=model))
    memory = price(lambda rank: MemoryCat(world_size=4, unit=1, cost=model))
    assert memory < paper
    assert memory <= 1.1 * fixed


def levels_with_a_step_of(seconds: float) -> list[int]:
    """The levels of twenty steps that cost that many seconds besides their traffic."""
    now = [0.0]
    link = SwitchLink(4, 25e6, 2e-3)
    cat = MemoryCat(world_size=4, cost=link, agreement=Agreement.BLOCKS, clock=lambda: now[0])
    random = np.random.default_rng(3)
    lasting = np.repeat(np.linspace(1, 0.1, 400), 256) * random.standard_normal(400 * 256)
    levels = []
    for _ in range(20):
        gradient = (lasting + 0.1 * random.standard_normal(lasting.size)).astype(np.float32)
        proposed = cat.propose("w", gradient)
        assert proposed is not None
        now[0] += seconds
        sent = cat.compress("w", gradient, 4 * proposed)
        cat.decompress("w", sent.values)
        levels.append(sent.level)
    assert cat.states["w"].weighed.seconds == pytest.approx(seconds, rel=0.05)  # type: ignore[attr-defined]
    return levels


def test_the_dearer_a_step_is_otherwise_the_more_of_a_gradient_is_sent() -> None:
    cheap, middling, dear = (levels_with_a_step_of(seconds) for seconds in (0.0, 0.1, 10.0))
    assert cheap[-1] < 20 < 40 < middling[-1] < 200 < dear[-1], (cheap, middling, dear)


def test_seconds_and_bits_are_not_added_up() -> None:
    with pytest.raises(ValueError, match="a clock counts seconds, but cost is a Payload"):
        MemoryCat(cost=Payload(), clock=lambda: 0.0)
