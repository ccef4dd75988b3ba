# SPDX-License-Identifier: Apache-2.0
"""What a rank asks before it joins, and how it says that nobody answers."""

from __future__ import annotations

import socket
import threading

import pytest
from p4reduce import variables
from p4reduce.errors import LaunchError
from p4reduce.reach import check_p4runtime, check_ways

HERE = "127.0.0.1"
SHORT = 0.3  # seconds


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


def ways(controller: int, interface: str) -> dict[str, str]:
    return {variables.CONTROLLER: f"{HERE}:{controller}", variables.INTERFACE: interface}


def test_a_controller_that_is_started_again_is_waited_for() -> None:
    refused, listens = threading.Event(), threading.Event()
    port = free_port(socket.SOCK_STREAM)

    def listen() -> None:
        refused.wait(60)
        with socket.create_server((HERE, port)) as server:
            listens.set()
            server.settimeout(60)
            server.accept()[0].close()

    with pytest.raises(LaunchError):
        check_ways(ways(port, "unix:/nowhere"), HERE, SHORT)
    thread = threading.Thread(target=listen)
    thread.start()
    refused.set()
    check_ways(ways(port, "unix:/nowhere"), HERE, 60.0)
    thread.join(60)
    assert listens.is_set()


@pytest.mark.parametrize("name", ["pc2", ""])
def test_what_does_not_listen_is_named(name: str) -> None:
    tcp, udp = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
    with pytest.raises(
        LaunchError,
        match=f"from {HERE} to the controller at TCP port {tcp} of {HERE}: nobody has listened",
    ):
        check_ways(ways(tcp, "unix:/nowhere"), HERE, SHORT)
    way = f"{name}=udp:{HERE}:{udp}" if name else f"udp:{HERE}:{udp}"
    with pytest.raises(LaunchError, match=f"to {name or 'the switch'} at UDP port {udp} of"):
        check_ways(ways(tcp, way), HERE, SHORT)


def test_what_is_silent_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HERE, 0))
        port = sock.getsockname()[1]
        with pytest.raises(LaunchError, match=f"UDP port {port} of {HERE}: no answer within"):
            check_ways(ways(1, f"udp:{HERE}:{port}"), HERE, SHORT)


def test_a_switch_that_the_controller_cannot_reach_is_named() -> None:
    port = free_port(socket.SOCK_STREAM)
    says = f"from {HERE} to pc2 at TCP port {port} of {HERE}: nobody has listened there"
    with pytest.raises(LaunchError, match=says):
        check_p4runtime({"pc2": f"{HERE}:{port}"}, HERE, SHORT)
    with socket.create_server((HERE, port)):
        check_p4runtime({"pc2": f"{HERE}:{port}"}, HERE, 60.0)
