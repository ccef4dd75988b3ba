# SPDX-License-Identifier: Apache-2.0
"""UDP ports: who gets one, who keeps it, and who is not let in."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from p4reduce_native.datagrams import DatagramLink, unpack
from p4reduce_native.link import Link
from p4reduce_native.udp_handshake import HandshakeRefusedError, enter, never_cut_up
from p4reduce_switch.dataplane import DataPlane, open_data_plane
from p4reduce_switch.ports import udp
from p4reduce_switch.ports.place import PortOptions
from p4reduce_switch.ports.port import PortError
from p4reduce_switch.ports.registry import parse_ports
from stand_ins import Program, cable
from switch_peer import eventually

SECONDS = 120.0
FRAME = bytes(range(60))
PING, PING_BYTES = 1, 12  # kind and size of a datagram that asks for a word


Open = Callable[..., DataPlane]


@pytest.fixture
def open_switch() -> Iterator[Open]:
    switches = []

    def make(where: str = "1-2=udp:127.0.0.1:0", key: bytes = b"") -> DataPlane:
        switch = open_data_plane(parse_ports(where), PortOptions(udp_key=key))
        switches.append(switch)
        switch.start()
        switch.run(lambda: switch.install(Program(cable)))  # type: ignore[arg-type]
        return switch

    yield make
    for switch in switches:
        switch.stop()


def address(switch: DataPlane, port: int) -> tuple[str, int]:
    return "127.0.0.1", int(switch.ports[port].description.rpartition(":")[2])


def worker_at(switch: DataPlane, port: int, key: bytes = b"") -> DatagramLink:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    never_cut_up(sock)
    sock.connect(address(switch, port))
    try:
        return DatagramLink(sock, enter(sock, key, time.monotonic() + SECONDS))
    except BaseException:
        sock.close()
        raise


def socket_of(link: DatagramLink) -> socket.socket:
    """The socket of a link, once more."""
    return socket.socket(fileno=os.dup(link.fileno()))


def received(link: DatagramLink) -> list[bytes]:
    return eventually(link.receive, "a frame came", SECONDS)


def count(switch: DataPlane, port: int, name: str) -> int:
    return switch.counts()[f"port {port}"][name]


def test_frames_cross_the_switch(open_switch: Open) -> None:
    switch = open_switch()
    one, two = worker_at(switch, 1), worker_at(switch, 2)
    assert one.send([FRAME, FRAME + b"x"]) == 2
    assert received(two) == [FRAME, FRAME + b"x"]
    assert two.send([FRAME]) == 1
    assert received(one) == [FRAME]
    one.close()
    two.close()
    eventually(lambda: not switch.ports[1].is_up, "its port is free at once", SECONDS)


def test_frames_that_came_one_after_the_other_leave_together(open_switch: Open) -> None:
    """What is too little for a datagram waits for what has come already, and is not lost.

    It waits 4 ms at most, in which a busy machine may stop the switch. So several rounds are sent,
    and in one of them all leave together.
    """
    switch = open_switch()
    one, two = worker_at(switch, 1), worker_at(switch, 2)
    frames = [number.to_bytes(2, "big") + bytes(1076) for number in range(120)]

    def send() -> None:
        """In the switch's own thread, so that it finds all of them."""
        for start in range(0, 120, 40):
            assert one.send(frames[start : start + 40]) == 40

    lengths: list[list[int]] = []
    with socket_of(two) as bare:
        bare.settimeout(SECONDS)
        while [59, 59, 2] not in lengths:
            assert len(lengths) < 100, lengths
            switch.run(send)
            runs: list[list[bytes]] = []
            while sum(map(len, runs)) < 120:
                runs.append(unpack(bare.recv(1 << 16)[12:], 64))
            assert [frame for run in runs for frame in run] == frames
            lengths.append(list(map(len, runs)))
    print(f"frames of each datagram, round by round: {lengths}")
    one.close()
    two.close()


def test_a_second_worker_is_refused_until_the_first_leaves(open_switch: Open) -> None:
    switch = open_switch()
    first = worker_at(switch, 1)
    with pytest.raises(HandshakeRefusedError, match="has another worker"):
        worker_at(switch, 1)
    first.close()
    eventually(lambda: not switch.ports[1].is_up, "the port is free", SECONDS)
    worker_at(switch, 1).close()


