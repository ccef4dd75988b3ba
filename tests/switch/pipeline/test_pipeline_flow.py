# SPDX-License-Identifier: Apache-2.0
"""Control flow and header operations (programs/flow.p4)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from p4reduce_switch.codegen_c import controls
from p4reduce_switch.codegen_c.generate import generate
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(params=["nested", "sequence"])
def pipeline(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str
) -> Iterator[Pipeline]:
    """Both forms of generated code: nested blocks, and the one for graphs that do not nest."""
    if request.param == "sequence":
        monkeypatch.setattr(controls, "DEEPEST", -1)
    generate.cache_clear()  # which knows nothing of this limit
    pipeline = load("flow")
    if engine == "native":
        assert ("goto ingress_0;" in pipeline.source) == (request.param == "sequence")
        assert "switch (" in pipeline.source or request.param == "sequence"
    yield pipeline
    generate.cache_clear()


def trace(pipeline: Pipeline, command: int, argument: int) -> int:
    sent = struct.pack(">BBI", command, argument, 0)
    ((port, out),) = pipeline.process(0, sent + b"tail")
    assert port == 1
    assert (out[:2], out[6:]) == (sent[:2], b"tail")
    return int.from_bytes(out[2:6], "big")


def pairs(pipeline: Pipeline, command: int, *values: int) -> tuple[int, tuple[int, ...]]:
    """The trace, and the 16-bit words after it."""
    sent = struct.pack(f">BBI{len(values)}H", command, 0, 0, *values)
    ((_, out),) = pipeline.process(0, sent)
    return int.from_bytes(out[2:6], "big"), struct.unpack(f">{(len(out) - 6) // 2}H", out[6:])


def test_return_and_exit_in_a_control(pipeline: Pipeline) -> None:
    assert trace(pipeline, 0, 0) == 0x701
    assert trace(pipeline, 0, 1) == 0x101  # return leaves the inner control only
    assert trace(pipeline, 0, 2) == 0x300  # exit leaves everything


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [(5, 0x40 | 0x80 | 2), (15, 0x10 | 0x80 | 2), (25, 0x30 | 0x80 | 2), (99, 0xDEAD), (7, 2)],
)
def test_conditions_and_exit_in_an_action(pipeline: Pipeline, argument: int, wanted: int) -> None:
    assert trace(pipeline, 1, argument) == wanted


@pytest.mark.parametrize("argument", range(16))
def test_ways_that_join_late(pipeline: Pipeline, argument: int) -> None:
    wanted = 0
    if argument & 1:
        wanted = 3 if argument & 2 else 1
    if argument & 3 != 3:
        wanted += argument & 4 and (12 if argument & 8 else 4)
        wanted += 0 if (argument & 12) == 12 else 16
    assert trace(pipeline, 2, argument) == wanted


def test_exit_in_egress(pipeline: Pipeline) -> None:
    assert trace(pipeline, 4, 0) == 5
    assert trace(pipeline, 4, 1) == 4


def test_header_copy(pipeline: Pipeline) -> None:
    assert pairs(pipeline, 0x40, 1, 2, 3, 4) == (0, (3, 4, 3, 4))
    # The second pair is not there: what is copied is that.
    assert pairs(pipeline, 0x40, 1, 2) == (0, ())


def test_header_swap(pipeline: Pipeline) -> None:
    assert pairs(pipeline, 0x43, 1, 2, 3, 4) == (0, (3, 4, 2, 2))


def test_header_comparison(pipeline: Pipeline) -> None:
    assert pairs(pipeline, 0x41, 1, 2, 1, 2) == (7, (1, 2, 1, 2))
    assert pairs(pipeline, 0x41, 1, 2, 1, 3) == (8, (1, 2, 1, 3))
    assert pairs(pipeline, 0x41, 1, 2) == (8, (1, 2))
    assert pairs(pipeline, 0x41) == (7, ())


def test_set_invalid(pipeline: Pipeline) -> None:
    assert pairs(pipeline, 0x42, 1, 2, 3, 4) == (0, ())


def test_set_valid_starts_with_zeros(pipeline: Pipeline) -> None:
    assert pairs(pipeline, 3) == (0, (0, 9))
    assert pairs(pipeline, 0x44, 1, 2, 3, 4) == (0, (0, 0, 3, 4))


@pytest.mark.parametrize(("what", "port"), [(0, 1), (1, None), (2, 2), (3, None)])
def test_a_copy_of_standard_metadata_is_dropped(what: int, port: int | None) -> None:
    frame = bytes((what, 7))
    wanted = [] if port is None else [(port, frame)]
    assert load("drop_copy").process(4, frame) == wanted
