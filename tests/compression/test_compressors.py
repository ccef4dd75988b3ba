# SPDX-License-Identifier: Apache-2.0
"""Each compressor's contract: what is sent, what is kept, what the mean is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import (
    Affine,
    Agreement,
    ApproximateTopK,
    Cat,
    CompressedAllreduce,
    Compressor,
    CostModel,
    DenseSwitchOver,
    MemoryCat,
    Payload,
    RandomK,
    Scheme,
    Selected,
    SwitchLink,
    Threshold,
    TopK,
    Uncompressed,
    approximate_top_k,
    compressor_by_name,
    nonzero_blocks,
)
from ranks_here import EqualRanks, exchange

Array = npt.NDArray[Any]

MAKERS: dict[str, Callable[..., Compressor]] = {
    "topk": lambda **given: TopK(density=0.1, **given),
    "mstopk": lambda **given: ApproximateTopK(density=0.1, **given),
    "randomk": lambda **given: RandomK(density=0.1, **given),
    "threshold": lambda **given: Threshold(threshold=1.0, **given),
    "cat": lambda **given: Cat(cost=Affine(), **given),
    "cat signs": lambda **given: Cat(cost=Affine(), scheme=Scheme.SIGNS, **given),
    "cat stochastic": lambda **given: Cat(cost=Affine(), scheme=Scheme.STOCHASTIC, **given),
    "topk int8": lambda **given: TopK(density=0.1, lane_bits=8, world_size=4, **given),
}
SIZE = 256 * 40 + 17


def gradient_of(seed: int, size: int = SIZE) -> Array:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    values = (
        random.standard_normal(size)
        * np.repeat(random.lognormal(0, 1.5, -(-size // 256)), 256)[:size]
    )
    return values.astype(np.float32)


@pytest.mark.parametrize("unit", [0, 1, 64])
@pytest.mark.parametrize("maker", MAKERS)
def test_nothing_is_lost_with_feedback(maker: str, unit: int) -> None:
    compressor = MAKERS[maker](unit=unit)
    assert compressor.feedback, "biased methods have it unless told otherwise"
    given, sent = np.zeros(SIZE), np.zeros(SIZE)
    for step in range(5):
        gradient = gradient_of(step)
        given += gradient
        sent += compressor.compress("w", gradient).values
    residual = compressor.states["w"].residual
    assert residual is not None
    scale = np.abs(given).max()
    assert np.abs(sent + residual - given).max() < 1e-5 * scale


@pytest.mark.parametrize("maker", MAKERS)
def test_feedback_can_be_switched_off(maker: str) -> None:
    compressor = MAKERS[maker](error_feedback=False)
    compressor.compress("w", gradient_of(0))
    assert compressor.states["w"].residual is None


@pytest.mark.parametrize("maker", MAKERS)
def test_shape_and_dtype_are_kept_and_the_gradient_is_left_alone(maker: str) -> None:
    for dtype in (np.float32, np.float64):
        gradient = gradient_of(1, 41 * 250).reshape(41, 250).astype(dtype)
        before = gradient.copy()
        sent = MAKERS[maker]().compress("w", gradient)
        assert sent.values.shape == gradient.shape
        assert sent.values.dtype == gradient.dtype
        assert not np.shares_memory(sent.values, gradient)
        assert (gradient == before).all()


@pytest.mark.parametrize("maker", MAKERS)
def test_repeated_compression_of_one_gradient_sends_all_of_it(maker: str) -> None:
    """With feedback the mean of what is sent tends to the gradient: the residual stays bounded."""
    compressor = MAKERS[maker]()
    gradient = gradient_of(2)
    steps = 300
    sent = sum(compressor.compress("w", gradient).values.astype(np.float64) for _ in range(steps))
    error = np.linalg.norm(sent / steps - gradient) / np.linalg.norm(gradient)
    assert error < 0.2


def test_tensors_of_different_names_have_their_own_residuals() -> None:
    compressor = TopK(density=0.1)
    compressor.compress("a", gradient_of(0))
    compressor.compress("b", gradient_of(1, 1000))
    with pytest.raises(ValueError, match="'a' has shape"):
        compressor.compress("a", gradient_of(1, 1000))
    compressor.reset("a")
    compressor.compress("a", gradient_of(1, 1000))


def test_topk_keeps_the_blocks_of_most_energy() -> None:
    gradient = gradient_of(3)
    sent = TopK(density=0.1, error_feedback=False).compress("w", gradient)
    rows = np.concatenate([gradient, np.zeros(-SIZE % 256)]).reshape(-1, 256)
    largest = np.argsort(-(rows.astype(np.float64) ** 2).sum(axis=1))[:4]
    assert sent.level == 4
    assert set(np.flatnonzero(nonzero_blocks(sent.values, 256))) == set(largest)
    assert (sent.values[sent.values != 0] == gradient[sent.values != 0]).all()
    assert sent.alpha == pytest.approx((rows[largest] ** 2).sum() / (rows**2).sum(), rel=1e-5)


def test_threshold_keeps_what_reaches_it() -> None:
    gradient = np.repeat([0.5, 2.0, 1.0], 256).astype(np.float32)
    sent = Threshold(threshold=1.0).compress("w", gradient)
    assert list(nonzero_blocks(sent.values, 256)) == [False, True, True]
    assert Threshold(threshold=0.0).compress("w", np.zeros(10)).level == 0


@pytest.mark.parametrize("rest", [1, 10, 128, 255])
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_threshold_counts_the_elements_that_a_block_has(blocks: int, rest: int) -> None:
    """The last block, and so every bias, is shorter than the others; its mean is of its own."""
    for value, reached in ((1.001, True), (0.999, False)):
        gradient = np.full(256 * blocks + rest, 0.5, dtype=np.float32)
        gradient[256 * blocks :] = value
        sent = Threshold(threshold=1.0).compress("w", gradient)
        assert list(nonzero_blocks(sent.values, 256)) == [False] * blocks + [reached]
    assert Threshold(threshold=1.0).compress("w", np.array(2.0, dtype=np.float32)).values == 2


@pytest.mark.parametrize("seed", range(10))
def test_approximate_topk_is_topk_but_for_a_band(seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    magnitudes = np.abs(random.standard_normal(5000)) ** random.uniform(0.5, 4)
    for count in (1, 5, 50, 500, 2500, 4999, 5000):
        units = approximate_top_k(magnitudes, count, 30, random)
        assert len(set(units)) == count
        exact = np.sort(magnitudes)[-count:].sum()
        assert magnitudes[units].sum() == pytest.approx(exact, rel=1e-5)


def test_approximate_topk_with_few_passes_and_with_ties() -> None:
    random = np.random.default_rng(0)
    assert len(set(approximate_top_k(np.ones(100), 10, 30, random))) == 10
    magnitudes = np.abs(random.standard_normal(5000))
    units = approximate_top_k(magnitudes, 100, 3, random)
    assert len(set(units)) == 100
    # Three halvings leave a band an eighth as wide as the distance from mean to maximum.
    width = (magnitudes.max() - magnitudes.mean()) / 8
    assert magnitudes[units].min() >= np.sort(magnitudes)[-100] - width
    with pytest.raises(ValueError, match="count 0"):
        approximate_top_k(magnitudes, 0, 30, random)


def test_random_blocks_are_the_same_on_ranks_that_share_a_seed() -> None:
    ranks = [RandomK(density=0.2, seed=5) for _ in range(3)]
    masks = [nonzero_blocks(rank.compress("w", gradient_of(1)).values, 256) for rank in ranks]
    assert (masks[0] == masks[1]).all()
    assert (masks[0] == masks[2]).all()
    assert masks[0].sum() == 8


UNBIASED: dict[str, Callable[[int], Compressor]] = {
    "randomk": lambda seed: RandomK(density=0.25, unit=4, error_feedback=False, seed=seed),
    "stochastic": lambda seed: Cat(
        cost=Affine(1.0, 200.0), unit=1, scheme=Scheme.STOCHASTIC, fold=False, seed=seed
    ),
    "stochastic blocks": lambda seed: Cat(
        cost=Affine(1.0, 100.0), unit=8, scheme=Scheme.STOCHASTIC, fold=False, seed=seed
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("method", UNBIASED)
def test_unbiased_methods_are_unbiased(method: str) -> None:
    """z-test of each of 64 elements over 4,000 draws, two-sided at 6 sigma.

    By the central limit theorem a false alarm has probability 2e-9 an element, 1.3e-7 a method.
    """
    compressor = UNBIASED[method](11)
    assert not compressor.feedback
    gradient = gradient_of(7, 64).astype(np.float64)
    draws = np.array([compressor.compress("w", gradient).values for _ in range(4000)])
    error = draws.mean(axis=0) - gradient
    deviation = draws.std(axis=0) / math.sqrt(len(draws))
    assert deviation.max() > 0, "it is random"
    assert (np.abs(error) <= 6 * deviation + 1e-12 * np.abs(gradient)).all()


def test_folded_schemes_lose_one_minus_alpha_of_the_energy() -> None:
    gradient = gradient_of(5, 2000).astype(np.float64)
    energy = gradient @ gradient
    for scheme in (Scheme.SPARSE, Scheme.SIGNS):
        sent = Cat(cost=Affine(), unit=1, scheme=scheme).compress("w", gradient)
        assert sent.alpha is not None
        lost = ((sent.values - gradient) ** 2).sum()
        assert lost == pytest.approx((1 - sent.alpha) * energy)


def test_lanes_that_the_switch_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="lane_bits is 12"):
        Uncompressed(lane_bits=12)


@pytest.mark.parametrize(
    ("units", "why"),
    [([0, 4], "units 0 to 4 were chosen; there are 0 to 3"), ([-1], "units -1"), ([2, 2], "twice")],
)
def test_units_that_are_not_there_are_refused(units: list[int], why: str) -> None:
    class Chooser(Compressor):
        def select(self, *given: Any) -> Selected:
            return Selected(np.array(units))

    chooser = Chooser()
    with pytest.raises(ValueError, match=why):
        chooser.compress("w", np.ones(1000, np.float32))
    assert chooser.states["w"].residual is None


@pytest.mark.parametrize("name", ["topk:0.1", "cat", "cat:own", "powersgd:1", "none"])
def test_what_is_handed_out_stays_as_it_is(name: str) -> None:
    """Memory is used again, but not while somebody has it."""
    compressor = compressor_by_name(name, 1)
    compressor.describe("w", [(600, 500)])
    held = []
    for step in range(6):
        gradient = gradient_of(step, 300_000)
        proposed = compressor.propose("w", gradient)
        values = compressor.compress("w", gradient, proposed).values
        result = compressor.decompress("w", values.copy())
        held += [(one, one.copy()) for one in (values[7:], result.reshape(-1, 10))]
    assert all((one == before).all() for one, before in held)


def test_with_feedback_the_level_comes_from_the_gradient_alone() -> None:
    """A large flat residual changes what is sent, not how much of it."""
    gradient = gradient_of(3, 4000)
    compressor = Cat(cost=Affine(), unit=1)
    first = compressor.compress("w", gradient).level
    flat = np.full(4000, 10 * np.abs(gradient).max(), dtype=np.float32)
    compressor.states["w"].residual = flat
    second = compressor.compress("w", gradient)
    assert second.level == first < 4000
    # Nothing but the residual is left: it continues being sent.
    assert compressor.compress("w", np.zeros(4000, np.float32)).level == 1


def test_own_levels_differ_and_an_agreed_one_is_their_mean() -> None:
    gradients = [gradient_of(seed) ** (1 if seed < 3 else 3) for seed in range(4)]
    own = [Cat(world_size=4, unit=1, cost=Affine()) for _ in range(4)]
    levels = [one.level for one in exchange(list(own), gradients)[0]]
    assert len(set(levels)) > 1
    together = [
        Cat(world_size=4, unit=1, cost=Affine(), agreement=Agreement.LEVEL) for _ in range(4)
    ]
    agreed = [one.level for one in exchange(list(together), gradients)[0]]
    assert agreed == [round(sum(levels) / 4)] * 4


def test_ranks_that_agree_on_blocks_send_the_mean_gradient_on_them() -> None:
    gradients = [gradient_of(seed) for seed in range(4)]
    link = SwitchLink(4, 1e8, 1e-4)
    ranks = [Cat(world_size=4, cost=link, agreement=Agreement.BLOCKS) for _ in range(4)]
    sent, total = exchange(list(ranks), gradients)
    masks = np.array([nonzero_blocks(one.values, 256) for one in sent])
    assert (masks == masks[0]).all()
    assert 0 < masks[0].sum() < 41
    kept = np.repeat(masks[0], 256)[:SIZE]
    exact = np.sum(gradients, axis=0)
    assert np.allclose(total[kept], exact[kept])
    with pytest.raises(ValueError, match="agree on blocks"):
        Cat(agreement=Agreement.BLOCKS, scheme=Scheme.SIGNS)
    with pytest.raises(ValueError, match="pass the sum of proposals"):
        ranks[0].compress("w", gradients[0])


@pytest.mark.parametrize("kind", [Cat, MemoryCat])
@pytest.mark.parametrize("exponent", [66, -76, 100, -100])
def test_ranks_agree_alike_whatever_the_gradients_scale(kind: type[Cat], exponent: int) -> None:
    """2^66 is 7e19 and 2^-76 is 1e-23: what is squared leaves float32's range."""

    def masks(scale: np.float32) -> list[Array]:
        link = SwitchLink(4, 1e8, 1e-4)
        ranks = [kind(world_size=4, cost=link, agreement=Agreement.BLOCKS) for _ in range(4)]
        result = []
        for step in range(4):
            gradients = [scale * gradient_of(10 * seed + step) for seed in range(4)]
            sent = exchange(list(ranks), gradients)[0]
            result.append(np.array([nonzero_blocks(one.values, 256) for one in sent]))
        return result

    scaled, plain = masks(np.float32(2.0**exponent)), masks(np.float32(1))
    for one, other in zip(scaled, plain, strict=True):
        assert 0 < other[0].sum() < 41
        assert (one == other).all()


