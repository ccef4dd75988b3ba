# SPDX-License-Identifier: Apache-2.0
"""Registers over P4Runtime, with both engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import DELETE, INSERT, MODIFY, Builder, Client, config, exact
from switch_peer import ethernet
from two_targets import Start

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures", "two_targets")
pytestmark = pytest.mark.usefixtures("engine")

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


def test_a_written_cell_is_what_packets_find(
    features: Client, build: Builder, target: Target
) -> None:
    features.write((MODIFY, cell(build, 1, 40)), (MODIFY, cell(build, 15, 0xFF)))
    count_frames(features, build, target)
    wanted = {1: 43, 15: 0xFF}
    assert features.read(cell(build, None)) == [cell(build, i, wanted.get(i, 0)) for i in range(16)]
    features.write((MODIFY, cell(build, 1, 0)))
    assert features.read(cell(build, 1)) == [cell(build, 1, 0)]


def test_all_cells_are_written_at_once(features: Client, build: Builder) -> None:
    features.write((MODIFY, cell(build, None, 9)))
    assert features.read(cell(build, None)) == [cell(build, i, 9) for i in range(16)]


def test_what_cannot_be_written(features: Client, build: Builder) -> None:
    features.write((MODIFY, cell(build, 1, 5)))
    wide = p4rt.RegisterEntry(register_id=build.id(SEEN), data={"bitstring": b"\1\0\0\0\0"})
    for kind, message, expected, complaint in (
        (INSERT, cell(build, 1, 7), "INVALID_ARGUMENT", "can only be MODIFYed"),
        (DELETE, cell(build, 1, 7), "INVALID_ARGUMENT", "can only be MODIFYed"),
        (MODIFY, cell(build, 16, 7), "OUT_OF_RANGE", "not within 0 to 15"),
        (MODIFY, cell(build, -1, 7), "INVALID_ARGUMENT", "is negative"),
        (MODIFY, cell(build, 1), "INVALID_ARGUMENT", "must be a bitstring"),
        (MODIFY, p4rt.RegisterEntry(data={"bitstring": b"\1"}), "INVALID_ARGUMENT", "id 0x0"),
        (MODIFY, wide, "INVALID_ARGUMENT", "only 32 are allowed"),
    ):
        code, text = features.refused(kind, message)
        assert (code, complaint in text) == (expected, True), text
    for data in ({"bool": True}, {"enum_value": b"\1"}, {"struct": {}}, {"bitstring": b""}):
        message = p4rt.RegisterEntry(register_id=build.id(SEEN), index={"index": 1}, data=data)
        assert features.refused(MODIFY, message)[0] == "INVALID_ARGUMENT", data
    assert features.read(cell(build, 1)) == [cell(build, 1, 5)]


def of_type(width: int, **spec: Any) -> Any:
    """The program with cells of another width and type; no packet is run through it."""
    message = config("p4rt_features")
    program = json.loads(message.p4_device_config)
    (array,) = program["register_arrays"]
    array["bitwidth"] = width
    message.p4_device_config = json.dumps(program).encode()
    del message.p4info.registers[:]
    info = message.p4info.registers.add(size=16, type_spec=spec)
    info.preamble.id, info.preamble.name = 0x16000001, SEEN
    message.p4info.type_info.serializable_enums["Kind"].underlying_type.bitwidth = width
    original = message.p4info.type_info.new_types["Port"].original_type
    original.bitstring.bit.bitwidth = width
    return message


@pytest.mark.parametrize(
    ("width", "number", "data"),
    [
        (16, -739, b"\xfd\x1d"),
        (12, 2047, b"\x07\xff"),
        (9, -256, b"\xff\x00"),
        (9, 255, b"\x00\xff"),
        (8, -1, b"\xff"),
        (64, -(1 << 63), b"\x80" + bytes(7)),
        (300, -5, b"\xfb"),
        (64, 0, b"\0"),
    ],
)
def test_signed_cells(primary: Client, width: int, number: int, data: bytes) -> None:
    primary.set_config(of_type(width, bitstring={"int": {"bitwidth": width}}))
    entry = p4rt.RegisterEntry(register_id=0x16000001, index={"index": 3})
    longer = number.to_bytes(len(data) + 2, "big", signed=True)
    for given in (data, longer):
        entry.data.bitstring = given
        primary.write((MODIFY, entry))
        (read,) = primary.read(entry)
        assert read.data.bitstring == data
    for outside in (1 << (width - 1), -(1 << (width - 1)) - 1):
        entry.data.bitstring = outside.to_bytes(width // 8 + 1, "big", signed=True)
        code, text = primary.refused(MODIFY, entry)
        assert (code, f"signed number of {width} bits" in text) == ("INVALID_ARGUMENT", True)


def test_wide_cells_and_other_types(primary: Client) -> None:
    """A cell of an enum with numbers has a field of its own; a new type is what it is made of."""
    for width in (1, 31, 64, 65, 2048):
        biggest = ((1 << width) - 1).to_bytes((width + 7) // 8, "big")
        for spec, field in (
            ({"bitstring": {"bit": {"bitwidth": width}}}, "bitstring"),
            ({"new_type": {"name": "Port"}}, "bitstring"),
            ({"serializable_enum": {"name": "Kind"}}, "enum_value"),
        ):
            primary.set_config(of_type(width, **spec))
            entry = p4rt.RegisterEntry(register_id=0x16000001, index={"index": 15})
            setattr(entry.data, field, biggest)
            primary.write((MODIFY, entry))
            assert primary.read(entry) == [entry]
            if field == "enum_value":
                entry.data.bitstring = biggest
                code, text = primary.refused(MODIFY, entry)
                assert (code, "must be a enum_value" in text) == ("INVALID_ARGUMENT", True)


def test_a_register_that_the_compiler_left_out(start_ours: Start) -> None:
    client = start_ours("unused")
    entry = p4rt.RegisterEntry(register_id=Builder("unused").id("I.never_read"))
    entry.data.bitstring = b"\x2a"
    client.write((MODIFY, entry))
    assert [read.data.bitstring for read in client.read(entry)] == [b"\x2a"] * 4
