# SPDX-License-Identifier: Apache-2.0
"""The price of an all-reduce over the switch, against a protocol played out frame by frame."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import costs
from p4reduce.compression.base import DenseSwitchOver
from p4reduce.compression.costs import SwitchLink
from p4reduce.compression.levels import Scheme
from p4reduce.compression.probe import measure_link


def play(masks: costs.BoolArray, slots: int, last: int, rank: int) -> tuple[int, int, int, int]:
    """Frames and bytes, up and down, of one rank; `last` completes each round."""
    total = masks.shape[1]
    up = down = bytes_up = bytes_down = 0
    for stripe in range(min(slots, total)):
        up, down, bytes_up, bytes_down = up + 1, down + 1, bytes_up + 78, bytes_down + 78
        for block in range(stripe, total, min(slots, total)):
            if not masks[:, block].any():
                continue
            up += 1
            bytes_up += 1102 if masks[rank, block] else 78
            down += 1 if masks[last, block] else 2
            bytes_down += 1102 if masks[last, block] else 2 * 590
    return up, down, bytes_up, bytes_down


@pytest.mark.parametrize("seed", range(8))
def test_traffic_is_the_mean_over_who_comes_last(seed: int) -> None:
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    ranks, total, slots = 3, int(random.integers(1, 40)), int(random.integers(1, 12))
    masks: costs.BoolArray = np.less(random.random((ranks, total)), random.random())
    link = SwitchLink(ranks, 1e9, slots=slots)
    for rank in range(ranks):
        orders = list(permutations(range(ranks)))
        mean = np.mean([play(masks, slots, order[-1], rank) for order in orders], axis=0)
        traffic = link.traffic_of(masks, rank)
        assert [
            traffic.frames_up,
            traffic.frames_down,
            traffic.bytes_up,
            traffic.bytes_down,
        ] == pytest.approx(list(mean))
        stripes = min(slots, total)
        union = np.flatnonzero(masks.any(axis=0))
        longest = max(int(np.sum(union % stripes == start)) for start in range(stripes))
        assert traffic.rounds == 1 + longest


def test_expected_traffic_is_that_of_masks_with_those_counts() -> None:
    masks = np.zeros((4, 64), dtype=np.bool_)
    for rank in range(4):
        masks[rank, rank * 8 : rank * 8 + 8] = True
    link = SwitchLink(4, 1e8, 1e-3, slots=32)
    exact, expected = link.traffic_of(masks), link.traffic(8, 32, 64)
    for name in ("frames_up", "frames_down", "bytes_up", "bytes_down"):
        assert getattr(exact, name) == pytest.approx(getattr(expected, name))


def test_seconds_are_limited_by_bytes_or_by_round_trips() -> None:
    encoding = Scheme.SPARSE.encoding(256 * 64, 256)
    slow = SwitchLink(4, 1e6, 0.0, slots=32, overlap=1.0)
    frames = 64 + 32
    wire_bits = 8 * (64 * 1102 + 32 * 78 + 24 * frames)
    assert slow.dense_cost(encoding) == pytest.approx(wire_bits / 1e6)
    far = SwitchLink(4, 1e12, 0.1, slots=32, overlap=1.0)
    assert far.dense_cost(encoding) == pytest.approx(0.1 * 3, rel=1e-3)
    software = SwitchLink(4, 1e12, 0.0, slots=32, overlap=1.0, frame_seconds=1e-5)
    assert software.dense_cost(encoding) == pytest.approx(2 * frames * 1e-5)


def test_union_lies_between_equal_and_independent_choices() -> None:
    assert SwitchLink(4, 1e9, overlap=1.0).union(10, 100) == pytest.approx(10)
    assert SwitchLink(4, 1e9).union(10, 100) == pytest.approx(100 * (1 - 0.9**4))
    random = np.random.default_rng(0)
    counts = [
        len(set(np.concatenate([random.choice(100, 10, replace=False) for _ in range(4)])))
        for _ in range(2000)
    ]
    # The mean's standard deviation is about 0.05; six of them: false alarms below 1e-8.
    assert np.mean(counts) == pytest.approx(float(SwitchLink(4, 1e9).union(10, 100)), abs=0.3)


def test_elements_have_no_price_on_the_switch() -> None:
    with pytest.raises(ValueError, match="blocks of 256 lanes"):
        SwitchLink(4, 1e9).cost([1], Scheme.SPARSE.encoding(1000))
    with pytest.raises(ValueError, match="blocks of 1024 lanes"):
        SwitchLink(4, 1e9, lane_bits=8).cost([1], Scheme.SPARSE.encoding(10_000, 256))


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"bandwidth": 0}, {"rtt": -1}, {"overlap": 2}, {"lane_bits": 12}],
)
def test_links_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SwitchLink(**{"workers": 4, "bandwidth": 1e9, **wrong})  # type: ignore[arg-type]


def test_dense_is_preferred_where_leaving_out_saves_no_frames() -> None:
    rule = DenseSwitchOver(SwitchLink(4, 1e9, slots=32))
    total = 1000
    preferred = [rule.prefers_dense(own, total, 0.0) for own in range(1, total + 1)]
    first = preferred.index(True)
    assert all(preferred[first:])
    for own in (first, first + 1):
        union = total * (1 - (1 - own / total) ** 4)
        fewer = 3 * union - own < 2 * total
        assert fewer != rule.prefers_dense(own, total, 0.0)
    # Equal choices never fill up, so that leaving out always saves.
    assert not any(rule.prefers_dense(own, total, 1.0) for own in range(1, total))


class ModelledCommunicator:
    """Advances its own clock by what a link would take."""

    size = 4
    slots = 32

    def __init__(self, link: SwitchLink) -> None:
        self.link, self.now = link, 0.0

    def allreduce(self, array: npt.NDArray[Any], *, name: str) -> npt.NDArray[Any]:
        blocks = -(-array.size // 256)
        sent = blocks if array.any() else 0
        frames = min(32, blocks) + sent
        # Two rounds, and the time for what does not fit into the first of them.
        alone = 2 if sent else 0
        bits = 8 * ((frames - alone) * 102 + max(0, sent - 1) * 1024)
        handling = 2 * (frames - alone) * self.link.frame_seconds
        rounds = 2 if sent else 1
        self.now += rounds * self.link.rtt + max(bits / self.link.bandwidth, handling)
        return 4 * array


# The first is limited by its bytes, the second by its frames, full or not, the third by both.
@pytest.mark.parametrize("frame_seconds", [1e-6, 1e-4, 1e-5])
def test_a_link_is_measured_as_it_is(frame_seconds: float) -> None:
    true = SwitchLink(4, 2e8, 3e-4, frame_seconds=frame_seconds)
    communicator = ModelledCommunicator(true)
    found = measure_link(communicator, clock=lambda: communicator.now)
    assert found.rtt == pytest.approx(true.rtt)
    assert (found.workers, found.slots) == (4, 32)
    if frame_seconds < 1e-4:
        assert found.bandwidth == pytest.approx(true.bandwidth)
    if frame_seconds > 1e-6:
        assert found.frame_seconds == pytest.approx(true.frame_seconds)
    # What is not found out does not limit anything.
    levels = np.arange(1, 1025)
    encoding = Scheme.SPARSE.encoding(1024 * 256, 256)
    assert found.cost(levels, encoding) == pytest.approx(true.cost(levels, encoding), rel=0.02)
    with pytest.raises(ValueError, match="blocks 1"):
        measure_link(communicator, blocks=1)


def test_a_clock_that_stands_still_gives_a_fast_link() -> None:
    communicator = ModelledCommunicator(SwitchLink(4, 2e8, 3e-4, frame_seconds=1e-5))
    found = measure_link(communicator, clock=lambda: 0.0)
    assert (found.rtt, found.frame_seconds) == (0.0, 0.0)
