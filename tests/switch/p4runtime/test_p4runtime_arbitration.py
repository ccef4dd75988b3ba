# SPDX-License-Identifier: Apache-2.0
"""Arbitration: P4Runtime 1.4.1, "Client Arbitration and Controller Replication"."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.p4runtime import listening
from p4reduce_switch.p4runtime.arbitration import Arbiter
from p4rt_client import INSERT, Builder, Client, config, exact, uint128

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

HUGE = (1 << 128) - 1


def standing(message: Any) -> tuple[str, int | None]:
    """(code, highest election id) of an arbitration message."""
    update = message.arbitration
    highest = None
    if update.HasField("election_id"):
        highest = update.election_id.high << 64 | update.election_id.low
    return code_pb2.Code.Name(update.status.code), highest


def ended_with(message: Any) -> tuple[grpc.StatusCode, str]:
    assert isinstance(message, grpc.RpcError), message
    return message.code(), message.details()


def may_write(client: Client) -> bool:
    """Whether the server takes the client for the primary (an empty batch changes nothing)."""
    try:
        client.write()
    except grpc.RpcError as error:
        # Without a pipeline the primary gets one step further.
        return error.code() == grpc.StatusCode.FAILED_PRECONDITION
    return True


def test_the_first_controller_is_primary(target: Target) -> None:
    client = target.client(election_id=5)
    assert not may_write(client)
    client.arbitrate()
    message = client.next()
    assert standing(message) == ("OK", 5)
    assert message.arbitration.device_id == 1
    assert may_write(client)


def test_a_lower_id_is_a_backup_and_told_the_primarys(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    assert standing(second.next()) == ("ALREADY_EXISTS", 5)
    assert may_write(first)
    assert not may_write(second)
    assert first.received.empty()  # nothing changed for the primary


def test_a_higher_id_takes_over_and_all_are_told(target: Target) -> None:
    first, second, third = (target.client(election_id=i) for i in (5, 4, HUGE))
    first.become_primary()
    second.arbitrate()
    second.next()
    third.arbitrate()
    assert standing(third.next()) == ("OK", HUGE)
    assert standing(first.next()) == ("ALREADY_EXISTS", HUGE)
    assert standing(second.next()) == ("ALREADY_EXISTS", HUGE)
    assert [may_write(c) for c in (first, second, third)] == [False, False, True]


def test_ids_compare_as_128_bits(target: Target) -> None:
    low, high = target.client(election_id=(1 << 64) - 1), target.client(election_id=1 << 64)
    low.become_primary()
    high.become_primary()
    assert standing(low.next()) == ("ALREADY_EXISTS", 1 << 64)


def test_when_the_primary_leaves_backups_are_told_and_none_takes_over(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    first.close()
    assert standing(second.next()) == ("NOT_FOUND", 5)
    assert not may_write(second)
    # 4 is not the highest seen, so claiming it again does not help; 5 does, though used before.
    second.arbitrate()
    assert standing(second.next()) == ("NOT_FOUND", 5)
    second.arbitrate(election_id=5)
    assert standing(second.next()) == ("OK", 5)
    assert may_write(second)


def test_the_same_id_returns_after_a_disconnect(target: Target) -> None:
    first = target.client(election_id=5)
    first.become_primary()
    first.close()
    again = target.client(election_id=5)
    # The server may not have seen the first one go yet, and then refuses the id once.
    again.arbitrate()
    message = again.next()
    if isinstance(message, grpc.RpcError):
        again = target.client(election_id=5)
        again.arbitrate()
        message = again.next()
    assert standing(message) == ("OK", 5)


def test_a_backup_that_leaves_bothers_nobody(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    second.close()
    third = target.client(election_id=4)  # free again, sooner or later
    third.arbitrate(election_id=3)
    assert standing(third.next()) == ("ALREADY_EXISTS", 5)
    assert first.received.empty()


def test_an_id_in_use_ends_the_stream(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=5)
    first.become_primary()
    second.arbitrate()
    code, text = ended_with(second.next())
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "election id 5 is already used" in text
    assert may_write(first)


def test_a_backups_id_in_use_ends_the_stream_that_changes_to_it(target: Target) -> None:
    first, second, third = (target.client(election_id=i) for i in (5, 4, 3))
    first.become_primary()
    for client in (second, third):
        client.arbitrate()
        client.next()
    third.arbitrate(election_id=4)
    assert ended_with(third.next())[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_repeating_the_own_id_is_confirmed(target: Target) -> None:
    first = target.client(election_id=5)
    first.become_primary()
    first.arbitrate()
    assert standing(first.next()) == ("OK", 5)


def test_the_primary_may_raise_its_id(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    first.become_primary(election_id=9)
    assert standing(second.next()) == ("ALREADY_EXISTS", 9)
    first.election_id = 5
    assert not may_write(first)


def test_the_primary_may_step_down(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    first.arbitrate(election_id=3)
    assert standing(first.next()) == ("NOT_FOUND", 5)
    assert standing(second.next()) == ("NOT_FOUND", 5)
    assert not may_write(first)
    second.become_primary(election_id=6)
    assert standing(first.next()) == ("ALREADY_EXISTS", 6)


def test_an_unset_id_never_is_primary(target: Target) -> None:
    watcher = target.client()
    watcher.open_stream()
    watcher.send(arbitration=p4rt.MasterArbitrationUpdate(device_id=1))
    assert standing(watcher.next()) == ("NOT_FOUND", None)
    # More than one may wait like this.
    other = target.client()
    other.open_stream()
    other.send(arbitration=p4rt.MasterArbitrationUpdate(device_id=1))
    assert standing(other.next()) == ("NOT_FOUND", None)
    # An id of 0 that is set is an id.
    zero = target.client(election_id=0)
    zero.arbitrate()
    assert standing(zero.next()) == ("OK", 0)
    assert standing(watcher.next()) == ("ALREADY_EXISTS", 0)


def test_an_unset_id_in_a_write_is_not_the_primarys(target: Target) -> None:
    zero = target.client(election_id=0)
    zero.become_primary()
    with pytest.raises(grpc.RpcError) as caught:
        zero.stub.Write(p4rt.WriteRequest(device_id=1), timeout=120)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "election id unset" in caught.value.details()


def test_an_unknown_device_ends_the_stream(target: Target) -> None:
    client = target.client(device_id=7)
    client.arbitrate()
    code, text = ended_with(client.next())
    assert code == grpc.StatusCode.NOT_FOUND
    assert "device_id 7" in text
    assert "is 1" in text


def test_a_stream_keeps_its_device_and_role(target: Target) -> None:
    client = target.client()
    client.become_primary()
    client.arbitrate(device_id=2)
    assert ended_with(client.next())[0] == grpc.StatusCode.FAILED_PRECONDITION

    client = target.client(election_id=2)
    client.become_primary()
    client.arbitrate(role={"name": "other"})
    assert ended_with(client.next())[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_roles_arbitrate_separately(target: Target) -> None:
    default, watchman = target.client(election_id=5), target.client(election_id=1)
    default.become_primary()
    watchman.arbitrate(role={"name": "watchman"})
    message = watchman.next()
    assert standing(message) == ("OK", 1)
    assert message.arbitration.role.name == "watchman"
    assert not may_write(watchman)  # it says nothing of its role
    with pytest.raises(grpc.RpcError) as caught:
        watchman.write(role="watchman")
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # no pipeline yet
    with pytest.raises(grpc.RpcError) as caught:
        watchman.write(role="stranger")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_message_that_arrives_after_the_end_makes_no_primary() -> None:
    # A stream is read and written by two threads, so its end may overtake its last message.
    arbiter = Arbiter(1, max_streams=1)
    controller = arbiter.join("here")
    arbiter.leave(controller)
    arbiter.update(controller, p4rt.MasterArbitrationUpdate(device_id=1, election_id={"low": 1}))
    assert arbiter.primaries == ()
    arbiter.join("there")  # there is room again


def test_a_role_config_is_refused(target: Target) -> None:
    client = target.client()
    role = p4rt.Role(name="r")
    role.config.Pack(uint128(1))
    client.arbitrate(role=role)
    code, text = ended_with(client.next())
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "Uint128" in text


def test_too_many_streams_are_refused(target: Target) -> None:
    clients = [target.client(election_id=i) for i in range(1, 18)]
    for client in clients[:16]:
        client.become_primary()
    clients[16].arbitrate()
    code, text = ended_with(clients[16].next())
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "16 streams" in text
    assert may_write(clients[15])  # and unary calls still have threads


def test_a_client_that_stops_sending_ends_its_stream(target: Target) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    first.end_sending()
    assert first.next() is grpc.StatusCode.OK
    assert standing(second.next()) == ("NOT_FOUND", 5)


def test_a_stopping_switch_ends_the_streams(target: Target) -> None:
    client = target.client()
    client.become_primary()
    target.server.stop()
    assert ended_with(client.next())[0] == grpc.StatusCode.UNAVAILABLE


def test_only_the_primary_sets_the_pipeline_and_writes(target: Target, build: Builder) -> None:
    first, second = target.client(election_id=5), target.client(election_id=4)
    first.become_primary()
    second.arbitrate()
    second.next()
    with pytest.raises(grpc.RpcError) as caught:
        second.set_config(config("p4rt_features"))
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "election id 4 is not the primary's of the default role, which is 5" in (
        caught.value.details()
    )
    assert not second.get_config().HasField("config")

    first.set_config(config("p4rt_features"))
    entry = build.entry("ingress.exact_table", [exact(1, 1), exact(2, 1)], ("ingress.forward", 1))
    with pytest.raises(grpc.RpcError) as caught:
        second.write((INSERT, entry))
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    # Everybody may read.
    assert second.read(build.entry("ingress.exact_table")) == []


PRIMARY = """
import sys, time
import p4reduce_switch  # P4Runtime's messages under any protobuf
from p4rt_client import Client
client = Client(sys.argv[1], election_id=9)
client.become_primary()
print("primary", flush=True)
time.sleep(60)
"""


def test_a_primary_that_is_gone_without_a_word(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose machine lost its power. The times are shortened, both of which count."""
    quick = tuple((option, milliseconds // 50) for option, milliseconds in listening.KEEPALIVE)
    monkeypatch.setattr(listening, "KEEPALIVE", quick)
    target: Target = request.getfixturevalue("target")
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", PRIMARY, target.address],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
    ) as primary:
        try:
            assert primary.stdout is not None
            assert primary.stdout.readline() == b"primary\n"
            backup = target.client(election_id=3)
            backup.arbitrate()
            assert standing(backup.next()) == ("ALREADY_EXISTS", 9)
            primary.send_signal(signal.SIGSTOP)
            assert standing(backup.next()) == ("NOT_FOUND", 9)
        finally:
            primary.kill()
