# SPDX-License-Identifier: Apache-2.0
"""The server as p4runtime-shell's client sees it, which is independent of the controller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.p4runtime.server import API_VERSION
from p4rt_client import INSERT, PROGRAMS, Builder, exact
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeException, P4RuntimeWriteException
from switch_peer import ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

EXACT, FORWARD, PUNT = "ingress.exact_table", "ingress.forward", "ingress.punt"
P4INFO, JSON = PROGRAMS / "p4rt_features.p4info.txtpb", PROGRAMS / "p4rt_features.json"


@pytest.fixture
def connect(target: Target) -> Iterator[Callable[..., Any]]:
    clients: list[Any] = []

    def make(election_id: tuple[int, int] = (0, 1)) -> Any:
        clients.append(P4RuntimeClient(1, target.address, election_id))
        return clients[-1]

    yield make
    for client in clients:
        client.tear_down()


def insert(message: Any) -> Any:
    update = p4rt.Update(type=INSERT)
    update.entity.table_entry.CopyFrom(message)
    return update


def test_session_config_and_entries(connect: Callable[..., Any], build: Builder) -> None:
    client = connect()
    assert client.api_version() == API_VERSION
    client.set_fwd_pipe_config(str(P4INFO), str(JSON))
    assert client.get_p4info() == build.p4info
    entry = build.entry(EXACT, [exact(1, 5), exact(2, 1)], (FORWARD, 2))
    client.write_update(insert(entry))
    ask = p4rt.Entity(table_entry=build.entry(EXACT))
    read = [e.table_entry for response in client.read_one(ask) for e in response.entities]
    assert read == [entry]


def test_a_write_error_is_understood(connect: Callable[..., Any], build: Builder) -> None:
    client = connect()
    client.set_fwd_pipe_config(str(P4INFO), str(JSON))
    entry = build.entry(EXACT, [exact(1, 5), exact(2, 1)], (FORWARD, 2))
    client.write_update(insert(entry))
    with pytest.raises(P4RuntimeWriteException) as caught:
        client.write_update(insert(entry))
    ((index, error),) = caught.value.errors
    assert (index, error.canonical_code) == (0, code_pb2.ALREADY_EXISTS)
    assert "'ingress.exact_table' already has an entry" in str(caught.value)


def test_a_config_error_is_understood(connect: Callable[..., Any], tmp_path: Any) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[]")
    with pytest.raises(P4RuntimeException, match=r"\(INVALID_ARGUMENT\): p4_device_config"):
        connect().set_fwd_pipe_config(str(P4INFO), str(broken))


def test_a_second_client_is_told_that_it_is_a_backup(
    connect: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    connect((1, 0))
    capsys.readouterr()
    connect((0, 9))
    assert "not the primary client" in capsys.readouterr().out
    connect((1, 1))
    assert "not the primary client" not in capsys.readouterr().out


def test_packets(connect: Callable[..., Any], build: Builder, target: Target) -> None:
    client = connect()
    client.set_fwd_pipe_config(str(P4INFO), str(JSON))
    client.write_update(
        insert(build.entry(EXACT, [exact(1, 0x020000000002), exact(2, 1)], (PUNT, 3, 4)))
    )
    left, right = target.plug(1), target.plug(2)
    left.send(ethernet(b"up"))
    packet = client.get_stream_packet("packet", timeout=120).packet
    assert packet.payload == ethernet(b"up")
    assert [m.value for m in packet.metadata] == [b"\x01", b"\x07", b"\x00"]
    request = p4rt.StreamMessageRequest()
    request.packet.payload = ethernet(b"down")
    request.packet.metadata.add(metadata_id=1, value=b"\x02")
    request.packet.metadata.add(metadata_id=2, value=b"\x00")
    client.stream_out_q.put(request)
    assert right.receive() == ethernet(b"down")