def test_a_key_is_asked_for(open_switch: Open) -> None:
    switch = open_switch(key=b"sixteen bytes or more")
    for wrong in (b"", b"another key, as long"):
        with pytest.raises(HandshakeRefusedError, match="the same key"):
            worker_at(switch, 1, wrong)
    assert not switch.ports[1].is_up
    worker_at(switch, 1, b"sixteen bytes or more").close()


def test_a_stranger_gets_nothing_in_and_is_counted(open_switch: Open) -> None:
    """Not from another address, nor with the worker's own but without its token."""
    switch = open_switch()
    one, two = worker_at(switch, 1), worker_at(switch, 2)
    forged = bytes(8) + bytes(4) + len(FRAME).to_bytes(2, "little") + FRAME
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(3):
        stranger.sendto(forged, address(switch, 1))
    with socket_of(one) as same:
        for _ in range(2):
            same.send(forged)
    eventually(lambda: count(switch, 1, "rx_stranger") == 5, "they are counted", SECONDS)
    assert one.send([FRAME + b"last"]) == 1
    assert received(two) == [FRAME + b"last"]
    assert count(switch, 1, "rx_frames") == 1
    for thing in (stranger, one, two):
        thing.close()


def test_a_worker_that_is_gone_without_a_word_frees_its_port(
    open_switch: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udp, "GONE_AFTER", 1)
    switch = open_switch()
    one = worker_at(switch, 1)
    with caplog.at_level(logging.INFO, "p4reduce_switch"):
        eventually(lambda: not switch.ports[1].is_up, "the port is free", SECONDS)
        eventually(lambda: "has not been heard for 1 s" in caplog.text, "the log says why", SECONDS)
    worker_at(switch, 1).close()
    one.close()


