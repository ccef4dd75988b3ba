# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime client by itself, with a real server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest
from controller_harness import SWITCH_IP, SWITCH_MAC, SwitchProcess, eventually
from p4reduce.wire import format as wire
from p4reduce.wire.layer import Aggregation
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import (
    PacketIn,
    StreamEnded,
    SwitchClient,
    WriteRefusedError,
)
from p4reduce_controller.fabric.schema import MulticastGroup, Op, TableRow, Update
from p4reduce_controller.jobs.job import GROUP_IDS, REPLICA_IDS
from p4reduce_controller.values.counts import CounterValue


def station(mac: int, port: int = 1) -> Update:
    return Update(Op.INSERT, TableRow("bridge", {"dst_mac": mac}, "forward", {"port": port}))


@pytest.fixture
def client(switch: SwitchProcess) -> Iterator[SwitchClient]:
    client = SwitchClient.connect(switch.address, 1, 1)
    client.set_pipeline(load_program())
    for group in client.read_groups():
        client.write([Update(Op.DELETE, MulticastGroup(group.group))])
    yield client
    client.close()


def test_rows_that_were_written_are_read(client: SwitchClient) -> None:
    updates = [station(mac, mac % 4 + 1) for mac in range(1, 601)]  # more than one Write
    client.write(updates)
    read = client.read_table("bridge")
    assert len(read) == 600
    assert {(row.match["dst_mac"], row.params["port"]) for row in read} == {
        (mac, mac % 4 + 1) for mac in range(1, 601)
    }
    assert {row.action for row in read} == {"forward"}
    client.write([Update(Op.DELETE, TableRow("bridge", {"dst_mac": mac})) for mac in range(1, 600)])
    [last] = client.read_table("bridge")
    assert last.match == {"dst_mac": 600}


def test_groups(client: SwitchClient) -> None:
    groups = [
        MulticastGroup(2, ((1, 10), (1, 11), (4, 12))),
        MulticastGroup(GROUP_IDS[1], ((2, REPLICA_IDS[1]),)),
    ]
    client.write([Update(Op.INSERT, group) for group in groups])
    read = sorted(client.read_groups(), key=lambda group: group.group)
    assert [(group.group, sorted(group.replicas)) for group in read] == [
        (group.group, list(group.replicas)) for group in groups
    ]
    client.write([Update(Op.DELETE, MulticastGroup(group.group)) for group in groups])
    assert client.read_groups() == []


def test_a_failed_update_among_others_is_named(client: SwitchClient) -> None:
    client.write([station(2)])
    updates = [station(mac) for mac in (1, 2, 3)]
    with pytest.raises(WriteRefusedError) as caught:
        client.write(updates)
    [failure] = caught.value.failures
    assert failure.update is updates[1]
    assert failure.code == "ALREADY_EXISTS"
    assert "insert bridge(dst_mac=0x2) -> forward: ALREADY_EXISTS" in str(caught.value)
    assert caught.value.done == [updates[0], updates[2]]
    assert len(client.read_table("bridge")) == 3


def test_each_of_many_failed_updates_is_named(client: SwitchClient) -> None:
    """The statuses of a Write fit into what gRPC takes of an error."""
    client.write([station(1)])
    updates = [Update(Op.DELETE, TableRow("bridge", {"dst_mac": mac})) for mac in range(1, 601)]
    with pytest.raises(WriteRefusedError) as caught:
        client.write(updates)
    assert caught.value.done == updates[:1]
    assert [failure.update for failure in caught.value.failures] == updates[1:]
    assert {failure.code for failure in caught.value.failures} == {"NOT_FOUND"}


def test_what_is_not_there_cannot_be_deleted(client: SwitchClient) -> None:
    with pytest.raises(WriteRefusedError, match=r"delete bridge\(dst_mac=0x7\): NOT_FOUND"):
        client.write([Update(Op.DELETE, TableRow("bridge", {"dst_mac": 7}))])


def test_packets_both_ways(client: SwitchClient, switch: SwitchProcess) -> None:
    frame = bytes.fromhex("020000000001 020000000002 88b5") + bytes(50)
    if not switch.names_full_tables:
        pytest.skip("BMv2's ports take IPv4 only in these tests")
    port = switch.plug(3)
    port.settimeout(0.2)

    def sent_out() -> bytes | None:
        # The switch takes a peer in its own time; before that the port is down.
        client.packet_out(3, frame)
        with contextlib.suppress(TimeoutError):
            return port.recv(2048)
        return None

    assert eventually(sent_out, "the frame is out of port 3") == frame

    client.insert("own_address", {"ip": 0x0A4DFFFE}, "is_own", {"mac": 0x027034726564})
    worker = wire.Endpoint("02:00:00:00:00:09", "10.77.0.9", 4000)
    here = wire.Endpoint(SWITCH_MAC, SWITCH_IP, wire.AGGREGATION_PORT)
    hello = wire.template(worker, here, Aggregation(kind=wire.FrameKind.HELLO, job=5))
    switch.plug(2).send(hello)
    packet = eventually(lambda: client.receive(0.1), "the HELLO is punted")
    assert packet == PacketIn(2, hello)


def test_counters(client: SwitchClient) -> None:
    cells = client.read_counter("outcomes")
    assert cells == [CounterValue(0, 0)] * 64
    assert client.read_table("admission") == []


def test_the_end_of_the_session_is_told(client: SwitchClient) -> None:
    client.close()
    assert client.receive(1.0) == StreamEnded("the session was closed")


def test_nothing_is_printed(client: SwitchClient, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("p4reduce_controller").info("only to have one line")
    with pytest.raises(Exception, match="backup"):
        SwitchClient.connect(client.address, 1, 1)
    assert capsys.readouterr().out == ""
