# SPDX-License-Identifier: Apache-2.0
"""Which core a datagram comes to: by its peer, by the core that it names, or by its token."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from p4reduce_native.cores import core_of_token, path_at_core
from p4reduce_native.udp_handshake import (
    HandshakeRefusedError,
    HandshakeResult,
    HandshakeServer,
    Refusal,
    enter,
)
from p4reduce_switch.ports.port import PortError
from p4reduce_switch.ports.registry import parse_port
from p4reduce_switch.ports.steering import open_listeners
from p4reduce_switch.ports.udp import join_port
from readable import readable

CORES = 3
SECONDS = 20.0


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    opened = open_listeners(parse_port("1=udp:127.0.0.1:0"), CORES)
    yield opened
    for listener in opened:
        listener.close()


@pytest.fixture
def worker(listeners: list[socket.socket]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(listeners[0].getsockname())
        yield sock


def arrives(worker: socket.socket, message: bytes, sockets: list[socket.socket]) -> int:
    """The place of the socket that a message comes to."""
    worker.send(message)
    [one] = readable(sockets, SECONDS)
    assert one.recv(65536) == message
    return sockets.index(one)


def test_a_handshake_comes_to_the_core_that_it_names(
    listeners: list[socket.socket], worker: socket.socket
) -> None:
    for core in range(CORES):
        hello = b"P4RU\1\1" + bytes([core, 0]) + os.urandom(16)
        assert arrives(worker, hello, listeners) == core


def test_a_token_comes_to_the_core_whose_it_is(
    listeners: list[socket.socket], worker: socket.socket
) -> None:
    """Also where a core has gone, and other sockets have come and gone at the port."""
    strangers = [join_port(listeners[0]) for _ in range(3)]
    for at, stranger in enumerate(strangers):
        stranger.connect(("127.0.0.1", 9 + at))
    for stranger in strangers[:2]:
        stranger.close()
    for _ in range(50):
        token = os.urandom(8)
        assert arrives(worker, token + bytes(4), listeners) == core_of_token(token, CORES)
    strangers[2].close()


def test_a_peer_comes_to_the_core_that_knows_it(
    listeners: list[socket.socket], worker: socket.socket
) -> None:
    """The socket that is connected to it comes before all rules."""
    with join_port(listeners[1]) as peer:
        peer.connect(worker.getsockname())
        for core in range(CORES):
            token = bytes(7) + bytes([core])
            assert arrives(worker, token + bytes(4), [*listeners, peer]) == CORES


def test_what_is_too_short_for_the_rule_comes_to_the_first_core(
    listeners: list[socket.socket], worker: socket.socket
) -> None:
    for length in range(1, 8):
        assert arrives(worker, bytes(length), listeners) == 0


def test_a_port_that_is_taken_is_refused(listeners: list[socket.socket]) -> None:
    port = listeners[0].getsockname()[1]
    with pytest.raises(PortError, match="in use"):
        open_listeners(parse_port(f"1=udp:127.0.0.1:{port}"), 2)


def serve(listener: socket.socket, door: HandshakeServer, entered: list[HandshakeResult]) -> None:
    end = time.monotonic() + SECONDS
    while not entered and time.monotonic() < end:
        if not readable([listener], 0.05):
            continue
        message, address = listener.recvfrom(65536)
        answer, accepted = door.answer(message, address, is_free=True)
        listener.sendto(answer, address)
        if accepted is not None:
            entered.append(accepted)


def test_each_core_lets_in_who_asks_for_it(listeners: list[socket.socket]) -> None:
    for core in range(CORES):
        accepted: list[HandshakeResult] = []
        door = HandshakeServer(b"", core, CORES)
        thread = threading.Thread(target=serve, args=(listeners[core], door, accepted))
        thread.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(listeners[0].getsockname())
            entered = enter(sock, b"", time.monotonic() + SECONDS, core)
        thread.join(SECONDS)
        assert entered.token == accepted[0].token
        assert core_of_token(entered.token, CORES) == core


def test_a_core_that_there_is_not_is_refused(listeners: list[socket.socket]) -> None:
    door = HandshakeServer(b"", 1, CORES)
    never: list[HandshakeResult] = []
    over = threading.Thread(target=serve, args=(listeners[1], door, never), daemon=True)
    over.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(listeners[0].getsockname())
        with pytest.raises(HandshakeRefusedError, match="fewer cores") as refused:
            enter(sock, b"", time.monotonic() + SECONDS, CORES + 1)
    assert refused.value.refusal is Refusal.NO_SUCH_CORE
    never.append(HandshakeResult(b"", 0, b"", b""))
    over.join(SECONDS)


def test_the_first_core_has_a_unix_port_at_its_own_path() -> None:
    assert path_at_core("/run/p1.sock", 0) == "/run/p1.sock"
    assert path_at_core("/run/p1.sock", 2) == "/run/p1.sock.core2"
    assert str(parse_port("1=unix:/run/p1.sock").place.at_core(2)) == "unix:/run/p1.sock.core2"


@pytest.mark.parametrize("port", ["1=eth0", "1=eth0,offload", "1=unix-to:/run/p1.sock"])
def test_other_ports_are_of_one_core(port: str) -> None:
    with pytest.raises(ValueError, match=r"udp:HOST:PORT and unix:PATH"):
        parse_port(port).place.at_core(1)