def test_a_worker_that_answers_keeps_its_port(
    open_switch: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "GONE_AFTER", 2)
    switch = open_switch()
    one = worker_at(switch, 1)
    questions = 0

    def answers() -> bool:
        """Answer each question. That the answers count shows in that more questions come."""
        nonlocal questions
        try:
            questions += same.recv(PING_BYTES, socket.MSG_PEEK)[8] == PING
        except BlockingIOError:
            return False
        one.receive()
        return questions >= 3

    with socket_of(one) as same:
        eventually(answers, "it was asked again and again", SECONDS)
    assert switch.ports[1].is_up
    one.close()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1=udp:0.0.0.0:7001", ["1=udp:0.0.0.0:7001"]),
        ("1=udp:[::1]:7001", ["1=udp:[::1]:7001"]),
        ("3-4=udp:host:7003", ["3=udp:host:7003", "4=udp:host:7004"]),
        ("1-2=udp:host:0", ["1=udp:host:0", "2=udp:host:0"]),
        ("5=veth5", ["5=veth5"]),
    ],
)
def test_notation(text: str, names: list[str]) -> None:
    assert [str(spec) for spec in parse_ports(text)] == names


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1=udp:7001", "NUMBER=udp:HOST:PORT"),
        ("1=udp:::1:7001", r"write an IPv6 address in brackets: \[::1\]:7001"),
        ("1=udp:[::1]", "NUMBER=udp:HOST:PORT"),
        ("1=udp:[::1:7001", "no IPv6 address in brackets"),
        ("1=udp:host:70000", "70000"),
        ("1-4=veth1", "for udp:HOST:PORT alone"),
        ("4-1=udp:host:1", "not a range"),
        ("1-600=udp:host:1", "within 0 and 510"),
        ("1-9=udp:host:65530", "65535 is the last"),
    ],
)
def test_bad_notation(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_ports(text)


def test_a_port_in_use_is_told(open_switch: Open) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(PortError, match="Address already in use"):
            open_switch(f"1=udp:127.0.0.1:{taken.getsockname()[1]}")


# -- Peers that come again, and peers that move -------------------------------------------------


def bound_socket(switch: DataPlane, where: tuple[str, int]) -> socket.socket:
    """A socket at an address of its own, which the next one can have as well."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    never_cut_up(sock)
    sock.bind(where)
    sock.connect(address(switch, 1))
    return sock


def test_a_worker_that_was_started_again_at_its_address_is_let_in(
    open_switch: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a goodbye, and at once: its handshake is fresh."""
    switch = open_switch()
    two = worker_at(switch, 2)
    first = bound_socket(switch, ("127.0.0.1", 0))
    where = first.getsockname()
    enter(first, b"", time.monotonic() + SECONDS)
    assert switch.ports[1].is_up
    first.close()
    with caplog.at_level(logging.INFO, "p4reduce_switch"):
        sock = bound_socket(switch, where)
        again = DatagramLink(sock, enter(sock, b"", time.monotonic() + SECONDS))
        assert again.send([FRAME]) == 1
        assert received(two) == [FRAME]
    assert "was started again" in caplog.text
    assert count(switch, 1, "rx_frames") == 1
    again.close()
    two.close()


def test_a_connect_that_comes_again_after_the_goodbye_lets_nobody_in(
    open_switch: Open,
) -> None:
    """A network may deliver a datagram twice; a cookie is good for one entry."""
    switch = open_switch()
    sock = bound_socket(switch, ("127.0.0.1", 0))
    sent: list[bytes] = []

    class Recorded(socket.socket):
        def send(self, message: Any, *flags: int) -> int:  # type: ignore[override]
            sent.append(bytes(message))
            return super().send(message, *flags)

    recorded = Recorded(fileno=sock.detach())
    recorded.setblocking(False)
    worker = DatagramLink(recorded, enter(recorded, b"", time.monotonic() + SECONDS))
    connects = [message for message in sent if message[5] == 3]
    where = recorded.getsockname()
    worker.close()
    eventually(lambda: not switch.ports[1].is_up, "the port is free", SECONDS)
    ghost = bound_socket(switch, where)
    ghost.settimeout(SECONDS)
    for connect in connects:
        ghost.send(connect)
        assert ghost.recv(100)[5] == 5  # REFUSE
    assert not switch.ports[1].is_up
    ghost.close()
    worker_at(switch, 1).close()


def test_a_worker_behind_a_box_that_gives_it_another_address(
    open_switch: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Its port follows it, once it has shown that it receives there; no rank is lost."""
    switch = open_switch()
    two = worker_at(switch, 2)
    before, after = (bound_socket(switch, ("127.0.0.1", 0)) for _ in range(2))
    entered = enter(before, b"", time.monotonic() + SECONDS)
    before.close()
    worker = Link.over_datagrams(after, entered)  # the same worker, from where the box sends now

    def arrives() -> list[bytes]:
        worker.send([FRAME])
        worker.receive()
        return two.receive()

    with caplog.at_level(logging.INFO, "p4reduce_switch"):
        eventually(arrives, "its frames arrive", SECONDS)
    assert "is at 127.0.0.1:" in caplog.text
    two.send([FRAME])
    eventually(worker.receive, "it gets frames at its new address", SECONDS)
    worker.close()
    eventually(lambda: not switch.ports[1].is_up, "its goodbye counts as well", SECONDS)
    two.close()


def test_nobody_is_followed_who_does_not_receive_there(open_switch: Open) -> None:
    """Whoever has seen the token could name any address as its own."""
    switch = open_switch()
    sock = bound_socket(switch, ("127.0.0.1", 0))
    entered = enter(sock, b"", time.monotonic() + SECONDS)
    worker, two = DatagramLink(sock, entered), worker_at(switch, 2)
    elsewhere = bound_socket(switch, ("127.0.0.1", 0))
    elsewhere.settimeout(SECONDS)
    for answer in (b"", bytes(8), b"\xff" * 8):
        forged = entered.token + bytes(4) + len(FRAME).to_bytes(2, "little") + FRAME
        elsewhere.send(forged)
        time.sleep(0.25)  # it is asked at most so often
        elsewhere.send(entered.token + b"\2\0\0\0" + answer)
    question = elsewhere.recv(65536)
    assert question[:12] == entered.token + b"\1\0\0\0"
    assert len(question) <= len(forged)
    assert worker.send([FRAME + b"still here"]) == 1
    assert received(two) == [FRAME + b"still here"]
    assert count(switch, 1, "rx_frames") == 1
    for thing in (worker, two, elsewhere):
        thing.close()


def test_a_worker_without_a_host_frees_its_port_when_somebody_wants_it(
    open_switch: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host says that nobody listens there; three times is believed at once."""
    monkeypatch.setattr(udp, "GONE_AFTER", 1 << 30)
    switch = open_switch()
    sock = bound_socket(switch, ("127.0.0.1", 0))
    enter(sock, b"", time.monotonic() + SECONDS)
    sock.close()

    def gets_in() -> bool:
        try:
            worker_at(switch, 1).close()
        except HandshakeRefusedError:
            return False
        return True

    eventually(gets_in, "somebody else has the port", SECONDS)
