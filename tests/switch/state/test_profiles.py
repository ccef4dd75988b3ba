# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors: what packets make of them, and every rule of P4Runtime 1.4.1.

Of programs/profiles.p4: `picked` has a selector (at most 8 members, 6 a group), `first` and
`second` share a profile of 4 members.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.program.hashes import ALGORITHMS
from p4reduce_switch.state.tables import TableEntry
from p4reduce_switch.state.targets import GroupRef
from p4rt_client import DELETE, INSERT, MODIFY, Builder, Client, config, exact, ternary
from p4rt_fixtures import CPU_PORT
from pipeline_programs import load
from two_targets import Start, bmv2, embedded, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

BUILD = Builder("profiles")
BALANCER, HOPS = BUILD.id("I.balancer"), BUILD.id("I.hops")
PICKED, FIRST, SECOND = "I.picked", "I.first", "I.second"


def frame(x: int = 1, y: int = 0, z: int = 0, u: int | None = None) -> bytes:
    tail = b"" if u is None else struct.pack(">H", u)
    return struct.pack(">BBHBB", x, y, z, u is not None, 0) + tail + b"payload"


def member(number: int, value: int = 0, profile: int = BALANCER) -> Any:
    """A member that stamps `value` and sends to the controller; in HOPS one that marks."""
    action = (
        BUILD.action("I.stamp", value or number, CPU_PORT)
        if profile == BALANCER
        else BUILD.action("I.mark", value or number)
    )
    return p4rt.ActionProfileMember(action_profile_id=profile, member_id=number, action=action)


def group(number: int, weights: dict[int, int], max_size: int = 6) -> Any:
    members = [{"member_id": m, "weight": w} for m, w in weights.items()]
    return p4rt.ActionProfileGroup(
        action_profile_id=BALANCER, group_id=number, members=members, max_size=max_size
    )


def entry(x: int, **action: Any) -> Any:
    message = BUILD.entry(PICKED, [exact(1, x)])
    message.action.MergeFrom(p4rt.TableAction(**action))
    return message


def shared(table: str, number: int, **fields: Any) -> Any:
    message = BUILD.entry(table, [ternary(1, 7, 0xFF)], priority=1, **fields)
    message.action.action_profile_member_id = number
    return message


def one_shot(*parts: tuple[int, int]) -> Any:
    """An action set of (value stamped, weight)."""
    return {
        "action_profile_actions": [
            {"action": BUILD.action("I.stamp", value, CPU_PORT), "weight": weight}
            for value, weight in parts
        ]
    }


def stamped(client: Client, x: int, y: int, z: int = 0, u: int | None = None) -> int:
    return exchange(client, frame(x, y, z, u))[1]


def test_member_and_group(start: Start) -> None:
    client = start("profiles")
    client.write(*((INSERT, member(n)) for n in (1, 2, 3)))
    client.write((INSERT, group(1, {1: 1, 2: 1, 3: 1})))
    client.write(
        (INSERT, entry(1, action_profile_member_id=2)),
        (INSERT, entry(2, action_profile_group_id=1)),
    )
    assert exchange(client, frame(1, 9)) == struct.pack(">BBHBB", 1, 2, 0, 0, 0) + b"payload"
    # The hash is over y and z, as far as their header is there; members have handles 0, 1, 2.
    for y, z, u in ((0, 0, None), (1, 2, None), (200, 3000, None), (5, 5, 77)):
        key = struct.pack(">BH", y, z) + (b"" if u is None else struct.pack(">H", u))
        assert stamped(client, 2, y, z, u) == ALGORITHMS["crc16"](key) % 3 + 1
    client.write((MODIFY, member(2, value=99)))
    assert stamped(client, 1, 0) == 99
    assert {stamped(client, 2, y) for y in range(20)} == {1, 99, 3}
    client.write((MODIFY, group(1, {3: 2})))
    assert {stamped(client, 2, y) for y in range(20)} == {3}
    client.write((MODIFY, entry(2, action_profile_member_id=1)))
    assert stamped(client, 2, 0) == 1


