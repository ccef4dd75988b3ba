# SPDX-License-Identifier: Apache-2.0
"""Table entries: every rule of P4Runtime 1.4.1, "TableEntry", and what packets make of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import (
    DELETE,
    INSERT,
    MODIFY,
    BatchError,
    Builder,
    Client,
    config,
    entity,
    exact,
    lpm,
    optional,
    range_,
    ternary,
)
from switch_peer import ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

EXACT, LPM, TERNARY = "ingress.exact_table", "ingress.lpm_table", "ingress.ternary_table"
CONST, KEYLESS = "ingress.const_table", "ingress.keyless_table"
FORWARD, NOTE, PUNT, DROP = "ingress.forward", "ingress.note", "ingress.punt", "ingress.drop"
DST = 0x020000000002
SRC = 0x020000000001


@pytest.fixture
def match_kinds(primary: Client) -> Client:
    primary.set_config(config("p4rt_match_kinds"))
    return primary


@pytest.fixture
def kinds() -> Builder:
    return Builder("p4rt_match_kinds")


def exact_entry(build: Builder, dst: int = DST, port: int = 1, out: int = 2, **fields: Any) -> Any:
    return build.entry(EXACT, [exact(1, dst), exact(2, port)], (FORWARD, out), **fields)


# -- Insert, modify, delete ----------------------------------------------------------------------


def test_insert_modify_delete(features: Client, build: Builder) -> None:
    features.write((INSERT, exact_entry(build)))
    assert features.read(build.entry(EXACT)) == [exact_entry(build)]
    features.write((MODIFY, exact_entry(build, out=3)))
    assert features.read(build.entry(EXACT)) == [exact_entry(build, out=3)]
    features.write((DELETE, exact_entry(build)))
    assert features.read(build.entry(EXACT)) == []


def test_packets_see_the_change(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    left.send(ethernet(b"dropped by default"))
    right.expect_nothing()
    features.write((INSERT, exact_entry(build)))
    left.send(ethernet(b"one"))
    assert right.receive() == ethernet(b"one")
    features.write((MODIFY, exact_entry(build, out=1)))
    left.send(ethernet(b"two"))
    assert left.receive() == ethernet(b"two")
    features.write((DELETE, exact_entry(build)))
    left.send(ethernet(b"three"))
    right.expect_nothing()
    left.expect_nothing()


def test_an_entry_that_exists_is_not_inserted(features: Client, build: Builder) -> None:
    features.write((INSERT, exact_entry(build, out=2)))
    code, text = features.refused(INSERT, exact_entry(build, out=3))
    assert code == "ALREADY_EXISTS"
    assert f"(dst={DST:#x}, port=0x1)" in text
    assert features.read(build.entry(EXACT)) == [exact_entry(build, out=2)]


@pytest.mark.parametrize("kind", [MODIFY, DELETE])
def test_an_entry_that_does_not_exist(features: Client, build: Builder, kind: int) -> None:
    code, text = features.refused(kind, exact_entry(build))
    assert code == "NOT_FOUND"
    assert f"(dst={DST:#x}, port=0x1)" in text


def test_a_full_table(features: Client, build: Builder) -> None:
    features.write(*((INSERT, exact_entry(build, port=i)) for i in range(4)))
    code, text = features.refused(INSERT, exact_entry(build, port=4))
    assert code == "RESOURCE_EXHAUSTED"
    assert "holds 4 entries" in text
    features.write((DELETE, exact_entry(build, port=0)), (INSERT, exact_entry(build, port=4)))


def test_delete_looks_at_the_key_only(features: Client, build: Builder) -> None:
    features.write((INSERT, exact_entry(build)))
    nonsense = exact_entry(build, idle_timeout_ns=-5, controller_metadata=9)
    nonsense.action.action.action_id = 0xDEAD
    nonsense.counter_data.packet_count = -1
    features.write((DELETE, nonsense))
    assert features.read(build.entry(EXACT)) == []


def test_update_type_must_be_set(features: Client, build: Builder) -> None:
    code, text = features.refused(p4rt.Update.UNSPECIFIED, exact_entry(build))
    assert code == "INVALID_ARGUMENT"
    assert "update type 0" in text


def test_unknown_tables_are_refused(features: Client, build: Builder) -> None:
    entry = exact_entry(build)
    for table_id in (0, 12345, build.id(FORWARD)):
        entry.table_id = table_id
        code, text = features.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        assert f"no table with id {table_id:#x}" in text
        assert "'ingress.exact_table'" in text


def test_cookies_are_kept(features: Client, build: Builder) -> None:
    entry = exact_entry(build, controller_metadata=(1 << 64) - 1, metadata=b"\x00mine\xff")
    features.write((INSERT, entry))
    assert features.read(build.entry(EXACT)) == [entry]
    entry.controller_metadata = 7
    entry.metadata = b"other"
    features.write((MODIFY, entry))
    assert features.read(build.entry(EXACT)) == [entry]


def test_modify_without_an_action_keeps_the_action(features: Client, build: Builder) -> None:
    features.write((INSERT, exact_entry(build, out=3)))
    change = build.entry(EXACT, [exact(1, DST), exact(2, 1)], controller_metadata=8)
    features.write((MODIFY, change))
    assert features.read(build.entry(EXACT)) == [exact_entry(build, out=3, controller_metadata=8)]


# -- Actions -------------------------------------------------------------------------------------


def test_insert_needs_an_action(features: Client, build: Builder) -> None:
    entry = build.entry(EXACT, [exact(1, DST), exact(2, 1)])
    code, text = features.refused(INSERT, entry)
    assert (code, "must give an action" in text) == ("INVALID_ARGUMENT", True)


def test_indirect_actions_are_refused(features: Client, build: Builder) -> None:
    entry = build.entry(EXACT, [exact(1, DST), exact(2, 1)])
    entry.action.action_profile_member_id = 1
    code, text = features.refused(INSERT, entry)
    assert code == "INVALID_ARGUMENT"
    assert "action_profile_member_id" in text


def test_an_action_of_another_table_is_refused(features: Client, build: Builder) -> None:
    code, text = features.refused(
        INSERT, build.entry(EXACT, [exact(1, DST), exact(2, 1)], (NOTE, 1))
    )
    assert code == "INVALID_ARGUMENT"
    assert "is not an action of table 'ingress.exact_table'" in text
    assert "'ingress.forward', 'ingress.flood'" in text


def test_scopes_of_actions(features: Client, build: Builder) -> None:
    code, text = features.refused(
        INSERT, build.entry(EXACT, [exact(1, DST), exact(2, 1)], ("NoAction",))
    )
    assert (code, "@defaultonly" in text) == ("PERMISSION_DENIED", True)
    code, text = features.refused(
        MODIFY, build.entry(EXACT, action=(DROP,), is_default_action=True)
    )
    assert (code, "@tableonly" in text) == ("PERMISSION_DENIED", True)


def test_parameters_must_be_those_of_the_action(features: Client, build: Builder) -> None:
    good = build.entry(EXACT, [exact(1, DST), exact(2, 1)], (PUNT, 0xFFF, 0x1FF))

    def refused(change: Any) -> str:
        entry = p4rt.TableEntry.FromString(good.SerializeToString())
        change(entry.action.action.params)
        code, text = features.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        return text

    assert "are missing: 'copy_of'" in refused(lambda p: p.pop())
    assert "has no parameter with id 3" in refused(lambda p: p.add(param_id=3, value=b"\x01"))
    assert "'reason' is given more than once" in refused(lambda p: p.add(param_id=1, value=b"\x01"))
    assert "parameter 'reason' (id 1): value 0x1000 takes 13 bits, but only 12" in refused(
        lambda p: setattr(p[0], "value", b"\x10\x00")
    )
    assert "byte string is empty" in refused(lambda p: setattr(p[0], "value", b""))
    features.write((INSERT, good))


def test_parameters_may_come_in_any_order(features: Client, build: Builder) -> None:
    entry = build.entry(EXACT, [exact(1, DST), exact(2, 1)], (PUNT, 5, 6))
    shuffled = p4rt.TableEntry.FromString(entry.SerializeToString())
    params = shuffled.action.action.params
    params.extend([params.pop(0)])
    features.write((INSERT, shuffled))
    assert features.read(build.entry(EXACT)) == [entry]


# -- Keys ----------------------------------------------------------------------------------------


def test_keys_must_be_those_of_the_table(features: Client, build: Builder) -> None:
    def refused(*fields: Any) -> str:
        code, text = features.refused(INSERT, build.entry(EXACT, fields, (FORWARD, 1)))
        assert code == "INVALID_ARGUMENT"
        return text

    both = exact(1, 1), exact(2, 1)
    assert "'port' (id 2) of table 'ingress.exact_table' is missing" in refused(both[0])
    assert "no match field with id 3" in refused(*both, exact(3, 1))
    assert "'dst' (id 1) of table 'ingress.exact_table' is given more than once" in refused(
        *both, both[0]
    )
    assert "is of kind exact, but the entry gives ternary" in refused(ternary(1, 1, 1), both[1])
    assert "but the entry gives nothing" in refused(p4rt.FieldMatch(field_id=1), both[1])
    assert "value 0x200 takes 10 bits, but only 9 are allowed" in refused(both[0], exact(2, 0x200))
    assert "byte string is empty" in refused(both[0], exact(2, b""))


def test_fields_may_come_in_any_order(features: Client, build: Builder) -> None:
    features.write((INSERT, build.entry(EXACT, [exact(2, 1), exact(1, DST)], (FORWARD, 2))))
    assert features.read(build.entry(EXACT)) == [exact_entry(build)]


def test_byte_strings_are_read_in_canonical_form(features: Client, build: Builder) -> None:
    entry = build.entry(
        EXACT, [exact(1, bytes(6) + b"\x00\x07"), exact(2, b"\x00\x00\x01")], (FORWARD, b"\x00\x02")
    )
    features.write((INSERT, entry))
    assert features.read(build.entry(EXACT)) == [exact_entry(build, dst=7)]
    # It is the same entry, however it is written.
    assert features.refused(INSERT, exact_entry(build, dst=7))[0] == "ALREADY_EXISTS"
    features.write((DELETE, entry))


def test_lpm_rules(features: Client, build: Builder) -> None:
    def refused(field: Any) -> str:
        code, text = features.refused(INSERT, build.entry(LPM, [field], (FORWARD, 1)))
        assert code == "INVALID_ARGUMENT"
        assert "match field 'src' (id 1)" in text
        return text

    assert "prefix length 0 matches everything; omit the field" in refused(lpm(1, 0, 0))
    assert "49 is not within 1 to 48" in refused(lpm(1, SRC, 49))
    assert "-1 is not within 1 to 48" in refused(lpm(1, SRC, -1))
    text = refused(lpm(1, 0x0200_0000_0001, 47))
    assert "has bits below its prefix of 47 bits; 0x20000000000 would be right" in text


def test_the_longest_prefix_wins(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    entries = [
        build.entry(LPM, [], (FORWARD, 1)),
        build.entry(LPM, [lpm(1, 0x020000000000, 16)], (FORWARD, 2)),
        build.entry(LPM, [lpm(1, 0x020000000001, 48)], (DROP,)),
    ]
    features.write(*((INSERT, entry) for entry in entries))
    read = features.read(build.entry(LPM))
    assert sorted(e.SerializeToString() for e in read) == sorted(
        e.SerializeToString() for e in entries
    )
    left.send(ethernet(b"a", src="04:00:00:00:00:01"))
    assert left.receive() == ethernet(b"a", src="04:00:00:00:00:01")
    left.send(ethernet(b"b", src="02:00:00:00:00:01"))  # dropped
    left.send(ethernet(b"c", src="02:00:00:00:00:09"))
    assert right.receive() == ethernet(b"c", src="02:00:00:00:00:09")


def test_ternary_rules(features: Client, build: Builder) -> None:
    def refused(*fields: Any, priority: int = 1) -> str:
        entry = build.entry(TERNARY, fields, (FORWARD, 1), priority=priority)
        code, text = features.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        return text

    kind = exact(2, 0x800)
    assert "mask 0 matches everything; omit the field" in refused(ternary(1, 0, 0), kind)
    text = refused(ternary(1, 0x0F, 0x03), kind)
    assert "0xf has bits outside its mask 0x3; 0x3 would be right" in text
    assert "takes 49 bits" in refused(ternary(1, 1, 1 << 48), kind)
    assert "'type' (id 2) of table 'ingress.ternary_table' is missing" in refused(ternary(1, 1, 1))
    assert "takes 1 to 2147483647" in refused(ternary(1, 1, 1), kind, priority=0)
    assert "priority -1" in refused(ternary(1, 1, 1), kind, priority=-1)


def test_priority_must_be_zero_without_ternary_fields(features: Client, build: Builder) -> None:
    for entry in (
        exact_entry(build, priority=1),
        build.entry(LPM, [lpm(1, SRC, 48)], (FORWARD, 1), priority=10),
    ):
        code, text = features.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        assert "must be 0" in text


def test_the_larger_priority_wins(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    kind = exact(2, 0x88B5)
    back = build.entry(TERNARY, [kind], (FORWARD, 1), priority=10)
    over = build.entry(TERNARY, [ternary(1, 2, 2), kind], (FORWARD, 2), priority=11)
    same_key = build.entry(TERNARY, [kind], (FORWARD, 2), priority=9)
    features.write((INSERT, back), (INSERT, over), (INSERT, same_key))
    left.send(ethernet(b"x", dst="02:00:00:00:00:02"))
    assert right.receive() == ethernet(b"x", dst="02:00:00:00:00:02")
    left.send(ethernet(b"y", dst="02:00:00:00:00:04"))
    assert left.receive() == ethernet(b"y", dst="02:00:00:00:00:04")
    features.write((DELETE, back))
    left.send(ethernet(b"z", dst="02:00:00:00:00:04"))
    assert right.receive() == ethernet(b"z", dst="02:00:00:00:00:04")


def test_range_rules(match_kinds: Client, kinds: Builder) -> None:
    table = "ingress.range_table"

    def refused(field: Any, priority: int = 1) -> str:
        entry = kinds.entry(table, [field], (FORWARD, 1), priority=priority)
        code, text = match_kinds.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        return text

    assert "low 0x3 is above high 0x2" in refused(range_(1, 3, 2))
    assert "the range holds every value; omit the field" in refused(range_(1, 0, 0xFFFF))
    assert "takes 17 bits" in refused(range_(1, 0, 0x10000))
    assert "priority 0" in refused(range_(1, 1, 2), priority=0)
    entries = [
        kinds.entry(table, [range_(1, 0, 0xFFFE)], (FORWARD, 1), priority=1),
        kinds.entry(table, [range_(1, 5, 5)], (FORWARD, 2), priority=1),
        kinds.entry(table, [], (FORWARD, 3), priority=1),
    ]
    match_kinds.write(*((INSERT, entry) for entry in entries))
    assert match_kinds.read(kinds.entry(table)) == entries


def test_optional_rules(match_kinds: Client, kinds: Builder) -> None:
    table = "ingress.optional_table"
    entries = [
        kinds.entry(table, [optional(1, 0)], (FORWARD, 1), priority=3),
        kinds.entry(table, [], (FORWARD, 2), priority=2),
    ]
    match_kinds.write(*((INSERT, entry) for entry in entries))
    assert match_kinds.read(kinds.entry(table)) == entries
    code, text = match_kinds.refused(
        INSERT, kinds.entry(table, [optional(1, 0x10000)], (FORWARD, 1), priority=1)
    )
    assert (code, "takes 17 bits" in text) == ("INVALID_ARGUMENT", True)
    code, text = match_kinds.refused(INSERT, kinds.entry(table, [], (FORWARD, 1)))
    assert (code, "priority 0" in text) == ("INVALID_ARGUMENT", True)


# -- The default entry ---------------------------------------------------------------------------


def default(build: Builder, table: str, *action: Any, **fields: Any) -> Any:
    return build.entry(table, action=action or None, is_default_action=True, **fields)


def test_the_default_entry(features: Client, build: Builder, target: Target) -> None:
    left, right = target.plug(1), target.plug(2)
    ask = default(build, TERNARY)
    assert features.read(ask) == [default(build, TERNARY, NOTE, 1)]
    # A miss in the exact table goes on to the ternary one; its default drops by the LPM table.
    entry = default(build, TERNARY, FORWARD, 2, controller_metadata=5, metadata=b"m")
    features.write((MODIFY, entry))
    assert features.read(ask) == [entry]
    assert features.read(build.entry(TERNARY)) == []  # it is no entry like others
    features.write((MODIFY, default(build, EXACT, PUNT, 1, 1)))
    # No action: back to the program's, also in what such a message gives.
    features.write((MODIFY, default(build, TERNARY, controller_metadata=6, metadata=b"n")))
    assert features.read(ask) == [default(build, TERNARY, NOTE, 1)]
    left.send(ethernet(b"gone"))
    right.expect_nothing()


def test_the_default_entry_can_only_be_modified(features: Client, build: Builder) -> None:
    for kind in (INSERT, DELETE):
        code, text = features.refused(kind, default(build, TERNARY, NOTE, 1))
        assert code == "INVALID_ARGUMENT"
        assert "can only be MODIFYed" in text


def test_the_default_entry_has_no_key(features: Client, build: Builder) -> None:
    for entry in (
        default(build, TERNARY, NOTE, 1, priority=1),
        build.entry(TERNARY, [exact(2, 1)], (NOTE, 1), is_default_action=True),
    ):
        assert features.refused(MODIFY, entry)[0] == "INVALID_ARGUMENT"
        entry.ClearField("action")
        assert features.read_refused(entry)[0] == "INVALID_ARGUMENT"


def test_a_constant_default_action_stays(features: Client, build: Builder) -> None:
    for entry in (default(build, LPM, FORWARD, 1), default(build, LPM)):
        code, text = features.refused(MODIFY, entry)
        assert code == "PERMISSION_DENIED"
        assert "default action of table 'ingress.lpm_table' is constant" in text
    # "true if and only if the entry cannot be modified or deleted by the client"
    assert features.read(default(build, LPM)) == [default(build, LPM, DROP, is_const=True)]
    others = (EXACT, TERNARY, CONST, KEYLESS)
    assert not any(features.read(default(build, table))[0].is_const for table in others)


def test_all_default_entries_at_once(features: Client, build: Builder) -> None:
    read = features.read(p4rt.TableEntry(is_default_action=True))
    assert {entry.table_id for entry in read} == {t.preamble.id for t in build.p4info.tables}
    assert all(entry.is_default_action for entry in read)


def test_a_keyless_table_has_only_the_default(features: Client, build: Builder) -> None:
    code, text = features.refused(INSERT, build.entry(KEYLESS, [], (NOTE, 1)))
    assert code == "INVALID_ARGUMENT"
    assert "has no key" in text
    features.write((MODIFY, default(build, KEYLESS, NOTE, 9)))
    assert features.read(default(build, KEYLESS)) == [default(build, KEYLESS, NOTE, 9)]


# -- Constant tables -----------------------------------------------------------------------------


def test_constant_entries_can_be_read(features: Client, build: Builder) -> None:
    read = features.read(build.entry(CONST))
    assert read == [
        build.entry(CONST, [ternary(1, 0x88B5, 0xFFFF)], (NOTE, 5), priority=2, is_const=True),
        build.entry(CONST, [ternary(1, 0x8800, 0xFF00)], (NOTE, 6), priority=1, is_const=True),
    ]


def test_constant_tables_cannot_be_changed(features: Client, build: Builder) -> None:
    there = build.entry(CONST, [ternary(1, 0x88B5, 0xFFFF)], (NOTE, 5), priority=2)
    new = build.entry(CONST, [ternary(1, 1, 1)], (NOTE, 5), priority=9)
    for kind, entry in ((INSERT, new), (MODIFY, there), (DELETE, there), (DELETE, new)):
        code, text = features.refused(kind, entry)
        assert code == "PERMISSION_DENIED"
        assert "'ingress.const_table'" in text
    features.write((MODIFY, default(build, CONST, NOTE, 8)))  # its default is not constant
    assert len(features.read(build.entry(CONST))) == 2


def test_clients_make_no_constants(features: Client, build: Builder) -> None:
    for kind in (INSERT, MODIFY, DELETE):
        code, text = features.refused(kind, exact_entry(build, is_const=True))
        assert code == "INVALID_ARGUMENT"
        assert "is_const" in text


# -- Resources that the program has not ----------------------------------------------------------


def test_resources_of_other_tables_are_refused(features: Client, build: Builder) -> None:
    lpm_entry = build.entry(LPM, [lpm(1, SRC, 48)], (FORWARD, 1))
    for fields, complaint in (
        ({"counter_data": {"packet_count": 1}}, "has no direct counter"),
        ({"meter_config": {"cir": 1}}, "has no direct meter"),
        ({"idle_timeout_ns": 1000}, "has no idle timeout"),
        ({"time_since_last_hit": {"elapsed_ns": 1}}, "can only be read"),
    ):
        entry = p4rt.TableEntry(**fields)
        entry.MergeFrom(lpm_entry)
        code, text = features.refused(INSERT, entry)
        assert code == "INVALID_ARGUMENT"
        assert complaint in text


@pytest.mark.parametrize(
    "message",
    [
        p4rt.ActionProfileMember(action_profile_id=1),
        p4rt.ActionProfileGroup(action_profile_id=1),
        p4rt.MeterEntry(meter_id=1),
        p4rt.DigestEntry(digest_id=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_program_has_none_of(features: Client, message: Any) -> None:
    for code, text in (features.refused(MODIFY, message), features.read_refused(message)):
        assert code == "INVALID_ARGUMENT"
        assert "this pipeline has no" in text


def test_kinds_without_support_say_so(features: Client) -> None:
    message = p4rt.ExternEntry(extern_type_id=1)
    assert features.refused(MODIFY, message)[0] == "UNIMPLEMENTED"
    assert features.read_refused(message)[0] == "UNIMPLEMENTED"


def test_reading_all_of_what_there_is_none_of(features: Client) -> None:
    assert (
        features.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup(), p4rt.MeterEntry())
        == []
    )


# -- Batches -------------------------------------------------------------------------------------


def test_each_update_of_a_batch_has_its_own_outcome(features: Client, build: Builder) -> None:
    with pytest.raises(BatchError, match="3 of 5 updates failed, the first at index 1") as caught:
        features.write(
            (INSERT, exact_entry(build, port=1)),
            (INSERT, exact_entry(build, port=1)),
            (DELETE, exact_entry(build, port=9)),
            (INSERT, exact_entry(build, port=2)),
            (INSERT, exact_entry(build, port=0x3FF)),
        )
    assert caught.value.codes == ["OK", "ALREADY_EXISTS", "NOT_FOUND", "OK", "INVALID_ARGUMENT"]
    assert [bool(error.message) for error in caught.value.errors] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert features.read(build.entry(EXACT)) == [
        exact_entry(build, port=1),
        exact_entry(build, port=2),
    ]


def test_a_large_failing_batch_still_tells_every_code(features: Client, build: Builder) -> None:
    # gRPC clients take 8 KiB of trailing metadata; texts must not cost the codes.
    for size in (20, 100, 150):
        wrong = [exact_entry(build, port=0x200 + i) for i in range(size)]
        with pytest.raises(BatchError) as caught:
            features.write(*((INSERT, entry) for entry in wrong))
        assert caught.value.codes == ["INVALID_ARGUMENT"] * size
        assert "takes 10 bits" in str(caught.value)
        assert caught.value.size < 7200
    assert [bool(error.message) for error in caught.value.errors].count(True) < 150


def test_a_large_batch(features: Client, build: Builder) -> None:
    entries = [
        build.entry(TERNARY, [ternary(1, i, 0xFF), exact(2, i)], (FORWARD, 1), priority=1 + i)
        for i in range(64)
    ]
    features.write(*((INSERT, entry) for entry in entries))
    assert features.read(build.entry(TERNARY)) == entries


@pytest.mark.parametrize("atomicity", ["ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"])
def test_atomic_batches_are_not_supported(features: Client, build: Builder, atomicity: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        features.write((INSERT, exact_entry(build)), atomicity=atomicity)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert features.read(build.entry(EXACT)) == []


def test_an_empty_entity_is_refused(features: Client) -> None:
    request = p4rt.WriteRequest(device_id=1, election_id={"low": 1})
    request.updates.add(type=INSERT)
    with pytest.raises(grpc.RpcError) as caught:
        features.stub.Write(request, timeout=120)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "has no entity" in caught.value.details()


def test_mangled_updates_are_refused_cleanly(features: Client, build: Builder) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    samples = [
        build.entry(EXACT, [exact(1, DST), exact(2, 1)], (PUNT, 5, 6), counter_data={}),
        build.entry(TERNARY, [ternary(1, 1, 3), exact(2, 1)], (FORWARD, 1), priority=1),
        build.entry(LPM, [lpm(1, SRC, 48)], (NOTE, 1), controller_metadata=1),
        build.entry(TERNARY, action=(NOTE, 3), is_default_action=True),
        p4rt.CounterEntry(counter_id=build.id("ingress.by_port"), index={"index": 3}, data={}),
        p4rt.MulticastGroupEntry(
            multicast_group_id=3, replicas=[{"egress_port": 1, "instance": 1}]
        ),
    ]
    mangled = []
    while len(mangled) < 1000:
        data = bytearray(entity(rng.choice(samples)).SerializeToString())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            mangled.append(p4rt.Entity.FromString(bytes(data)))
        except (DecodeError, UnicodeDecodeError):
            continue
    codes: set[str] = set()
    for start in range(0, len(mangled), 50):
        request = p4rt.WriteRequest(device_id=1, election_id={"low": 1})
        for item in mangled[start : start + 50]:
            request.updates.add(type=rng.choice([INSERT, MODIFY, DELETE]), entity=item)
        try:
            features.stub.Write(request, timeout=120)
        except grpc.RpcError as error:
            codes.update(BatchError(error).codes)
    assert {"INVALID_ARGUMENT", "NOT_FOUND"} <= codes
    assert not codes & {"INTERNAL", "UNKNOWN"}
    features.read(p4rt.TableEntry(), p4rt.CounterEntry(), p4rt.MulticastGroupEntry())


# -- Reading -------------------------------------------------------------------------------------


@pytest.fixture
def filled(features: Client, build: Builder) -> Client:
    """Entries in three tables."""
    features.write(
        *((INSERT, exact_entry(build, port=i, controller_metadata=i % 2)) for i in range(4)),
        (INSERT, build.entry(LPM, [lpm(1, SRC, 48)], (DROP,))),
        (INSERT, build.entry(TERNARY, [exact(2, 1)], (FORWARD, 1), priority=7, metadata=b"a")),
        (INSERT, build.entry(TERNARY, [exact(2, 1)], (NOTE, 1), priority=8, metadata=b"b")),
        (INSERT, build.entry(TERNARY, [exact(2, 2)], (NOTE, 2), priority=8)),
    )
    return features


def test_read_all_tables(filled: Client, build: Builder) -> None:
    read = filled.read(p4rt.TableEntry())
    by_table = {table.preamble.name: 0 for table in build.p4info.tables}
    names = {build.id(name): name for name in by_table}
    for entry in read:
        by_table[names[entry.table_id]] += 1
    assert by_table == {EXACT: 4, LPM: 1, TERNARY: 3, CONST: 2, KEYLESS: 0}


def test_read_one_entry(filled: Client, build: Builder) -> None:
    ask = build.entry(EXACT, [exact(1, DST), exact(2, 3)])
    assert filled.read(ask) == [exact_entry(build, port=3, controller_metadata=1)]
    assert filled.read(build.entry(EXACT, [exact(1, DST), exact(2, 9)])) == []
    assert filled.read_refused(build.entry(EXACT, [exact(1, DST)]))[0] == "INVALID_ARGUMENT"


def test_read_with_filters(filled: Client, build: Builder) -> None:
    def keys(**fields: Any) -> list[tuple[bytes, int]]:
        return [
            (e.match[0].exact.value, e.priority)
            for e in filled.read(build.entry(TERNARY, **fields))
        ]

    assert keys() == [(b"\x01", 7), (b"\x01", 8), (b"\x02", 8)]
    assert keys(priority=8) == [(b"\x01", 8), (b"\x02", 8)]
    assert keys(match=[exact(2, 1)]) == [(b"\x01", 7), (b"\x01", 8)]
    assert keys(match=[exact(2, 1)], priority=7) == [(b"\x01", 7)]
    assert keys(match=[exact(2, 1)], priority=9) == []
    assert keys(metadata=b"b") == [(b"\x01", 8)]
    ask = build.entry(TERNARY)
    ask.action.action.action_id = build.id(NOTE)
    assert len(filled.read(ask)) == 2
    assert len(filled.read(build.entry(EXACT, controller_metadata=1))) == 2


def test_all_tables_take_no_filter(filled: Client, build: Builder) -> None:
    for ask in (
        p4rt.TableEntry(priority=1),
        p4rt.TableEntry(match=[exact(1, 1)]),
        p4rt.TableEntry(action={"action": {"action_id": build.id(NOTE)}}),
    ):
        code, text = filled.read_refused(ask)
        assert code == "INVALID_ARGUMENT"
        assert "takes no filter" in text


def test_what_is_read_can_be_written_again(filled: Client, build: Builder) -> None:
    before = [e for e in filled.read(p4rt.TableEntry()) if not e.is_const]
    filled.set_config(config("p4rt_features"))
    filled.write(*((INSERT, entry) for entry in before))
    after = [e for e in filled.read(p4rt.TableEntry()) if not e.is_const]
    assert after == before


def test_a_read_batch_answers_what_it_can(filled: Client, build: Builder) -> None:
    request = p4rt.ReadRequest(device_id=1)
    request.entities.add(table_entry=build.entry(LPM))
    request.entities.add(table_entry={"table_id": 99})
    request.entities.add()
    request.entities.add(table_entry=build.entry(EXACT))
    answers = filled.stub.Read(request, timeout=120)
    assert len(next(answers).entities) == 5
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert BatchError(caught.value).codes == ["OK", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "OK"]


def test_a_long_answer_comes_in_parts(features: Client, build: Builder) -> None:
    entries = [build.entry(LPM, [lpm(1, i << 8, 40)], (FORWARD, 1)) for i in range(64)]
    features.write(*((INSERT, entry) for entry in entries))
    asks = [build.entry(LPM)] * 6
    responses = list(features.responses(*asks))
    assert len(responses) > 1
    assert sum(len(r.entities) for r in responses) == 6 * 64


@pytest.mark.parametrize(("count", "size"), [(60, 100_000), (12, 700_000), (2, 4_000_000)])
def test_a_long_answer_is_split_by_bytes(
    features: Client, build: Builder, count: int, size: int
) -> None:
    """A client of gRPC takes messages of 4 MiB, unless told otherwise."""
    entries = [
        build.entry(LPM, [lpm(1, i << 8, 40)], (FORWARD, 1), metadata=bytes([i]) * size)
        for i in range(count)
    ]
    for entry in entries:
        features.write((INSERT, entry))
    answers = list(features.responses(build.entry(LPM), build.entry(LPM)))
    assert [e.table_entry for a in answers for e in a.entities] == 2 * entries
    assert all(answer.entities for answer in answers)
