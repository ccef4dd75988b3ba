# SPDX-License-Identifier: Apache-2.0
"""Rounds and bytes, against what docs/protocol.md says and hand-computed cases."""

from __future__ import annotations

from typing import Any

import pytest
from p4reduce_lab.planning.framing import LinkLoad, PlannedTensor


def test_dense_floats_fill_blocks_of_256() -> None:
    load = PlannedTensor(1000).load(4)
    assert load == LinkLoad(4, up=1102, down=1102, opening=78)
    assert load.octets_up(slots=32) == 4 * 1102 + 4 * 78
    assert load.octets_up(slots=2) == 4 * 1102 + 2 * 78


@pytest.mark.parametrize(("precision", "blocks"), [("int32", 100), ("int16", 50), ("int8", 25)])
def test_narrow_lanes_take_fewer_blocks(precision: str, blocks: int) -> None:
    assert PlannedTensor(25_600, precision).load(4).blocks == blocks


@pytest.mark.parametrize(("precision", "blocks"), [("int32", 400), ("int16", 200), ("int4", 50)])
def test_frames_of_64_lanes_are_four_times_as_many(precision: str, blocks: int) -> None:
    load = PlannedTensor(25_600, precision).load(4, lanes=64)
    assert (load.blocks, load.up, load.down) == (blocks, 334, 334)


def test_aligned_blocks_are_sent_by_all() -> None:
    load = PlannedTensor(256_000, density=0.1, overlap="aligned").load(8)
    assert (load.blocks, load.up) == (100, 1102)


def test_independent_blocks_come_down_as_their_union() -> None:
    load = PlannedTensor(256_000, density=0.5, overlap="independent").load(2)
    assert load.blocks == 750  # 1 - 0.5^2
    # Of three rounds, a rank has something in two.
    assert load.up == pytest.approx((2 * 1102 + 78) / 3)


def test_nothing_at_all_is_a_round_that_opens() -> None:
    load = PlannedTensor(256, density=0).load(2)
    assert load.blocks == 0
    assert load.octets_up(32) == 78


def test_a_part_is_rounded_up() -> None:
    assert LinkLoad(7).part(2).blocks == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"elements": -1}, "elements is -1"),
        ({"precision": "int2"}, "int2"),
        ({"density": 1.5}, r"density is 1\.5"),
        ({"overlap": "half"}, "half"),
    ],
)
def test_what_cannot_be_is_named(wrong: dict[str, object], message: str) -> None:
    arguments: dict[str, Any] = {"elements": 1000, **wrong}
    with pytest.raises(ValueError, match=message):
        PlannedTensor(**arguments)