def test_shared_profile(start: Start) -> None:
    # With packets only through `second`: BMv2 ends in `first`, which continues by action.
    client = start("profiles")
    client.write((INSERT, member(1)), (INSERT, entry(1, action_profile_member_id=1)))
    client.write((INSERT, member(4, value=5, profile=HOPS)))
    message = BUILD.entry(
        SECOND, [p4rt.FieldMatch(field_id=1, lpm={"value": b"\1", "prefix_len": 8})]
    )
    message.action.action_profile_member_id = 4
    client.write((INSERT, message))
    assert exchange(client, frame(1))[5] == 5
    client.write((MODIFY, member(4, value=6, profile=HOPS)))
    assert exchange(client, frame(1))[5] == 6


def test_next_by_action_of_a_shared_member(start_ours: Start) -> None:
    client = start_ours("profiles")
    client.write((INSERT, member(1)), (INSERT, entry(1, action_profile_member_id=1)))
    nothing = p4rt.ActionProfileMember(
        action_profile_id=HOPS, member_id=2, action=BUILD.action("NoAction")
    )
    client.write((INSERT, member(4, value=5, profile=HOPS)), (INSERT, nothing))
    assert exchange(client, frame(1, z=7))[5] == 0
    client.write((INSERT, shared(FIRST, 4)))
    assert exchange(client, frame(1, z=7))[5] == 0x45
    client.write((MODIFY, shared(FIRST, 2)))
    assert exchange(client, frame(1, z=7))[5] == 0x20


def test_misses_do_nothing(start: Start) -> None:
    client = start("profiles")
    client.write((INSERT, member(1)), (INSERT, entry(1, action_profile_member_id=1)))
    assert exchange(client, frame(1))[5] == 0
    pipeline = load("profiles")
    assert pipeline.process(0, frame(3)) == [(9, frame(3)[:5] + b"\x80" + frame(3)[6:])]


def test_a_group_without_members_does_nothing() -> None:
    pipeline = load("profiles")
    pipeline.profiles["I.balancer"].insert_group(1, {}, 0)
    pipeline.tables[PICKED].insert(TableEntry((1,), 0, "", (), target=GroupRef(1)))
    assert pipeline.process(0, frame(1)) == [(9, frame(1))]
    (hit,) = pipeline.tables[PICKED].entries()
    assert (hit.packets, hit.bytes) == (1, len(frame(1)))


def test_one_shot(start: Start) -> None:
    client = start("profiles")
    wanted = entry(1, action_profile_action_set=one_shot((11, 1), (12, 3), (13, 1)))
    client.write((INSERT, wanted))
    order = (11, 12, 12, 12, 13)
    for y in range(30):
        key = struct.pack(">BH", y, 0)
        assert stamped(client, 1, y) == order[ALGORITHMS["crc16"](key) % 5]
    (read,) = client.read(p4rt.TableEntry(table_id=BUILD.id(PICKED)))
    assert read == wanted
    client.write((MODIFY, entry(1, action_profile_action_set=one_shot((14, 1)))))
    assert {stamped(client, 1, y) for y in range(10)} == {14}
    client.write((DELETE, entry(1)))
    assert client.read(p4rt.TableEntry(table_id=BUILD.id(PICKED))) == []


def random_steps(rng: random.Random) -> list[Any]:
    """Updates that BMv2 accepts, and frames (as bytes)."""
    steps: list[Any] = []
    members: set[int] = set()
    groups: dict[int, dict[int, int]] = {}
    used: dict[int, int] = {}
    for _ in range(120):
        kind = rng.randrange(7)
        if kind == 0 and len(members) < 8:
            number = rng.choice([n for n in range(1, 20) if n not in members])
            members.add(number)
            steps.append((INSERT, member(number)))
        elif kind == 1:
            free = [m for m in members if not any(m in g for g in groups.values())]
            if free:
                gone = rng.choice(free)
                members.remove(gone)
                steps.append((DELETE, member(gone)))
        elif kind in (2, 3) and members:
            number = rng.randrange(1, 5)
            weights: dict[int, int] = {}
            for chosen in rng.sample(sorted(members), rng.randrange(1, min(3, len(members)) + 1)):
                weights[chosen] = rng.randrange(1, 3)
            steps.append((MODIFY if number in groups else INSERT, group(number, weights)))
            groups[number] = weights
        elif kind == 4 and groups:
            x, number = rng.randrange(4), rng.choice(sorted(groups))
            update = MODIFY if x in used else INSERT
            steps.append((update, entry(x, action_profile_group_id=number)))
            used[x] = number
        elif kind == 5:
            unused = [g for g in groups if g not in used.values()]
            if unused:
                gone = rng.choice(unused)
                del groups[gone]
                steps.append((DELETE, group(gone, {})))
        elif used:
            u = rng.choice((None, rng.getrandbits(16)))
            steps += [
                frame(x, rng.getrandbits(8), rng.getrandbits(16), u)
                for x in rng.choices([*used], k=4)
            ]
    return steps


