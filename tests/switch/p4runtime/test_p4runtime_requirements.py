# SPDX-License-Identifier: Apache-2.0
"""The table of requirements in docs/bmv2-differences.md: each row is run on both switches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import INSERT, MODIFY, BatchError, Builder, Client, config, exact
from two_targets import Start

pytest_plugins = ("two_targets",)

PAGE = Path(__file__).parents[3] / "docs" / "bmv2-differences.md"
FEATURES, PROFILES, UNUSED = Builder("p4rt_features"), Builder("profiles"), Builder("unused")
EXACT, LPM = "ingress.exact_table", "ingress.lpm_table"
ENTRY = FEATURES.entry(EXACT, [exact(1, 2), exact(2, 1)], ("ingress.forward", 2))
BALANCER = PROFILES.id("I.balancer")
MEMBER = p4rt.ActionProfileMember(
    action_profile_id=BALANCER, member_id=1, action=PROFILES.action("I.stamp", 1, 2)
)


def outcome(step: Callable[[], Any]) -> str:
    """What a request ends with: OK, a code, or what it gives."""
    try:
        result = step()
    except BatchError as error:
        return error.codes[0]
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK" if result is None else str(result)


def register(client: Client) -> str:
    entry = p4rt.RegisterEntry(register_id=FEATURES.id("ingress.seen"), index={"index": 1})
    entry.data.bitstring = b"\5"
    return outcome(lambda: client.write((MODIFY, entry)))


def initial_entry(client: Client) -> str:
    entry = UNUSED.entry("I.initial", [exact(1, 9)], ("I.set", 1))
    return outcome(lambda: client.write((MODIFY, entry)))


def room(client: Client) -> str:
    entry = UNUSED.entry("I.initial", [exact(1, 77)], ("I.set", 1))
    return outcome(lambda: client.write((INSERT, entry)))


def constant_default(client: Client) -> str:
    ask = FEATURES.entry(LPM, is_default_action=True)
    return outcome(lambda: f"is_const {client.read(ask)[0].is_const}".lower())


def indirect_default(client: Client) -> str:
    ask = PROFILES.entry("I.picked", is_default_action=True)

    def read() -> str:
        found = client.read(ask)
        return "NoAction" if found and found[0].HasField("action") else "no action"

    return outcome(read)


def group(client: Client, **fields: Any) -> str:
    client.write((INSERT, MEMBER))
    member = {"member_id": 1, "weight": 1} | fields.pop("member", {})
    message = p4rt.ActionProfileGroup(
        action_profile_id=BALANCER, group_id=1, members=[member], **({"max_size": 4} | fields)
    )
    return outcome(lambda: client.write((INSERT, message)))


def one_shot(client: Client) -> str:
    client.write((INSERT, MEMBER))
    entry = PROFILES.entry("I.picked", [exact(1, 1)])
    action = {"action": PROFILES.action("I.stamp", 1, 2), "weight": 1}
    entry.action.action_profile_action_set.action_profile_actions.add(**action)
    return outcome(lambda: client.write((INSERT, entry)))


def backup(client: Client) -> str:
    replica = p4rt.Replica(egress_port=1)
    if "backup_replicas" not in replica.DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no backup replicas")
    replica.backup_replicas.add(port=b"\2")
    message = p4rt.MulticastGroupEntry(multicast_group_id=1, replicas=[replica])
    return outcome(lambda: client.write((INSERT, message)))


def capabilities(client: Client) -> str:
    request = p4rt.CapabilitiesRequest()
    if "device_id" not in request.DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no device in the request")
    request.device_id = 99

    def ask() -> None:
        client.stub.Capabilities(request, timeout=120)

    return outcome(ask)


def reconcile(client: Client) -> str:
    client.write((INSERT, ENTRY))

    def again() -> str:
        client.set_config(config("p4rt_features"), "RECONCILE_AND_COMMIT")
        return f"{len(client.read(FEATURES.entry(EXACT)))} of 1 entries stay"

    return outcome(again)


def atomic(mode: str) -> Callable[[Client], str]:
    return lambda client: outcome(lambda: client.write((INSERT, ENTRY), atomicity=mode))


def extern(client: Client) -> str:
    return outcome(lambda: client.write((MODIFY, p4rt.ExternEntry(extern_type_id=1))))


ROWS: dict[str, tuple[str, Callable[[Client], str]]] = {
    "`RegisterEntry` is written by index": ("p4rt_features", register),
    "an entry of `entries` without `const` is modified": ("unused", initial_entry),
    "another one is inserted": ("unused", room),
    "a constant default entry is read": ("p4rt_features", constant_default),
    "the default entry of an indirect table is read": ("profiles", indirect_default),
    "a group has `max_size` 0 beside a limit": ("profiles", lambda c: group(c, max_size=0)),
    "a group has an empty `watch_port`": (
        "profiles",
        lambda c: group(c, member={"watch_port": b""}),
    ),
    "a one-shot action set beside members": ("profiles", one_shot),
    "`backup_replicas`": ("p4rt_features", backup),
    "`Capabilities` of an unknown device": ("p4rt_features", capabilities),
    "`RECONCILE_AND_COMMIT` of the same program": ("p4rt_features", reconcile),
    "`ROLLBACK_ON_ERROR`": ("p4rt_features", atomic("ROLLBACK_ON_ERROR")),
    "`DATAPLANE_ATOMIC`": ("p4rt_features", atomic("DATAPLANE_ATOMIC")),
    "`ExternEntry`": ("p4rt_features", extern),
}


def said(row: str) -> dict[str, str]:
    """What the page says of a row."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == row:
            return {"embedded": cells[1], "bmv2": cells[2]}
    raise AssertionError(f"{PAGE} has no row {row!r}")


@pytest.mark.parametrize("row", ROWS)
def test_the_page_is_right(start: Start, request: pytest.FixtureRequest, row: str) -> None:
    target = "bmv2" if "bmv2" in request.node.callspec.id else "embedded"
    program, act = ROWS[row]
    assert act(start(program)) == said(row)[target]