def test_ranks_agree_on_the_largest_numbers_that_there_are() -> None:
    ranks = [Cat(world_size=4, cost=Affine(), agreement=Agreement.BLOCKS) for _ in range(4)]
    gradient = np.full(1000, 3e38, dtype=np.float32)
    gradient[256:] = 1.0
    proposed = ranks[0].propose("w", gradient)
    assert proposed is not None
    agreed = np.float32(4) * proposed
    assert np.isfinite(agreed).all()
    sent = ranks[0].compress("w", gradient, agreed)
    assert list(nonzero_blocks(sent.values, 256)) == [True, False, False, False]


def test_overlap_is_learnt_from_the_sum() -> None:
    same = [TopK(world_size=4, density=0.1) for _ in range(4)]
    exchange(list(same), [gradient_of(1)] * 4)
    assert same[0].states["w"].overlap == 1.0
    other = [TopK(world_size=4, density=0.1) for _ in range(4)]
    apart = [np.roll(gradient_of(1, 256 * 40), 256 * 5 * shift) for shift in range(4)]
    exchange(list(other), apart)
    assert other[0].states["w"].overlap < 0.5


def test_everything_is_sent_when_the_union_fills_up() -> None:
    rule = DenseSwitchOver(SwitchLink(4, 1e9))
    dense = TopK(world_size=4, density=0.8, switch_over=rule).compress("w", gradient_of(1))
    assert dense.dense
    assert dense.blocks == dense.total_blocks == 41
    assert (dense.values == gradient_of(1)).all()
    sparse = TopK(world_size=4, density=0.1, switch_over=rule).compress("w", gradient_of(1))
    assert not sparse.dense