@pytest.mark.bmv2
def test_bmv2_chooses_the_same_members(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    steps = random_steps(random.Random(seed))
    with embedded("profiles", tmp_path) as ours, bmv2("profiles", tmp_path) as theirs:
        for number, step in enumerate(steps):
            if isinstance(step, bytes):
                assert exchange(ours, step) == exchange(theirs, step), (number, step.hex())
            else:
                ours.write(step)
                theirs.write(step)


def test_members_and_groups_are_read_back(start: Start) -> None:
    client = start("profiles")
    written = [member(5), member(6), member(1, profile=HOPS)]
    client.write(*((INSERT, m) for m in written))
    groups = [group(3, {5: 2, 6: 1}), group(4, {6: 1}, max_size=2)]
    client.write(*((INSERT, g) for g in groups))
    client.write((INSERT, entry(1, action_profile_group_id=3)))

    # BMv2 gives a member once more for each unit of its largest weight.
    everything = client.read(p4rt.ActionProfileMember(action_profile_id=BALANCER))
    assert {m.SerializeToString() for m in everything} == {
        m.SerializeToString() for m in written[:2]
    }
    read = client.read(p4rt.ActionProfileGroup(action_profile_id=BALANCER, group_id=3))
    for message in read:
        message.members.sort(key=lambda m: m.member_id)
    assert read == groups[:1]
    assert client.read(p4rt.TableEntry(table_id=BUILD.id(PICKED))) == [
        entry(1, action_profile_group_id=3)
    ]


def test_reading_all_profiles_at_once(start_ours: Start) -> None:
    client = start_ours("profiles")
    written = [member(5), member(6), member(1, profile=HOPS)]
    client.write(*((INSERT, m) for m in written))
    client.write((INSERT, group(3, {5: 2})))
    assert client.read(p4rt.ActionProfileMember()) == written
    assert client.read(p4rt.ActionProfileGroup()) == [group(3, {5: 2})]
    one = p4rt.ActionProfileMember(action_profile_id=BALANCER, member_id=7)
    assert client.read_refused(one)[0] == "NOT_FOUND"
    assert client.read_refused(p4rt.ActionProfileMember(member_id=7))[0] == "INVALID_ARGUMENT"


def test_the_default_entry_is_a_constant_no_action(start_ours: Start) -> None:
    client = start_ours("profiles")
    for table in (PICKED, FIRST, SECOND):
        ask = BUILD.entry(table, is_default_action=True)
        wanted = BUILD.entry(table, [], ("NoAction",), is_default_action=True, is_const=True)
        assert client.read(ask) == [wanted]
        for message in (BUILD.entry(table, [], ("NoAction",), is_default_action=True), ask):
            assert client.refused(MODIFY, message)[0] == "PERMISSION_DENIED"
    client.send(packet={"payload": frame(77)})
    client.write((INSERT, member(1)), (INSERT, entry(1, action_profile_member_id=1)))
    exchange(client, frame(1))  # behind the one that missed
    (counted,) = client.read(
        p4rt.DirectCounterEntry(table_entry=BUILD.entry(PICKED, is_default_action=True))
    )
    assert counted.data.packet_count == 1


@pytest.fixture
def client(start_ours: Start) -> Client:
    """Members 1 and 2, group 1 of member 1, entry 1 of member 2, entry 2 of group 1."""
    client = start_ours("profiles")
    client.write((INSERT, member(1)), (INSERT, member(2)), (INSERT, group(1, {1: 1})))
    client.write(
        (INSERT, entry(1, action_profile_member_id=2)),
        (INSERT, entry(2, action_profile_group_id=1)),
    )
    return client


BAD_PARAM = p4rt.ActionProfileMember(action_profile_id=BALANCER, member_id=3)
BAD_PARAM.action.CopyFrom(BUILD.action("I.mark", 1))
WATCHED = group(2, {1: 1})
WATCHED.members[0].watch_port = b"\1"
OLD_WATCHED = group(2, {1: 1})
OLD_WATCHED.members[0].watch = 0
ONE_SHOT = entry(3, action_profile_action_set=one_shot((11, 1)))
ONE_SHOT_OF_1 = entry(1, action_profile_action_set=one_shot((11, 1)))


@pytest.mark.parametrize(
    ("update", "message", "code", "said"),
    [
        (INSERT, member(1), "ALREADY_EXISTS", "already has a member 1"),
        (MODIFY, member(3), "NOT_FOUND", "has no member 3"),
        (DELETE, member(3), "NOT_FOUND", "has no member 3"),
        (DELETE, member(1), "FAILED_PRECONDITION", "is in group 1"),
        (DELETE, member(2), "FAILED_PRECONDITION", "is used by 1 entries, as in I.picked"),
        (INSERT, member(0), "INVALID_ARGUMENT", "ids start at 1"),
        (INSERT, BAD_PARAM, "INVALID_ARGUMENT", "is not an action of table"),
        (
            INSERT,
            p4rt.ActionProfileMember(action_profile_id=BALANCER, member_id=9),
            "INVALID_ARGUMENT",
            "has no action",
        ),
        (
            INSERT,
            p4rt.ActionProfileMember(action_profile_id=5, member_id=9),
            "INVALID_ARGUMENT",
            "this pipeline has no action profile with id 0x5",
        ),
        (INSERT, group(1, {1: 1}), "ALREADY_EXISTS", "already has a group 1"),
        (MODIFY, group(2, {1: 1}), "NOT_FOUND", "has no group 2"),
        (DELETE, group(2, {}), "NOT_FOUND", "has no group 2"),
        (DELETE, group(1, {}), "FAILED_PRECONDITION", "is used by 1 entries"),
        (INSERT, group(0, {1: 1}), "INVALID_ARGUMENT", "ids start at 1"),
        (INSERT, group(2, {7: 1}), "NOT_FOUND", "has no member 7"),
        (INSERT, group(2, {1: 0}), "INVALID_ARGUMENT", "weight 0"),
        (INSERT, group(2, {1: 4, 2: 3}), "RESOURCE_EXHAUSTED", "add up to 7; at most 6"),
        (INSERT, group(2, {1: 4}, max_size=3), "RESOURCE_EXHAUSTED", "at most 3"),
        (INSERT, group(2, {1: 1}, max_size=0), "INVALID_ARGUMENT", "not within 1 to 6"),
        (INSERT, group(2, {}, max_size=-1), "INVALID_ARGUMENT", "not within 1 to 6"),
        (INSERT, group(2, {1: 1}, max_size=7), "INVALID_ARGUMENT", "not within 1 to 6"),
        (MODIFY, group(1, {1: 1}, max_size=0), "INVALID_ARGUMENT", "not within 1 to 6"),
        (MODIFY, group(1, {1: 1}, max_size=5), "INVALID_ARGUMENT", "cannot change from 6 to 5"),
        (INSERT, WATCHED, "UNIMPLEMENTED", "watch_port of group 2 of 'I.balancer'"),
        (INSERT, OLD_WATCHED, "UNIMPLEMENTED", "watch of group 2 of 'I.balancer'"),
        (
            INSERT,
            p4rt.ActionProfileGroup(action_profile_id=HOPS, group_id=1),
            "INVALID_ARGUMENT",
            "it has no groups",
        ),
        (INSERT, entry(3, action_profile_member_id=7), "NOT_FOUND", "has no member 7"),
        (INSERT, entry(3, action_profile_group_id=7), "NOT_FOUND", "has no group 7"),
        (MODIFY, entry(1, action_profile_group_id=7), "NOT_FOUND", "has no group 7"),
        (
            INSERT,
            entry(3, action={"action_id": BUILD.id("I.stamp")}),
            "INVALID_ARGUMENT",
            "takes action_profile_member_id or action_profile_group_id or",
        ),
        (INSERT, ONE_SHOT, "INVALID_ARGUMENT", "I.balancer has 2 members and 1 groups"),
        (MODIFY, ONE_SHOT_OF_1, "INVALID_ARGUMENT", "one-shot programming"),
        (
            INSERT,
            entry(3, action_profile_action_set=one_shot((1, 4), (2, 3))),
            "INVALID_ARGUMENT",
            "add up to 7",
        ),
        (
            INSERT,
            entry(3, action_profile_action_set=one_shot((1, 0))),
            "INVALID_ARGUMENT",
            "weight 0",
        ),
        (
            INSERT,
            entry(3, action_profile_action_set={}),
            "UNIMPLEMENTED",
            "is empty",
        ),
        (
            MODIFY,
            BUILD.entry(PICKED, action=("I.stamp", 1, 1), is_default_action=True),
            "PERMISSION_DENIED",
            "is constant",
        ),
    ],
)
def test_refused(client: Client, update: int, message: Any, code: str, said: str) -> None:
    before = client.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup())
    got, text = client.refused(update, message)
    assert (got, said in text) == (code, True), (got, text)
    assert client.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup()) == before
    assert stamped(client, 1, 0) == 2
    assert stamped(client, 2, 0) == 1


