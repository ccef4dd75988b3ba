# SPDX-License-Identifier: Apache-2.0
"""What is measured, and the bounds that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from p4reduce_lab.compare.cells import (
    CONTENDERS,
    CompareCase,
    cells_of,
    expected_seconds,
    standard,
    standard_udp,
)
from p4reduce_lab.compare.tensors import is_sum, tensor

MIB = 1 << 20


def test_the_bound_of_a_switch_is_the_tensor_once_with_its_headers() -> None:
    # 2 MiB are 2,048 blocks, each a frame of 1,102 bytes; one more frame of 78 opens.
    seconds = CompareCase("p4reduce", "int32").bound(8, 2 * MIB, 10)
    assert seconds == pytest.approx((2048 * 1102 + 78) * 8 / 10e6)
    assert CompareCase("p4reduce", "int32").bound(2, 2 * MIB, 10) == seconds  # whatever the ranks
    quarter = CompareCase("p4reduce", "int8").bound(8, 2 * MIB, 10)
    assert quarter == pytest.approx((512 * 1102 + 78) * 8 / 10e6)


def test_the_bound_of_hosts_is_that_of_the_ring() -> None:
    # 2 (n - 1) / n S/B, in frames of 1,514 bytes with 1,448 of payload.
    seconds = CompareCase("gloo", "float32").bound(4, 2 * MIB, 10)
    assert seconds == pytest.approx(1.5 * 2 * MIB * 1514 / 1448 * 8 / 10e6)
    assert CompareCase("gloo", "float16").bound(4, 2 * MIB, 10) == pytest.approx(seconds / 2)
    assert CompareCase("mpi", "float32").bound(2, MIB, 10) == pytest.approx(
        MIB * 1514 / 1448 * 8 / 10e6
    )


def test_a_udp_port_adds_a_datagrams_headers_and_shortens_float32() -> None:
    seconds = CompareCase("p4reduce", "int16").bound(4, 2 * MIB, 1000, "udp")
    assert seconds == pytest.approx((1024 * 1104 + 80) * 8 / 1e9)
    seconds = CompareCase("p4reduce", "int32").bound(4, 2 * MIB, 1000, "udp")
    assert seconds == pytest.approx((2048 * 976 + 80) * 8 / 1e9)
    gloo = CompareCase("gloo", "float32")
    assert gloo.bound(4, MIB, 10, "udp") == gloo.bound(4, MIB, 10, "ethernet")


@pytest.mark.parametrize(("overlap", "union"), [("aligned", 0.1), ("independent", 1 - 0.9**4)])
def test_the_bound_of_a_sparse_tensor_is_that_of_the_union(overlap: str, union: float) -> None:
    seconds = CompareCase("p4reduce", "int32", 0.1, overlap).bound(4, 2 * MIB, 10)
    assert seconds == pytest.approx((2048 * union * 1102 + 78) * 8 / 10e6)


def test_everything_with_everything() -> None:
    cells = cells_of(
        ranks=[4, 2],
        rates=[10, 0],
        sizes=[4096, MIB],
        precisions=["int32", "int8"],
        densities=[1.0, 0.1],
        contenders=["p4reduce", "gloo"],
        turns=3,
    )
    assert [(cell.ranks, cell.rate, cell.size) for cell in cells] == [
        (ranks, rate, size) for ranks in (4, 2) for rate in (10, None) for size in (4096, MIB)
    ]
    assert [case.name for case in cells[0].cases] == [
        "p4reduce",
        "gloo",
        "p4reduce int8",
        "gloo float16",
        "p4reduce 0.1 aligned",
        "p4reduce 0.1 independent",
    ]


def test_without_p4reduce_there_is_nothing_narrow_or_sparse() -> None:
    (cell,) = cells_of(
        ranks=[2],
        rates=[10],
        sizes=[4096],
        precisions=["int32", "int8"],
        densities=[0.1],
        contenders=["gloo"],
        turns=1,
    )
    assert [case.name for case in cell.cases] == ["gloo"]


def test_the_standard_set_takes_about_ten_minutes() -> None:
    seconds = expected_seconds(list(standard(CONTENDERS)))
    assert 5 * 60 < seconds < 11 * 60


def test_the_standard_set_over_udp_is_time_against_size_at_each_rate() -> None:
    cells = list(standard_udp(CONTENDERS))
    assert {cell.links for cell in cells} == {"udp"}
    assert all(cell.linked for cell in cells)
    assert {cell.rate for cell in cells if cell.ranks == 4} == {100.0, 1000.0, 10_000.0, None}
    assert {cell.rate for cell in cells if cell.ranks == 8} == {1000.0}
    assert all("p4reduce int8" in [case.name for case in cell.cases] for cell in cells)
    assert [case.name for case in next(standard_udp(["gloo"])).cases] == ["gloo"]


@pytest.mark.parametrize(
    "case",
    [
        CompareCase("p4reduce", "int32"),
        CompareCase("p4reduce", "int8"),
        CompareCase("gloo", "float16"),
        CompareCase("p4reduce", "int32", 0.1, "aligned"),
        CompareCase("p4reduce", "int32", 0.1, "independent"),
    ],
    ids=lambda case: case.name,
)
def test_sums_are_told_from_others(case: CompareCase) -> None:
    """The right one passes, as exact as what travels; one number off by a tenth does not."""
    ranks, size = 4, 64 << 10
    tensors = [tensor(case, rank, ranks, size, turn=1) for rank in range(ranks)]
    if case.density < 1:
        present = [np.flatnonzero(one.reshape(-1, 256).any(axis=1)) for one in tensors]
        assert all(len(one) == round(0.1 * 64) for one in present)
        same = all(np.array_equal(present[0], one) for one in present)
        assert same == (case.overlap == "aligned")
    total = np.sum(tensors, axis=0, dtype=np.float32)
    if case.wire == "float16":
        total = total.astype(np.float16).astype(np.float32)
    assert is_sum(total, case, ranks, size, turn=1)
    off = 4.0 if case.wire == "int8" else 0.1
    total[np.abs(total).argmax()] += off
    assert not is_sum(total, case, ranks, size, turn=1)


def test_the_tensors_differ_by_turn_where_they_are_sparse() -> None:
    case = CompareCase("p4reduce", "int32", 0.1, "aligned")
    one, other = (tensor(case, 0, 2, 64 << 10, turn) for turn in range(2))
    assert not np.array_equal(one, other)