def test_feedback_is_refused_for_what_is_no_contraction() -> None:
    with pytest.raises(ValueError, match="fold=True"):
        Cat(fold=False, error_feedback=True)
    for scheme in Scheme:
        assert not Cat(fold=False, scheme=scheme).feedback, scheme
        assert Cat(scheme=scheme).feedback, scheme


def test_zero_gradients_send_nothing() -> None:
    for maker in MAKERS.values():
        sent = maker().compress("w", np.zeros(3000, np.float32))
        assert not sent.values.any()
        assert sent.blocks == 0


def test_compressed_allreduce_agrees_before_it_sums() -> None:
    communicator = EqualRanks(1)
    reduce = CompressedAllreduce(communicator, Cat(cost=Payload(), agreement=Agreement.BLOCKS))
    gradient = gradient_of(1)
    mean = reduce.mean(gradient, "w")
    assert communicator.names == ["w/level", "w"]
    assert reduce.latest["w"].level == 1
    assert (mean == reduce.latest["w"].values).all()
    with pytest.raises(ValueError, match="made for 4 ranks"):
        CompressedAllreduce(communicator, Cat(world_size=4))


@pytest.mark.parametrize(
    ("text", "precisions"),
    [("int16", ["int16"]), ("topk:0.1/int8", ["int8"]), ("cat/int16", [None, "int16"])],
)
def test_narrow_lanes_are_those_of_the_all_reduce(text: str, precisions: list[str | None]) -> None:
    communicator = EqualRanks(1)
    reduce = CompressedAllreduce(communicator, compressor_by_name(text, 1))
    gradient = gradient_of(1)
    total = reduce.sum(gradient, "w")
    assert communicator.precisions == precisions, "the ranks agree in full precision"
    sent = total != 0
    assert (total[sent] == gradient[sent]).all(), "rounded twice"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("none", Uncompressed),
        ("int8", Uncompressed),
        ("topk:0.1", TopK),
        ("topk:0.1/int8", TopK),
        ("mstopk:0.1", ApproximateTopK),
        ("randomk:0.5", RandomK),
        ("threshold:0.01", Threshold),
        ("cat", MemoryCat),
        ("cat:own", MemoryCat),
        ("cat:level/int8", MemoryCat),
        ("cat:paper", Cat),
        ("cat:paper,level", Cat),
        ("cat:blocks,paper/int16", Cat),
        ("cat:signs/int8", Cat),
        ("cat:stochastic", Cat),
    ],
)
def test_compressors_have_names(text: str, kind: type[Compressor]) -> None:
    compressor = compressor_by_name(text, 4)
    assert type(compressor) is kind
    gradients = [gradient_of(seed) for seed in range(4)]
    link = SwitchLink(4, 1e7, 1e-3)  # as measured: its lanes are those of a name without any
    ranks = [compressor_by_name(text, 4, link) for _ in range(4)]
    for _ in range(2):
        exchange(ranks, gradients)
    assert compressor.lane_bits == (8 if "int8" in text else 16 if "int16" in text else 32)