def test_a_group_is_only_for_selectors(client: Client) -> None:
    message = shared(FIRST, 1)
    message.action.action_profile_group_id = 1
    assert "takes action_profile_member_id, but" in client.refused(INSERT, message)[1]


def test_profile_full(client: Client) -> None:
    client.write(*((INSERT, member(n, profile=HOPS)) for n in range(1, 5)))
    code, text = client.refused(INSERT, member(5, profile=HOPS))
    assert (code, "it holds 4 members" in text) == ("RESOURCE_EXHAUSTED", True)
    client.write((DELETE, member(3, profile=HOPS)), (INSERT, member(5, profile=HOPS)))


def test_deleting_entries_frees_what_they_use(client: Client) -> None:
    client.write((DELETE, entry(1)), (DELETE, member(2)))
    client.write((MODIFY, entry(2, action_profile_member_id=1)), (DELETE, group(1, {})))
    client.write((DELETE, entry(2)), (DELETE, member(1)))
    assert client.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup()) == []


def test_a_selector_is_programmed_in_one_way(client: Client) -> None:
    """By members and groups or by one-shots, until it is empty again."""
    client.write((DELETE, entry(1)), (DELETE, entry(2)), (DELETE, group(1, {})))
    # A member alone, that no entry refers to, is enough.
    assert client.refused(INSERT, ONE_SHOT)[0] == "INVALID_ARGUMENT"
    client.write((DELETE, member(1)), (DELETE, member(2)))
    client.write((INSERT, group(7, {})))
    assert client.refused(INSERT, ONE_SHOT)[0] == "INVALID_ARGUMENT"
    client.write((DELETE, group(7, {})), (INSERT, ONE_SHOT))
    for message in (
        member(1),
        group(1, {}),
        entry(4, action_profile_member_id=1),
        entry(4, action_profile_group_id=1),
    ):
        code, text = client.refused(INSERT, message)
        assert (code, "action sets of 1 entries" in text) == ("INVALID_ARGUMENT", True)
    assert client.refused(MODIFY, entry(3, action_profile_member_id=1))[0] == "INVALID_ARGUMENT"
    client.write((INSERT, member(1, profile=HOPS)))  # another profile
    client.write((MODIFY, entry(3, action_profile_action_set=one_shot((12, 1)))))
    assert stamped(client, 3, 0) == 12
    client.write((DELETE, ONE_SHOT), (INSERT, member(1)), (INSERT, group(1, {1: 1})))


