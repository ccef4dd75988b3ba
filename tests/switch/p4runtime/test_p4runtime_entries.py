# SPDX-License-Identifier: Apache-2.0
"""Entries of the program: constant tables, preinitialised ones, and p4c's file of entries.

P4Runtime, "Constant Tables", "Preinitialized tables" and "P4Runtime Entries files".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import DELETE, INSERT, MODIFY, Builder, Client, config, exact, ternary
from p4rt_fixtures import CPU_PORT
from switch_peer import ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target
    from two_targets import Start

pytest_plugins = ("p4rt_fixtures", "two_targets")
pytestmark = pytest.mark.usefixtures("engine")

BUILD = Builder("p4rt_features")
TABLE, NOTE, DROP = "ingress.const_table", "ingress.note", "ingress.drop"
FIRST, SECOND = [ternary(1, 0x88B5, 0xFFFF)], [ternary(1, 0x8800, 0xFF00)]
SIZE = 5


def program(size: int = SIZE) -> Any:
    """p4rt_features, its constant table without `const` before `entries`."""
    message = config("p4rt_features")
    (table,) = (t for t in message.p4info.tables if t.preamble.name == TABLE)
    table.is_const_table = False
    table.size = size
    return message


def noted(
    match: Sequence[Any], reason: int, priority: int, *, is_const: bool = False, **fields: Any
) -> Any:
    entry = BUILD.entry(TABLE, match, (NOTE, reason), priority=priority, **fields)
    entry.is_const = is_const
    return entry


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def with_entries(message: Any, text: str | bytes) -> Any:
    """The program in a `P4DeviceConfig`, with an entries file among its extras."""
    data = text.encode() if isinstance(text, str) else text
    other = field(1, field(1, b"port") + field(2, b"9090"))
    extras = other + field(1, field(1, b"entries") + field(2, data))
    message.p4_device_config = field(2, extras) + field(3, message.p4_device_config)
    return message


def entries_file(*entries: Any) -> str:
    request = p4rt.WriteRequest()
    for entry in entries:
        request.updates.add(type=INSERT, entity={"table_entry": entry})
    return text_format.MessageToString(request)


def reason_of(client: Client, target: Target, ethertype: int) -> int:
    """What the table notes of a frame."""
    peer = target.plug(1)
    peer.send(ethernet(ethertype=ethertype))
    while not (message := client.next()).HasField("packet"):
        pass
    peer.close()
    values = {m.metadata_id: int.from_bytes(m.value, "big") for m in message.packet.metadata}
    (header,) = (
        h for h in BUILD.p4info.controller_packet_metadata if h.preamble.name == "packet_in"
    )
    return values[next(m.id for m in header.metadata if m.name == "reason")]


@pytest.fixture
def client(primary: Client) -> Client:
    """A switch whose frames to one address end at the controller."""
    _load(primary, program())
    return primary


def _load(client: Client, message: Any) -> None:
    client.set_config(message)
    key = [exact(1, 0x020000000002), exact(2, 1)]
    client.write((INSERT, BUILD.entry("ingress.exact_table", key, ("ingress.forward", CPU_PORT))))


def test_they_are_entries_like_others(client: Client, target: Target) -> None:
    assert client.read(BUILD.entry(TABLE)) == [noted(FIRST, 5, 2), noted(SECOND, 6, 1)]
    assert reason_of(client, target, 0x88B5) == 5
    client.write((MODIFY, noted(FIRST, 50, 2, metadata=b"mine")))
    assert reason_of(client, target, 0x88B5) == 50
    client.write((DELETE, noted(FIRST, 0, 2)))
    assert reason_of(client, target, 0x88B5) == 6
    client.write((INSERT, noted(FIRST, 8, 7)))
    assert reason_of(client, target, 0x88B5) == 8
    assert client.read(BUILD.entry(TABLE)) == [noted(SECOND, 6, 1), noted(FIRST, 8, 7)]
    assert client.refused(INSERT, noted(SECOND, 1, 1))[0] == "ALREADY_EXISTS"
    assert client.refused(DELETE, noted(FIRST, 1, 2))[0] == "NOT_FOUND"
    # Setting the program again brings its entries back.
    _load(client, program())
    assert client.read(BUILD.entry(TABLE)) == [noted(FIRST, 5, 2), noted(SECOND, 6, 1)]


def test_the_size_is_that_of_the_p4info(client: Client) -> None:
    """The JSON has as many as there are entries."""
    more = [noted([ternary(1, n, 0xFFFF)], n, 9) for n in range(1, SIZE - 1)]
    client.write(*((INSERT, entry) for entry in more))
    code, text = client.refused(INSERT, noted([ternary(1, 77, 0xFFFF)], 1, 9))
    assert (code, f"holds {SIZE} entries" in text) == ("RESOURCE_EXHAUSTED", True)
    client.write((DELETE, noted(FIRST, 0, 2)))
    client.write((INSERT, noted([ternary(1, 77, 0xFFFF)], 1, 9)))


def test_more_entries_than_the_p4info_has_room_for(primary: Client) -> None:
    primary.set_config(program(size=1))
    assert len(primary.read(BUILD.entry(TABLE))) == 2
    assert primary.refused(INSERT, noted([ternary(1, 7, 7)], 1, 9))[0] == "RESOURCE_EXHAUSTED"


def test_priorities_and_constants_of_the_entries_file(primary: Client, target: Target) -> None:
    first, second = noted(FIRST, 5, 700, is_const=True), noted(SECOND, 6, 300)
    message = with_entries(program(), entries_file(first, second))
    _load(primary, message)
    assert primary.read(BUILD.entry(TABLE)) == [first, second]
    assert primary.get_config().config == message
    first.is_const = False  # in a request it must not be set
    for kind in (MODIFY, DELETE):
        code, text = primary.refused(kind, first)
        assert (code, "this entry of table" in text) == ("PERMISSION_DENIED", True)
    primary.write((MODIFY, noted(SECOND, 60, 300)))
    # Between the two by priority.
    primary.write((INSERT, noted([ternary(1, 0x8000, 0xF000)], 8, 500)))
    assert reason_of(primary, target, 0x88B5) == 5
    assert reason_of(primary, target, 0x88B6) == 8
    primary.write((DELETE, noted([ternary(1, 0x8000, 0xF000)], 8, 500)))
    assert reason_of(primary, target, 0x88B6) == 60
    primary.write((DELETE, second))


def test_the_entries_file_of_a_constant_table(primary: Client) -> None:
    first, second = noted(FIRST, 5, 2, is_const=True), noted(SECOND, 6, 1, is_const=True)
    primary.set_config(with_entries(config("p4rt_features"), entries_file(first, second)))
    assert primary.read(BUILD.entry(TABLE)) == [first, second]
    new = noted([ternary(1, 1, 1)], 5, 9)
    for kind, entry in ((INSERT, new), (MODIFY, noted(FIRST, 5, 2)), (DELETE, noted(FIRST, 5, 2))):
        assert primary.refused(kind, entry)[0] == "PERMISSION_DENIED"


def test_equal_priorities_keep_the_order(primary: Client, target: Target) -> None:
    wide, all_ = noted(FIRST, 5, 40), noted(SECOND, 6, 40)
    _load(primary, with_entries(program(), entries_file(wide, all_)))
    assert primary.read(BUILD.entry(TABLE)) == [wide, all_]
    assert reason_of(primary, target, 0x88B5) == 5


def test_smallest_priority_wins(
    primary: Client, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """`largest_priority_wins = false`, which P4Runtime has no way to say."""
    file = entries_file(noted(FIRST, 5, 10), noted(SECOND, 6, 20, is_const=True))
    _load(primary, with_entries(program(), file))
    assert "the smallest priority wins in table 'ingress.const_table'" in caplog.text
    assert primary.read(BUILD.entry(TABLE)) == [
        noted(FIRST, 5, 2),
        noted(SECOND, 6, 1, is_const=True),
    ]
    assert reason_of(primary, target, 0x88B5) == 5


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        (lambda: "no protobuf", "not a WriteRequest in text form"),
        (lambda: b"\xff\xfe", "not a WriteRequest in text form"),
        (lambda: entries_file(noted(FIRST, 5, 2)), "other entries of table 'ingress.const_table'"),
        (
            lambda: entries_file(noted(SECOND, 6, 2), noted(FIRST, 5, 1)),
            "other entries of table 'ingress.const_table'",
        ),
        (
            lambda: entries_file(noted([ternary(9, 1, 1)], 6, 2), noted(SECOND, 5, 1)),
            "no match field with id 9",
        ),
        (lambda: entries_file(p4rt.TableEntry(table_id=77)), "has a table 0x4d"),
    ],
)
def test_the_entries_file_of_another_program(
    primary: Client, file: Callable[[], Any], complaint: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        primary.set_config(with_entries(program(), file()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in caught.value.details()
    assert not primary.get_config().HasField("config")


def test_an_envelope_without_entries(primary: Client) -> None:
    message = program()
    message.p4_device_config = field(2, b"") + field(3, message.p4_device_config)
    primary.set_config(message)
    assert len(primary.read(BUILD.entry(TABLE))) == 2


def test_exact_entries(start_ours: Start) -> None:
    """p4c's own P4Info of a table whose entries are not constant."""
    client, build = start_ours("unused"), Builder("unused")

    def entry(key: int, value: int) -> Any:
        return build.entry("I.initial", [exact(1, key)], ("I.set", value))

    assert client.read(build.entry("I.initial")) == [entry(9, 0x999), entry(10, 0xAAA)]
    client.write((MODIFY, entry(9, 1)), (DELETE, entry(10, 0)), (INSERT, entry(11, 2)))
    assert client.read(build.entry("I.initial")) == [entry(9, 1), entry(11, 2)]
    client.write(*((INSERT, entry(key, 0)) for key in range(12, 256)))
    assert len(client.read(build.entry("I.initial"))) == 246


