# SPDX-License-Identifier: Apache-2.0
"""Registers and counters (programs/state.p4), also with indices that are not there."""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

READ, WRITE = 0, 1
SIZE = 268


@pytest.fixture
def pipeline() -> Pipeline:
    return load("state")


def run(
    pipeline: Pipeline,
    op: int,
    index: int,
    small: int = 0,
    medium: int = 0,
    wide: int = 0,
    s: int = 0,
) -> tuple[int, int, int, int]:
    """The four fields of the packet that comes back to its port."""
    head = struct.pack(">BIBI", op, index, small, medium)
    frame = head + wide.to_bytes(256, "big") + struct.pack(">h", s)
    ((port, answer),) = pipeline.process(12, frame)
    assert port == 12
    small, medium = struct.unpack_from(">BI", answer, 5)
    return (
        small,
        medium,
        int.from_bytes(answer[10:266], "big"),
        struct.unpack(">h", answer[266:])[0],
    )


def test_registers_of_every_width(pipeline: Pipeline) -> None:
    assert run(pipeline, READ, 1) == (0, 0, 0, 0)
    wide = (1 << 2048) - 12345
    run(pipeline, WRITE, 1, small=0xFF, medium=0xDEADBEEF, wide=wide, s=-5)
    # small: 5 bits of 0xFF and 1 more is 0 again.
    assert run(pipeline, READ, 1) == (0, 0xDEADBEEF, wide + 1, -5)
    assert pipeline.registers["I.small"].cells[1] == 0
    assert pipeline.registers["I.medium"].cells[1] == 0xDEADBEEF
    assert pipeline.registers["I.wide"].cells[1] == wide + 1
    assert pipeline.registers["I.signed"].cells[1] == 0xFFFB
    assert pipeline.registers["I.medium"].cells[0] == 0


def test_what_the_control_plane_writes_is_read(pipeline: Pipeline) -> None:
    pipeline.registers["I.small"].cells[0] = 31
    pipeline.registers["I.signed"].cells[0] = 0xFFFF
    assert run(pipeline, READ, 0) == (31, 0, 0, -1)


@pytest.mark.parametrize("index", [4, 8, 0x7FFFFFFF, 0xFFFFFFFF])
def test_cells_that_are_not_there(pipeline: Pipeline, index: int) -> None:
    """Written: ignored. Read: the target keeps its value. Counted: nothing."""
    run(pipeline, WRITE, index, small=3, medium=4, wide=5, s=6)
    assert not any(pipeline.registers["I.small"].cells)
    assert not any(pipeline.registers["I.signed"].cells)
    small, medium, _, s = run(pipeline, READ, index, small=0, medium=77 if index > 7 else 0, s=-9)
    assert (small, s) == (0, -9)
    assert medium == (77 if index > 7 else 4)
    assert [pipeline.counters["I.counts"].read(i) for i in range(4)] == [(0, 0)] * 4


def test_counter(pipeline: Pipeline) -> None:
    counter = pipeline.counters["I.counts"]
    assert (counter.size, counter.is_direct) == (4, False)
    for index in (0, 2, 2, 3):
        run(pipeline, READ, index)
    assert [counter.read(i) for i in range(4)] == [(1, SIZE), (0, 0), (2, 2 * SIZE), (1, SIZE)]
    counter.write(1, 100, 2000)
    run(pipeline, READ, 1)
    assert counter.read(1) == (101, 2000 + SIZE)
    with pytest.raises(IndexError, match=r"cells 0\.\.3"):
        counter.read(4)


def test_pipelines_share_nothing() -> None:
    one, other = load("state"), load("state")
    run(one, WRITE, 0, medium=5)
    assert other.registers["I.medium"].cells[0] == 0
    assert other.stats.frames_in == 0