def test_an_empty_watch_port_is_none(client: Client) -> None:
    watching = group(2, {1: 1, 2: 2})
    watching.members[1].watch_port = b""
    client.write((INSERT, watching))
    read = p4rt.ActionProfileGroup(action_profile_id=BALANCER, group_id=2)
    assert client.read(read) == [watching]
    client.write((MODIFY, group(2, {1: 1})))
    assert client.read(read) == [group(2, {1: 1})]


def test_what_a_selector_does_by_default_may_be_spelt_out(start_ours: Start) -> None:
    """A server must take the mode and size semantics that its selector has anyhow."""
    client = start_ours("profiles")
    message = p4rt.ActionProfileActionSet(**one_shot((11, 2)))
    if "size_semantics" not in message.DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no size_semantics")
    message.action_profile_actions[0].watch_port = b""
    for mode, size, refused in (
        (0, 0, None),
        (1, 1, None),
        (2, 0, "action_selection_mode"),
        (1, 0, "action_selection_mode"),
        (0, 2, "size_semantics"),
        (1, 2, "action_selection_mode"),
    ):
        message.action_selection_mode, message.size_semantics = mode, size
        wanted = entry(3, action_profile_action_set=message)
        if refused is not None:
            code, text = client.refused(INSERT, wanted)
            assert (code, refused in text) == ("UNIMPLEMENTED", True)
            continue
        client.write((INSERT, wanted))
        assert client.read(BUILD.entry(PICKED)) == [wanted]
        assert stamped(client, 3, 0) == 11
        client.write((DELETE, wanted))