def test_direct_resources_of_constant_entries_can_be_modified(primary: Client) -> None:
    """ "i.e. only `MODIFY` operations on direct resources are allowed" """
    message = program()
    (table,) = (t for t in message.p4info.tables if t.preamble.name == TABLE)
    (counter,) = (c for c in message.p4info.direct_counters if "exact" in c.preamble.name)
    table.direct_resource_ids.append(counter.preamble.id)
    message.p4_device_config = message.p4_device_config.replace(
        b'"with_counters": false', b'"with_counters": true'
    )
    for other in message.p4info.tables:
        if not other.direct_resource_ids:
            other.direct_resource_ids.append(counter.preamble.id)
    first, second = noted(FIRST, 5, 9, is_const=True), noted(SECOND, 6, 8)
    primary.set_config(with_entries(message, entries_file(first, second)))
    counted = BUILD.entry(TABLE, FIRST, priority=9, counter_data={"packet_count": 3})
    primary.write((MODIFY, counted))
    ask = BUILD.entry(TABLE, FIRST, priority=9, counter_data={})
    assert primary.read(ask)[0].counter_data.packet_count == 3
    direct = p4rt.DirectCounterEntry(
        table_entry=BUILD.entry(TABLE, FIRST, priority=9), data={"packet_count": 4}
    )
    primary.write((MODIFY, direct))
    assert primary.read(ask)[0].counter_data.packet_count == 4
    counted.action.action.CopyFrom(BUILD.action(NOTE, 5))
    assert primary.refused(MODIFY, counted)[0] == "PERMISSION_DENIED"
