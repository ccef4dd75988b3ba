# SPDX-License-Identifier: Apache-2.0
"""RECONCILE_AND_COMMIT: what still fits stays, or nothing changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import INSERT, MODIFY, Builder, Client, config, exact, lpm
from switch_peer import ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target
    from two_targets import Start

pytest_plugins = ("p4rt_fixtures", "two_targets")
pytestmark = pytest.mark.usefixtures("engine")

EXACT, LPM, FORWARD = "ingress.exact_table", "ingress.lpm_table", "ingress.forward"
DST = 0x020000000002
ALL = (
    p4rt.TableEntry(counter_data={}),
    p4rt.TableEntry(is_default_action=True),
    p4rt.MulticastGroupEntry(),
    p4rt.CloneSessionEntry(),
    p4rt.CounterEntry(),
    p4rt.RegisterEntry(),
)


def reconcile(client: Client, message: Any) -> None:
    client.set_config(message, "RECONCILE_AND_COMMIT")


def refused(client: Client, message: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        reconcile(client, message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


def with_size(table: str, size: int) -> Any:
    message = config("p4rt_features", cookie=size)
    program = json.loads(message.p4_device_config)
    for item in program["pipelines"][0]["tables"]:
        if item["name"] == table:
            item["max_size"] = size
    message.p4_device_config = json.dumps(program).encode()
    (info,) = (t for t in message.p4info.tables if t.preamble.name == table)
    info.size = size
    return message


@pytest.fixture
def filled(features: Client, build: Builder, target: Target) -> Client:
    """State of each kind, some of it by packets."""
    to_2 = (FORWARD, 2)
    features.write(
        (INSERT, build.entry(EXACT, [exact(1, DST), exact(2, 1)], to_2, metadata=b"m")),
        (INSERT, build.entry(LPM, [lpm(1, 1 << 41, 8)], to_2)),
        (MODIFY, build.entry(EXACT, [], to_2, is_default_action=True, metadata=b"d")),
        (INSERT, p4rt.MulticastGroupEntry(multicast_group_id=3, replicas=[{"port": b"\x01"}])),
        (INSERT, p4rt.CloneSessionEntry(session_id=4, replicas=[{"egress_port": 2}])),
    )
    left, right = target.plug(1), target.plug(2)
    for _ in range(3):
        left.send(ethernet(b"x"))
        right.receive()
    left.send(ethernet(b"x", dst="02:00:00:00:00:09"))  # a miss
    right.receive()
    left.close()
    right.close()
    return features


def test_everything_stays(filled: Client, build: Builder, target: Target) -> None:
    before = filled.read(*ALL)
    message = with_size(EXACT, 9)
    reconcile(filled, message)
    assert filled.read(*ALL) == before
    assert filled.get_config().config == message
    left, right = target.plug(1), target.plug(2)
    left.send(ethernet(b"y"))
    assert right.receive() == ethernet(b"y")
    (counted,) = filled.read(
        p4rt.DirectCounterEntry(table_entry=build.entry(EXACT, [exact(1, DST), exact(2, 1)]))
    )
    assert counted.data.packet_count == 4


def test_what_does_not_fit_is_told_and_nothing_changes(
    filled: Client, build: Builder, target: Target
) -> None:
    filled.write((INSERT, build.entry(EXACT, [exact(1, 5), exact(2, 1)], (FORWARD, 1))))
    before, old = filled.read(*ALL), filled.get_config()
    assert "an entry of table 'ingress.exact_table': table ingress.exact_table is full" in refused(
        filled, with_size(EXACT, 1)
    )
    text = refused(filled, config("p4rt_match_kinds"))
    assert "an entry of table 'ingress.lpm_table'" in text
    assert "nothing has changed" in text
    assert filled.read(*ALL) == before
    assert filled.get_config() == old
    left, right = target.plug(1), target.plug(2)
    left.send(ethernet(b"y"))
    assert right.receive() == ethernet(b"y")


def test_without_a_program_before_and_without_state(primary: Client) -> None:
    reconcile(primary, config("p4rt_features"))
    reconcile(primary, config("p4rt_match_kinds"))
    assert primary.get_config().config == config("p4rt_match_kinds")
    with pytest.raises(grpc.RpcError, match="needs a config"):
        reconcile(primary, None)


def test_members_and_groups_stay(start_ours: Start) -> None:
    client, build = start_ours("profiles"), Builder("profiles")
    balancer = build.id("I.balancer")
    member = p4rt.ActionProfileMember(
        action_profile_id=balancer, member_id=7, action=build.action("I.stamp", 1, 2)
    )
    group = p4rt.ActionProfileGroup(
        action_profile_id=balancer,
        group_id=3,
        members=[{"member_id": 7, "weight": 2}],
        max_size=4,
    )
    entry = build.entry("I.picked", [exact(1, 1)])
    entry.action.action_profile_group_id = 3
    client.write((INSERT, member), (INSERT, group), (INSERT, entry))
    reconcile(client, config("profiles"))
    assert client.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup()) == [member, group]
    assert client.read(build.entry("I.picked")) == [entry]
