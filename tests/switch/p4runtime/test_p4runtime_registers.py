# SPDX-License-Identifier: Apache-2.0
"""Registers over P4Runtime: read, not written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import INSERT, MODIFY, Builder, Client, exact
from switch_peer import ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

SEEN = "ingress.seen"


def cell(build: Builder, index: int | None, value: int | None = None) -> Any:
    entry = p4rt.RegisterEntry(register_id=build.id(SEEN))
    if index is not None:
        entry.index.index = index
    if value is not None:
        entry.data.bitstring = bytes([value])
    return entry


def count_frames(features: Client, build: Builder, target: Target) -> None:
    """Three frames come in by port 1."""
    left, right = target.plug(1), target.plug(2)
    key = [exact(1, 0x020000000002), exact(2, 1)]
    features.write((INSERT, build.entry("ingress.exact_table", key, ("ingress.forward", 2))))
    for _ in range(3):
        left.send(ethernet(b""))
        right.receive()


def test_a_cell_is_read(features: Client, build: Builder, target: Target) -> None:
    count_frames(features, build, target)
    assert features.read(cell(build, 1)) == [cell(build, 1, 3)]
    assert features.read(cell(build, 0)) == [cell(build, 0, 0)]


def test_many_cells_are_read_by_one_request(
    features: Client, build: Builder, target: Target
) -> None:
    count_frames(features, build, target)
    everything = [cell(build, i, 3 if i == 1 else 0) for i in range(16)]
    assert features.read(cell(build, None)) == everything
    assert features.read(p4rt.RegisterEntry()) == everything  # the only register
    assert features.read(*(cell(build, i % 16) for i in range(160))) == everything * 10


def test_a_cell_that_there_is_not(features: Client, build: Builder) -> None:
    code, text = features.read_refused(cell(build, 16))
    assert code == "OUT_OF_RANGE"
    assert "0 to 15" in text
    assert features.read_refused(cell(build, -1))[0] == "INVALID_ARGUMENT"


def test_a_register_that_there_is_not(features: Client) -> None:
    assert features.read_refused(p4rt.RegisterEntry(register_id=1))[0] == "INVALID_ARGUMENT"


def test_an_index_needs_a_register(features: Client) -> None:
    message = p4rt.RegisterEntry()
    message.index.index = 1
    assert features.read_refused(message)[0] == "INVALID_ARGUMENT"


def test_cells_cannot_be_written(features: Client, build: Builder) -> None:
    code, text = features.refused(MODIFY, cell(build, 1, 7))
    assert code == "UNIMPLEMENTED"
    assert "read, not written" in text
