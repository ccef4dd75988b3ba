# SPDX-License-Identifier: Apache-2.0
"""Counters and multicast groups over P4Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import (
    DELETE,
    INSERT,
    MODIFY,
    BatchError,
    Builder,
    Client,
    entity,
    exact,
    lpm,
)
from switch_peer import DEADLINE_S, ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

EXACT, TERNARY, LPM = "ingress.exact_table", "ingress.ternary_table", "ingress.lpm_table"
FORWARD, FLOOD = "ingress.forward", "ingress.flood"
BY_PORT = "ingress.by_port"
DST = 0x020000000002


def cell(build: Builder, index: int | None, packets: int | None = None, size: int = 0) -> Any:
    entry = p4rt.CounterEntry(counter_id=build.id(BY_PORT))
    if index is not None:
        entry.index.index = index
    if packets is not None:
        entry.data.packet_count = packets
        entry.data.byte_count = size
        entry.data.SetInParent()
    return entry


def key(build: Builder, port: int = 1, **fields: Any) -> Any:
    return build.entry(EXACT, [exact(1, DST), exact(2, port)], **fields)


def forward(build: Builder, port: int = 1, out: int = 2, **fields: Any) -> Any:
    return build.entry(EXACT, [exact(1, DST), exact(2, port)], (FORWARD, out), **fields)


# -- Indirect counters ---------------------------------------------------------------------------


def test_counters_count_packets_and_bytes(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    features.write((INSERT, forward(build)))
    for size in (0, 10, 200):
        left.send(ethernet(bytes(size)))
        right.receive()
    assert features.read(cell(build, 1)) == [cell(build, 1, 3, 3 * 14 + 210)]
    assert features.read(cell(build, 0)) == [cell(build, 0, 0, 0)]


def test_counter_wildcards(features: Client, build: Builder) -> None:
    features.write((MODIFY, cell(build, 3, 30, 300)))
    all_cells = [cell(build, i, 30, 300) if i == 3 else cell(build, i, 0, 0) for i in range(8)]
    assert features.read(cell(build, None)) == all_cells
    assert features.read(p4rt.CounterEntry()) == all_cells  # the only indirect counter


def test_counters_can_be_set(features: Client, build: Builder) -> None:
    features.write((MODIFY, cell(build, None, 7, 70)))
    assert features.read(cell(build, None)) == [cell(build, i, 7, 70) for i in range(8)]
    features.write((MODIFY, cell(build, 2, 0, 0)))
    assert features.read(cell(build, 2)) == [cell(build, 2, 0, 0)]
    features.write((MODIFY, cell(build, 4)))  # no data: not modified
    assert features.read(cell(build, 4)) == [cell(build, 4, 7, 70)]


def test_counter_rules(features: Client, build: Builder) -> None:
    for kind in (INSERT, DELETE):
        code, text = features.refused(kind, cell(build, 1, 1))
        assert (code, "can only be MODIFYed" in text) == ("INVALID_ARGUMENT", True)
    for index, expected in ((8, "OUT_OF_RANGE"), (-1, "INVALID_ARGUMENT")):
        code, text = features.refused(MODIFY, cell(build, index, 1))
        assert code == expected
        assert f"index {index} of counter 'ingress.by_port'" in text
        assert features.read_refused(cell(build, index))[0] == expected
    code, text = features.refused(MODIFY, cell(build, 1, -1))
    assert (code, "packet_count is -1" in text) == ("INVALID_ARGUMENT", True)
    unknown = p4rt.CounterEntry(counter_id=77, data={"packet_count": 1})
    for code, text in (features.refused(MODIFY, unknown), features.read_refused(unknown)):
        assert code == "INVALID_ARGUMENT"
        assert "no indirect counter with id 0x4d" in text
        assert "'ingress.by_port'" in text


# -- Direct counters -----------------------------------------------------------------------------


def direct(entry: Any, packets: int | None = None, size: int = 0) -> Any:
    message = p4rt.DirectCounterEntry(table_entry=entry)
    if packets is not None:
        message.data.packet_count = packets
        message.data.byte_count = size
        message.data.SetInParent()
    return message


def test_direct_counters(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    features.write((INSERT, forward(build)), (INSERT, forward(build, port=2)))
    for _ in range(3):
        left.send(ethernet(bytes(46)))
        right.receive()
    assert features.read(direct(key(build))) == [direct(key(build), 3, 180)]
    assert features.read(direct(build.entry(EXACT))) == [
        direct(key(build), 3, 180),
        direct(key(build, port=2), 0, 0),
    ]
    # The same with the entry, but only when asked for.
    assert features.read(key(build)) == [forward(build)]
    ask = key(build, counter_data={})
    assert features.read(ask) == [
        forward(build, counter_data={"packet_count": 3, "byte_count": 180})
    ]


def test_direct_counters_of_all_tables(features: Client, build: Builder) -> None:
    features.write(
        (INSERT, forward(build, counter_data={"packet_count": 5})),
        (INSERT, build.entry(TERNARY, [exact(2, 1)], (FORWARD, 1), priority=3)),
        (INSERT, build.entry(LPM, [lpm(1, 0, 1)], (FORWARD, 1))),
    )
    assert features.read(direct(p4rt.TableEntry())) == [
        direct(key(build), 5, 0),
        direct(build.entry(TERNARY, [exact(2, 1)], priority=3), 0, 0),
    ]


def test_modifying_the_action_keeps_the_count(features: Client, build: Builder) -> None:
    features.write((INSERT, forward(build, counter_data={"packet_count": 5, "byte_count": 6})))
    features.write((MODIFY, forward(build, out=1)))
    assert features.read(direct(key(build))) == [direct(key(build), 5, 6)]
    features.write((MODIFY, forward(build, counter_data={"packet_count": 1})))
    assert features.read(direct(key(build))) == [direct(key(build), 1, 0)]


def test_direct_counters_can_be_set(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    features.write((INSERT, forward(build)))
    features.write((MODIFY, direct(key(build), 100, 1000)))
    left.send(ethernet(bytes(46)))
    right.receive()
    assert features.read(direct(key(build))) == [direct(key(build), 101, 1060)]
    features.write((MODIFY, direct(key(build))))  # no data: not modified
    assert features.read(direct(key(build))) == [direct(key(build), 101, 1060)]


def test_deleting_an_entry_deletes_its_count(features: Client, build: Builder) -> None:
    features.write((INSERT, forward(build, counter_data={"packet_count": 5})))
    features.write((DELETE, key(build)))
    code, text = features.read_refused(direct(key(build)))
    assert (code, "has no entry" in text) == ("NOT_FOUND", True)
    assert features.refused(MODIFY, direct(key(build), 1))[0] == "NOT_FOUND"
    features.write((INSERT, forward(build)))
    assert features.read(direct(key(build))) == [direct(key(build), 0, 0)]


def test_misses_count_for_the_default_entry(
    features: Client, build: Builder, target: Target
) -> None:
    left, right = target.plug(1), target.plug(2)
    default = build.entry(EXACT, is_default_action=True)
    features.write((INSERT, build.entry(LPM, [lpm(1, 1 << 41, 8)], (FORWARD, 2))))
    for _ in range(3):
        left.send(ethernet(bytes(46)))
        right.receive()
    assert features.read(direct(default)) == [direct(default, 3, 180)]
    (read,) = features.read(build.entry(EXACT, is_default_action=True, counter_data={}))
    assert (read.counter_data.packet_count, read.counter_data.byte_count) == (3, 180)
    # Another action leaves the count, and may set it.
    forwards = build.entry(EXACT, [], (FORWARD, 2), is_default_action=True)
    features.write((MODIFY, forwards))
    assert features.read(direct(default)) == [direct(default, 3, 180)]
    forwards.counter_data.packet_count = 50
    features.write((MODIFY, forwards))
    features.write((MODIFY, direct(default)))  # no data: not modified
    left.send(ethernet(bytes(46)))
    right.receive()
    assert features.read(direct(default)) == [direct(default, 51, 60)]
    features.write((MODIFY, direct(default, 7, 8)))
    assert features.read(direct(default)) == [direct(default, 7, 8)]
    # "When resetting the default entry ... its direct resources will be reset to their defaults."
    features.write((MODIFY, default))
    assert features.read(direct(default)) == [direct(default, 0, 0)]
    assert features.read(direct(build.entry(EXACT))) == []  # it is no entry like others


def test_direct_counter_rules(features: Client, build: Builder) -> None:
    features.write((INSERT, forward(build)))
    for kind in (INSERT, DELETE):
        code, text = features.refused(kind, direct(key(build), 1))
        assert (code, "can only be MODIFYed" in text) == ("INVALID_ARGUMENT", True)
    other = direct(build.entry(LPM, [lpm(1, 0, 1)]), 1)
    for code, text in (features.refused(MODIFY, other), features.read_refused(other)):
        assert (code, "has no direct counter" in text) == ("INVALID_ARGUMENT", True)
    for code, text in (
        features.refused(MODIFY, p4rt.DirectCounterEntry()),
        features.read_refused(p4rt.DirectCounterEntry()),
    ):
        assert (code, "must give the table_entry" in text) == ("INVALID_ARGUMENT", True)
    assert features.refused(MODIFY, direct(key(build), -1))[0] == "INVALID_ARGUMENT"


# -- Multicast groups ----------------------------------------------------------------------------


def group(group_id: int, *replicas: tuple[int, int], **fields: Any) -> Any:
    entry = p4rt.MulticastGroupEntry(multicast_group_id=group_id, **fields)
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return entry


def test_multicast_groups(features: Client) -> None:
    features.write((INSERT, group(1, (1, 0), (2, 0))), (INSERT, group(0x7FFF, (1, 65535))))
    assert features.read(group(0)) == [group(1, (1, 0), (2, 0)), group(0x7FFF, (1, 65535))]
    features.write((MODIFY, group(1, (2, 1), (2, 2))))
    assert features.read(group(1)) == [group(1, (2, 1), (2, 2))]
    features.write((DELETE, group(1)))
    assert features.read(group(0)) == [group(0x7FFF, (1, 65535))]


def test_multicast_replicates_packets(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    entry = build.entry(EXACT, [exact(1, DST), exact(2, 1)], (FLOOD, 7))
    features.write((INSERT, entry))
    left.send(ethernet(b"no group yet"))
    left.expect_nothing()
    features.write((INSERT, group(7, (1, 0), (2, 0), (2, 5))))
    left.send(ethernet(b"x"))
    assert left.receive() == ethernet(b"x")
    assert [right.receive(), right.receive()] == [ethernet(b"x")] * 2
    features.write((MODIFY, group(7, (1, 3), (2, 3))))  # egress prunes instances but 0
    left.send(ethernet(b"y"))
    assert right.receive() == ethernet(b"y")
    left.expect_nothing()
    features.write((MODIFY, group(7)))
    left.send(ethernet(b"z"))
    right.expect_nothing()


def test_replicas_are_read_as_they_were_written(features: Client) -> None:
    mixed = p4rt.MulticastGroupEntry(multicast_group_id=3, metadata=b"\x00\x01")
    mixed.replicas.add(port=b"\x01", instance=1)
    mixed.replicas.add(egress_port=2, instance=1)
    features.write((INSERT, mixed))
    assert features.read(group(3)) == [mixed]
    features.write((MODIFY, group(3, (1, 1))))
    assert features.read(group(3)) == [group(3, (1, 1))]


def test_multicast_group_rules(features: Client) -> None:
    features.write((INSERT, group(1, (1, 0))))
    for kind, message, expected, complaint in (
        (INSERT, group(1, (2, 0)), "ALREADY_EXISTS", "group 1 already exists"),
        (MODIFY, group(2, (2, 0)), "NOT_FOUND", "group 2 does not exist"),
        (DELETE, group(2), "NOT_FOUND", "group 2 does not exist"),
        (INSERT, group(0, (1, 0)), "INVALID_ARGUMENT", "0 is the id of no multicast group"),
        (INSERT, group(0x8000, (1, 0)), "OUT_OF_RANGE", "above the maximum of 32767"),
        (INSERT, group(2, (512, 0)), "INVALID_ARGUMENT", "port 512 is not within 0 to 511"),
        (INSERT, group(2, (1, 65536)), "INVALID_ARGUMENT", "instance 65536 is above 65535"),
        (INSERT, group(2, (1, 4), (1, 4)), "INVALID_ARGUMENT", "is already a replica"),
    ):
        code, text = features.refused(kind, message)
        assert code == expected
        assert complaint in text
    portless = group(2)
    portless.replicas.add(instance=1)
    code, text = features.refused(INSERT, portless)
    assert (code, "replica 0 of multicast group 2 has no port" in text) == (
        "INVALID_ARGUMENT",
        True,
    )
    wide = group(2)
    wide.replicas.add(port=b"\x02\x00")
    code, text = features.refused(INSERT, wide)
    assert (code, "takes 10 bits" in text) == ("INVALID_ARGUMENT", True)
    assert features.read(group(0)) == [group(1, (1, 0))]
    assert features.read_refused(group(2))[0] == "NOT_FOUND"


def clone_session(number: int, *replicas: tuple[int, int], **fields: int) -> Any:
    made = [{"egress_port": port, "instance": instance} for port, instance in replicas]
    return p4rt.CloneSessionEntry(session_id=number, replicas=made, **fields)


def test_clone_sessions(features: Client) -> None:
    first = clone_session(1, (1, 0), (2, 7), packet_length_bytes=64, class_of_service=3)
    as_bytes = p4rt.CloneSessionEntry(session_id=32767, replicas=[{"port": b"\x01\x02"}])
    features.write((INSERT, first), (INSERT, as_bytes))
    assert features.read(clone_session(0)) == [first, as_bytes]
    assert features.read(clone_session(32767)) == [as_bytes]
    changed = clone_session(1)
    features.write((MODIFY, changed), (DELETE, as_bytes))
    assert features.read(clone_session(0)) == [changed]


def test_clone_session_rules(features: Client) -> None:
    features.write((INSERT, clone_session(1, (1, 0))))
    for kind, message, expected, complaint in (
        (INSERT, clone_session(1, (2, 0)), "ALREADY_EXISTS", "session 1 already exists"),
        (MODIFY, clone_session(2, (2, 0)), "NOT_FOUND", "session 2 does not exist"),
        (DELETE, clone_session(2), "NOT_FOUND", "session 2 does not exist"),
        (INSERT, clone_session(0, (1, 0)), "INVALID_ARGUMENT", "0 is the id of no clone session"),
        (INSERT, clone_session(0x8000, (1, 0)), "OUT_OF_RANGE", "above the maximum of 32767"),
        (INSERT, clone_session(2, (512, 0)), "INVALID_ARGUMENT", "clone session 2: port 512"),
        (INSERT, clone_session(2, packet_length_bytes=-1), "INVALID_ARGUMENT", "is -1"),
    ):
        code, text = features.refused(kind, message)
        assert code == expected
        assert complaint in text
    assert features.read(clone_session(0)) == [clone_session(1, (1, 0))]
    assert features.read_refused(clone_session(2))[0] == "NOT_FOUND"


@pytest.mark.parametrize("make", [group, clone_session])
def test_backup_replicas_are_refused_by_name(features: Client, make: Any) -> None:
    message = make(3, (1, 0))
    if "backup_replicas" not in message.replicas[0].DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no backup replicas")
    message.replicas[0].backup_replicas.add(port=b"\2", instance=5)
    for kind in (INSERT, MODIFY):
        code, text = features.refused(kind, message)
        assert (code, "backup_replicas of replica 0 of" in text) == ("UNIMPLEMENTED", True)
    assert features.read(make(0)) == []


NEWER = b"\xfa\x3e\x01x"  # field 1007, which no version has


@pytest.mark.parametrize(
    "where", ["update", "replica", "table entry", "match", "group", "register index"]
)
def test_fields_of_a_newer_api_are_refused(features: Client, build: Builder, where: str) -> None:
    """A field that is lost may be a wrong result without an error."""
    message = {
        "replica": group(3, (1, 0)),
        "group": p4rt.ActionProfileGroup(members=[{"member_id": 1}]),
        "register index": p4rt.RegisterEntry(index={"index": 1}),
    }.get(where, forward(build))
    place: Any = {
        "update": lambda update: update,
        "replica": lambda update: _group_of(update).replicas[0],
        "table entry": lambda update: update.entity.table_entry,
        "match": lambda update: update.entity.table_entry.match[1],
        "group": lambda update: update.entity.action_profile_group.members[0],
        "register index": lambda update: update.entity.register_entry.index,
    }[where]
    update = p4rt.Update(type=INSERT, entity=entity(message))
    place(update).MergeFromString(NEWER)
    request = p4rt.WriteRequest(device_id=1, election_id={"low": 1}, updates=[update, update])
    with pytest.raises(grpc.RpcError) as caught:
        features.stub.Write(request, timeout=DEADLINE_S)
    assert BatchError(caught.value).codes == ["UNIMPLEMENTED", "UNIMPLEMENTED"]
    if where != "update":
        read = p4rt.ReadRequest(device_id=1, entities=[update.entity])
        with pytest.raises(grpc.RpcError) as caught:
            list(features.stub.Read(read, timeout=DEADLINE_S))
        assert BatchError(caught.value).codes == ["UNIMPLEMENTED"]


def _group_of(update: Any) -> Any:
    return update.entity.packet_replication_engine_entry.multicast_group_entry


@pytest.mark.parametrize("kind", [INSERT, MODIFY, DELETE])
def test_an_empty_replication_entry_is_refused(features: Client, kind: int) -> None:
    code, text = features.refused(kind, p4rt.PacketReplicationEngineEntry())
    assert (code, "multicast_group_entry" in text) == ("INVALID_ARGUMENT", True)
