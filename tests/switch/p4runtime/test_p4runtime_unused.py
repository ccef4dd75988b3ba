# SPDX-License-Identifier: Apache-2.0
"""P4Info that says something else than the JSON of the same program, and is right."""

from __future__ import annotations

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import DELETE, INSERT, MODIFY, Builder, Client, config, exact, ternary
from two_targets import Start, exchange

pytest_plugins = ("two_targets",)

SHORT = b"\x01\x02"
NO_ERROR, PACKET_TOO_SHORT, ODD = 0, 1, 7


@pytest.fixture
def build() -> Builder:
    return Builder("unused")


def insert(client: Client, build: Builder, table: str, key: object, *action: object) -> None:
    priority = 10 if table == "I.by_name" else 0
    client.write((INSERT, build.entry(table, [key], action, priority=priority)))


def test_initial_entries_are_there(start: Start, build: Builder) -> None:
    client = start("unused")
    assert exchange(client, b"\x09\0\0more") == b"\x09\x09\x99more"
    assert exchange(client, b"\x0b\0\0more") == b"\x0b\0\0more"


def test_objects_that_p4c_left_out(start_ours: Start, build: Builder) -> None:
    """They can be written and read; no packet meets them. (BMv2 refuses the entry.)"""
    client = start_ours("unused")
    key = [exact(1, 5), ternary(2, 7, 0xFFFF)]
    entry = build.entry("I.never_applied", key, ("I.set", 9), priority=3)
    client.write((INSERT, entry))
    (found,) = client.read(p4rt.TableEntry(table_id=build.id("I.never_applied")))
    assert found.match == entry.match
    assert found.action == entry.action
    assert client.refused(INSERT, entry)[0] == "ALREADY_EXISTS"
    frame = b"\x05\0\x07"
    assert exchange(client, frame) == frame
    client.write((DELETE, entry))
    assert not client.read(p4rt.TableEntry(table_id=build.id("I.never_applied")))


def test_the_default_entry_of_what_p4c_left_out(start_ours: Start, build: Builder) -> None:
    client = start_ours("unused")
    default = build.entry("I.never_applied", is_default_action=True)
    (read,) = client.read(default)
    (spec,) = (t for t in build.p4info.tables if t.preamble.name == "I.never_applied")
    assert read.action.action.action_id == spec.initial_default_action.action_id != 0
    assert not read.is_const
    client.write((MODIFY, build.entry("I.never_applied", [], ("I.set", 9), is_default_action=True)))
    assert client.read(default)[0].action.action == build.action("I.set", 9)
    client.write((MODIFY, default))
    assert client.read(default) == [read]


def test_an_error_as_a_key(start_ours: Start, build: Builder) -> None:
    """P4Info has no width for it, so that BMv2 takes no entry but for error 0."""
    client = start_ours("unused")
    insert(client, build, "I.by_error", exact(1, ODD), "I.set", 0xABCD)
    assert exchange(client, b"\x4d\0\0") == b"\x4d\xab\xcd"
    assert exchange(client, b"\x4e\0\0") == b"\x4e\0\0"
    insert(client, build, "I.by_error", exact(1, PACKET_TOO_SHORT), "I.set", 0x1111)
    assert exchange(client, SHORT) == SHORT


def test_translated_numbers_stand_for_themselves(start_ours: Start, build: Builder) -> None:
    """P4Info says 32 bits; the program has 9."""
    client = start_ours("unused")
    wrong = build.entry("I.by_port", [exact(1, 512)], ("I.forward", 255))
    code, text = client.refused(INSERT, wrong)
    assert code == "INVALID_ARGUMENT"
    assert "only 9 are allowed" in text
    insert(client, build, "I.by_port", exact(1, 255), "I.forward", 255)
    assert exchange(client, b"\0\0\0") == b"\0\0\0"


def test_strings_are_refused_by_name(start_ours: Start, build: Builder) -> None:
    client = start_ours("unused")
    entry = build.entry("I.by_name", [ternary(1, b"red", b"\xff\xff\xff")], ("I.set", 1), 10)
    code, text = client.refused(INSERT, entry)
    assert code == "UNIMPLEMENTED"
    assert "'meta.name'" in text
    assert "strings" in text
    client.write((INSERT, build.entry("I.by_name", [], ("I.set", 0x2222), 10)))
    assert exchange(client, b"\1\0\0") == b"\1\x22\x22"


def test_short_frames(start: Start, build: Builder) -> None:
    """Also one without a byte, which leaves as it came."""
    client = start("unused")
    for frame in (b"\0\0\0", SHORT, b"\1", b""):
        assert exchange(client, frame) == frame


def test_other_objects_in_their_place(start_ours: Start) -> None:
    client = start_ours("unused")
    message = config("unused")
    for table in message.p4info.tables:
        if table.preamble.name == "I.by_port":
            table.preamble.name = "I.by_door"
    with pytest.raises(grpc.RpcError, match=r"table 'I\.by_door' is not in the program"):
        client.set_config(message)
