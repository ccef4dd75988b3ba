# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.schema import (
    Op,
    Schema,
    SchemaError,
    TableRow,
    Update,
    decode,
    encode,
)

SCHEMA = Schema(load_program().p4info)
GRANT = {
    "worker_bit": 1 << 63,
    "all_workers": (1 << 64) - 1,
    "slot_base": 992,
    "slot_count": 32,
    "group_full": 2,
    "group_halves": 0xFFFF,
}
ADMISSION = TableRow(
    "admission",
    {"ingress_port": 511, "src_ip": 0x0A4D0001, "job": 0, "rank": 63},
    "grant",
    GRANT,
)


def test_a_row_survives_the_way_there_and_back() -> None:
    message = SCHEMA.update(Update(Op.INSERT, ADMISSION)).entity.table_entry
    assert SCHEMA.row(message) == ADMISSION


def test_deletion_names_the_entry_only() -> None:
    message = SCHEMA.update(Update(Op.DELETE, ADMISSION)).entity.table_entry
    assert not message.HasField("action")
    assert SCHEMA.row(message).match == ADMISSION.match


@given(st.integers(0, 2**64 - 1))
def test_bytestrings_are_canonical(value: int) -> None:
    text = encode(value, 64, "x")
    assert decode(text) == value
    assert text == b"\0" or text[0] != 0


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            TableRow("admissions", {}),
            "no table 'admissions'; there are admission, bridge, delivery",
        ),
        (TableRow("bridge", {"mac": 1}), "table bridge matches on dst_mac, not mac"),
        (
            TableRow("bridge", {"dst_mac": 1 << 48}),
            r"bridge.dst_mac: 281474976710656 does not fit 48",
        ),
        (TableRow("bridge", {"dst_mac": -1}), r"bridge.dst_mac: -1 does not fit 48 bits"),
        (TableRow("bridge", {"dst_mac": 1}, "grant", GRANT), "table bridge has no action 'grant'"),
        (TableRow("bridge", {"dst_mac": 1}, "forward", {}), "action forward takes port, not"),
        (
            TableRow("bridge", {"dst_mac": 1}, "forward", {"port": 512}),
            "forward.port: 512 does not fit",
        ),
    ],
)
def test_what_the_program_does_not_have_is_named(row: TableRow, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        SCHEMA.update(Update(Op.INSERT, row))


def test_direct_counters() -> None:
    assert SCHEMA.direct_counter("admission") == "contributed"
    assert SCHEMA.direct_counter("bridge") is None


def test_packet_out_metadata() -> None:
    message = SCHEMA.packet_out(b"frame", {"egress_port": 3})
    assert message.payload == b"frame"
    assert {field.metadata_id: decode(field.value) for field in message.metadata} == {1: 3, 2: 0}