def test_a_group_action_is_refused_by_name(start_ours: Start) -> None:
    client = start_ours("profiles")
    message = p4rt.ActionProfileActionSet(**one_shot((11, 1)))
    if "group_action" not in message.DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no group_action")
    message.group_action.CopyFrom(BUILD.action("I.mark", 1))
    code, text = client.refused(INSERT, entry(3, action_profile_action_set=message))
    assert (code, "group_action of the action set" in text) == ("UNIMPLEMENTED", True)

    config_with_scope = config("profiles")
    config_with_scope.p4info.tables[0].action_refs[0].scope = 3
    with pytest.raises(grpc.RpcError, match="scope GROUP_ACTION of action 'I") as caught:
        client.set_config(config_with_scope)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def changed_balancer(change: Callable[[Any], None]) -> Any:
    """The program with another P4Info of its selector."""
    message = config("profiles")
    for profile in message.p4info.action_profiles:
        if profile.preamble.id == BALANCER:
            change(profile)
    return message


def test_max_member_weight(start_ours: Start) -> None:
    client = start_ours("profiles")

    def limit(profile: Any) -> None:
        profile.sum_of_members.max_member_weight = 3

    client.set_config(changed_balancer(limit))
    client.write((INSERT, member(1)), (INSERT, member(2)), (INSERT, group(1, {1: 3, 2: 3})))
    code, text = client.refused(INSERT, group(2, {1: 4}))
    assert (code, "weight 4 in group 2" in text) == ("INVALID_ARGUMENT", True)
    client.set_config(changed_balancer(limit))
    many = [(value, 3) for value in range(6)]
    client.write((INSERT, entry(3, action_profile_action_set=one_shot(*many))))
    more = entry(4, action_profile_action_set=one_shot((1, 4)))
    assert client.refused(INSERT, more)[0] == "INVALID_ARGUMENT"


def test_groups_have_an_end(start_ours: Start) -> None:
    """Where the P4Info has no limit the switch has one."""
    client = start_ours("profiles")

    def free(profile: Any) -> None:
        profile.max_group_size = 0

    client.set_config(changed_balancer(free))
    client.write((INSERT, member(1)), (INSERT, member(2)))
    client.write((INSERT, group(1, {1: 1 << 15}, max_size=0)))
    client.write((INSERT, group(2, {1: 1}, max_size=1 << 16)))
    for message in (group(3, {1: 1 << 16, 2: 1}, max_size=0), group(3, {}, max_size=1 << 20)):
        code, text = client.refused(INSERT, message)
        assert (code, "above 65536" in text) == ("RESOURCE_EXHAUSTED", True)
    assert client.refused(INSERT, group(3, {}, max_size=-1))[0] == "INVALID_ARGUMENT"
    assert client.refused(INSERT, group(3, {1: 5}, max_size=4))[0] == "RESOURCE_EXHAUSTED"


def test_weights_disallowed_is_refused_by_name(start_ours: Start) -> None:
    client = start_ours("profiles")

    def disallow(profile: Any) -> None:
        if "weights_disallowed" not in profile.DESCRIPTOR.fields_by_name:
            pytest.skip("these stubs have no weights_disallowed")
        profile.weights_disallowed = True

    with pytest.raises(grpc.RpcError) as caught:
        client.set_config(changed_balancer(disallow), "VERIFY")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "weights_disallowed of action profile 'I.balancer'" in caught.value.details()