@pytest.mark.parametrize("cost", [None, SwitchLink(4, 1e7, 1e-3, slots=8), Affine()])
@pytest.mark.parametrize(
    "text",
    ["topk:0.9", "mstopk:0.9", "randomk:0.9", "threshold:0", "threshold:0.001/int16"]
    + [f"cat:{kind}" for kind in ("own", "level", "paper", "signs", "stochastic/int8")],
)
def test_named_kinds_send_everything_where_the_union_fills_up(
    text: str, cost: CostModel | None
) -> None:
    compressor = compressor_by_name(text, 4, cost)
    assert compressor.switch_over is not None
    link = compressor.switch_over.link
    assert (link.workers, link.lanes) == (4, compressor.lanes)
    assert link.slots == (8 if isinstance(cost, SwitchLink) else 32)
    assert compressor_by_name("cat", 4, cost).switch_over is None, "equal choices never fill up"


@pytest.mark.parametrize("kind", ["threshold:1", "cat:signs", "cat:stochastic"])
def test_everything_is_sent_as_it_is(kind: str) -> None:
    """Also by the schemes that send something else than the gradient's own numbers."""
    gradient = np.ones(256 * 20, dtype=np.float32)
    gradient[:256] = 0.01
    sent = compressor_by_name(kind, 4, Affine(1e-9)).compress("w", gradient)
    assert sent.dense
    assert (sent.values == gradient).all()
    assert sent.step == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no compressor has that name"),
        ("topk", "topk: needs a number, not ''"),
        ("topk:2", "density 2.0 is not within"),
        ("topk:x", "topk: needs a number, not 'x'"),
        ("cat:x", "there is no 'x' kind of cat"),
        ("cat:own,blocks", "own and blocks exclude each other"),
        ("cat:signs,blocks", "ranks can agree on blocks with scheme"),
        ("int2", "no compressor has that name"),
        ("topk:0.1/int2", "lanes are int16, int8 or int4, not 'int2'"),
        ("threshold:-1", "threshold -1.0 is negative"),
    ],
)
def test_other_names_are_refused_with_the_known_ones(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"compression {text!r}: {why}")) as raised:
        compressor_by_name(text, 4)
    assert "Known: cat, cat:level, " in str(raised.value)
    assert ", topk:SHARE, each of them with /int16" in str(raised.value)
