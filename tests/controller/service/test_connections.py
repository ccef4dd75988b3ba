# SPDX-License-Identifier: Apache-2.0
"""Connections that say nothing, too much or too little: each ends, and others do not notice.

The times are shortened, and the numbers lowered; what is not in the server's options stays so.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from controller_harness import DEADLINE, RunningController, SwitchProcess, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.control_pb2_grpc import ControlStub
from p4reduce_common.grpc_channels import open_channel
from p4reduce_controller import daemon
from p4reduce_controller.service.limits import MAX_CALLS_A_CONNECTION
from readable import readable

SOON = 15.0  # seconds; gRPC's own times are longer, from 20 on

Start = Callable[..., RunningController]


def changed(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    """Change server options that there are."""
    options = [(key, values.get(key.rpartition(".")[2], value)) for key, value in OPTIONS]
    monkeypatch.setattr(daemon, "SERVER_OPTIONS", tuple(options))


OPTIONS = daemon.SERVER_OPTIONS


def silent(controller: RunningController) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SOON)
    connection.connect(controller.address.removeprefix("unix:"))
    return connection


def is_hung_up_on(connection: socket.socket) -> bool:
    """Read what comes until the end; whether that comes in time."""
    end = time.monotonic() + SOON
    with contextlib.suppress(ConnectionError):
        while readable([connection], max(end - time.monotonic(), 0)):
            if not connection.recv(65536):
                return True
        return False
    return True


def greet(connection: socket.socket) -> dict[int, int]:
    """Begin HTTP/2, and return the server's settings."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    head = connection.recv(9, socket.MSG_WAITALL)
    assert head[3] == 4, "SETTINGS come first"
    body = connection.recv(int.from_bytes(head[:3], "big"), socket.MSG_WAITALL)
    connection.sendall(bytes((0, 0, 0, 4, 1, 0, 0, 0, 0)))  # and an acknowledgement
    return dict(struct.iter_unpack(">HI", body))


def test_who_connects_and_says_nothing(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, server_handshake_timeout_ms=300)
    controller = start(switch)
    with silent(controller) as one, silent(controller) as other:
        other.sendall(b"PRI * HTTP/2.0\r\n")  # begins, and goes no further
        assert is_hung_up_on(one)
        assert is_hung_up_on(other)
    controller.running(switch, 1)


def test_who_greets_and_calls_nothing(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, max_connection_idle_ms=300)
    controller = start(switch)
    with silent(controller) as connection:
        greet(connection)
        assert is_hung_up_on(connection)
    controller.running(switch, 1)


class Relay:
    """Between a client and the controller, until it stops."""

    def __init__(self, directory: Path, controller: RunningController) -> None:
        self.path = directory / "relay.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._controller = controller
        self.stopped = threading.Event()
        self.hung_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, silent(self._controller) as server:
            while not self.stopped.is_set():
                for one in readable([client, server], 0.05):
                    data = one.recv(65536)
                    (server if one is client else client).sendall(data)
            if is_hung_up_on(server):
                self.hung_up.set()

    def close(self) -> None:
        self.stopped.set()
        self._thread.join(DEADLINE)
        self._listener.close()


@pytest.fixture
def relayed(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[RunningController, Relay]]:
    changed(monkeypatch, keepalive_time_ms=300, ping_timeout_ms=300)
    controller = start(switch)
    relay = Relay(tmp_path, controller)
    yield controller, relay
    relay.close()


def test_who_is_gone_without_a_word(
    relayed: tuple[RunningController, Relay], switch: SwitchProcess
) -> None:
    """A machine that lost its power in the midst of a call."""
    controller, relay = relayed
    controller.call("CreateJob", name="seen", world_size=1)
    client = ControlClient(f"unix:{relay.path}")
    stream = client.stub.WatchEvents(pb.WatchEventsRequest(recent=1))
    next(stream)
    relay.stopped.set()
    assert relay.hung_up.wait(2 * SOON), "the controller waits for it still"
    client.close()
    controller.running(switch, 1)


def test_calls_a_connection(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More wait in the client; another connection's do not."""
    changed(monkeypatch, max_concurrent_streams=3)
    controller = start(switch)
    controller.call("CreateJob", name="seen", world_size=1)
    request = pb.WatchEventsRequest(recent=1)
    streams = [controller.client.stub.WatchEvents(request) for _ in range(3)]
    for stream in streams:
        next(stream)
    with pytest.raises(grpc.RpcError) as caught:
        controller.client.stub.GetSwitch(pb.GetSwitchRequest(), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # By itself gRPC has one connection a process.
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with open_channel(controller.address, options=alone) as other:
        ControlStub(other).GetSwitch(pb.GetSwitchRequest(), timeout=DEADLINE)
    streams[0].cancel()
    controller.call("GetSwitch")
    for stream in streams:
        stream.cancel()


def test_calls_altogether(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "MAX_CALLS", 3)
    controller = start(switch)
    controller.call("CreateJob", name="seen", world_size=1)
    clients = [ControlClient(controller.address) for _ in range(4)]
    request = pb.WatchEventsRequest(recent=1)
    streams = [client.stub.WatchEvents(request) for client in clients[:3]]
    for stream in streams:
        next(stream)
    with pytest.raises(ControlError) as caught:
        clients[3].call(clients[3].stub.GetSwitch, pb.GetSwitchRequest(), timeout=DEADLINE)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()

    def there_is_room() -> bool:
        with contextlib.suppress(ControlError):
            return bool(controller.running(switch, 1))
        return False

    eventually(there_is_room, "the server hears of it a moment later")
    for client in clients:
        client.close()


def test_what_clients_are_told(start: Start, switch: SwitchProcess) -> None:
    """The number of calls a connection, as it is."""
    with silent(start(switch)) as connection:
        assert greet(connection)[3] == MAX_CALLS_A_CONNECTION


@pytest.mark.parametrize("size", [20 << 10, 1 << 20])
def test_oversized_metadata(
    controller: RunningController, switch: SwitchProcess, size: int
) -> None:
    """gRPC's own limits are enough."""
    with pytest.raises(grpc.RpcError) as caught:
        controller.client.stub.GetSwitch(
            pb.GetSwitchRequest(), metadata=[("much", "x" * size)], timeout=DEADLINE
        )
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    controller.running(switch, 1)
