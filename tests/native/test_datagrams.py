# SPDX-License-Identifier: Apache-2.0
"""Links over UDP: the handshake, and the same bytes from machine code and from Python."""

from __future__ import annotations

import hashlib
import hmac
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from p4reduce_native.datagrams import DatagramLink, pack, unpack
from p4reduce_native.link import Link, why_not
from p4reduce_native.udp_handshake import (
    LEAST_BYTES,
    HandshakeRefusedError,
    HandshakeResult,
    HandshakeServer,
    enter,
    never_cut_up,
    read_key,
)

ADDRESS = ("127.0.0.1", 4242)
TOKEN = b"\x01token\xff\x00"
SECONDS = 120.0

AnyLink = Link | DatagramLink
Make = Callable[[socket.socket, HandshakeResult], AnyLink]


@pytest.fixture(params=["C", "Python"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "C":
        if (reason := why_not()) is not None:
            pytest.skip(f"no machine code: {reason}")
        return Link.over_datagrams
    return DatagramLink


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected UDP sockets."""
    ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for end in ends:
        end.bind(("127.0.0.1", 0))
    for end, other in (ends, ends[::-1]):
        end.connect(other.getsockname())
    return ends[0], ends[1]


@pytest.fixture
def ends(make: Make) -> Iterator[tuple[AnyLink, socket.socket]]:
    """A link, and the bare socket at its other end."""
    one, other = pair()
    other.settimeout(SECONDS)
    link = make(one, HandshakeResult(TOKEN, 1472, b"greeting", b"answer"))
    yield link, other
    link.close()
    other.close()


def heard(link: AnyLink) -> list[bytes]:
    """What is there; over loopback a datagram is there once it has been sent."""
    frames: list[bytes] = []
    while more := link.receive():
        frames += more
    return frames


# -- Datagrams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1200, 1472, 8972, 65507])
def test_both_ends_put_frames_together_alike(size: int) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(f"no machine code: {reason}")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice([14, 15, 17, 60, 78, 1102, 1158])) for _ in range(200)]
    one, other = pair()
    other.settimeout(SECONDS)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    link = Link.over_datagrams(one, HandshakeResult(TOKEN, size, b"", b""))
    for start in range(0, len(frames), 50):
        some = frames[start : start + 50]
        assert link.send(some) == len(some)
        assert [other.recv(65536) for _ in pack(TOKEN, some, size)] == [
            datagram for datagram, _ in pack(TOKEN, some, size)
        ]
    link.close()
    assert other.recv(65536) == TOKEN + b"\x03\0\0\0"
    other.close()


def test_frames_arrive_in_order(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    frames = [bytes([number]) * (14 + 7 * number) for number in range(40)]
    for datagram, _ in pack(TOKEN, frames, 1472):
        assert len(datagram) <= 1472
        other.send(datagram)
    assert heard(link) == frames


def test_a_path_that_has_become_narrower(make: Make) -> None:
    """Loopback takes 65,507 bytes at once; the ends have agreed on more, and go down by halves."""
    one, other = pair()
    other.settimeout(SECONDS)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    link = make(one, HandshakeResult(TOKEN, 65535, b"", b""))
    frames = [bytes([number]) * 1038 for number in range(63)]  # with their heads 65,532 bytes
    for _ in range(2):
        assert link.send(frames) == len(frames)
        arrived: list[bytes] = []
        while len(arrived) < len(frames):
            datagram = other.recv(65536)
            if datagram[8] == 0:  # else a question whether the new size passes
                arrived += unpack(datagram[12:], 64)
        assert arrived == frames
    link.close()
    other.close()


def test_strangers_have_no_effect(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    frame = b"\0" * 60
    [(datagram, _)] = pack(b"\x01token\xff\x01", [frame], 1472)
    for wrong in (datagram, b"", b"x", TOKEN, b"greetinG", b"\x01token\xff\x01\x03\0\0\0"):
        other.send(wrong)
    assert heard(link) == []
    assert link.strangers == 6
    assert link.send([frame]) == 1


def test_a_greeting_is_answered_again(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    other.send(b"greeting")
    assert heard(link) == []
    assert other.recv(100) == b"answer"
    assert link.strangers == 0


def test_a_silent_peer_is_asked(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    ping, pong = TOKEN + b"\x01\0\0\0", TOKEN + b"\x02\0\0\0"
    assert [link.keepalive(), link.keepalive(), link.keepalive()] == [0, 1, 2]
    assert [other.recv(100), other.recv(100)] == [ping, ping]
    other.send(pong)
    assert heard(link) == []
    assert link.keepalive() == 0
    other.send(ping)
    assert heard(link) == []
    assert other.recv(100) == pong


def test_a_goodbye_comes_after_what_was_sent(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    frame = b"\1" * 20
    [(datagram, _)] = pack(TOKEN, [frame], 1472)
    other.send(datagram)
    other.send(TOKEN + b"\x03\0\0\0")
    assert link.receive() == [frame]
    with pytest.raises(BrokenPipeError):
        link.receive()


def test_nobody_there_counts_when_it_is_said_again(ends: tuple[AnyLink, socket.socket]) -> None:
    link, other = ends
    other.close()
    link.send([b"\0" * 60])
    link.receive()  # it was said once, which may be anybody's lie

    def send_on() -> None:
        for _ in range(20):
            link.send([b"\0" * 60])
            link.receive()

    with pytest.raises(BrokenPipeError):
        send_on()


@pytest.mark.parametrize(
    ("records", "frames"),
    [
        (b"", []),
        (b"\x02", [b""]),
        (b"\x02\x00a", [b""]),
        (b"\x02\x00ab\x01\x00c", [b"ab", b"c"]),
        (b"\x01\x00a\xff\x01\x00b", [b"a", b"b"]),
        (b"\xff\xffab", [b""]),
        (b"\x00\x00\x00\x00\x01\x00z", [b"", b"z"]),
    ],
)
def test_records(records: bytes, frames: list[bytes]) -> None:
    assert unpack(records, 64) == frames
    assert unpack(records, 1) == frames[:1]


@pytest.mark.parametrize(
    ("records", "frames"),
    [
        (
            b"\x0e\0" + b"a" * 14 + b"\x0f\0" + b"b" * 15 + bytes(3) + b"\x10\0" + b"c" * 16,
            [b"a" * 14, b"b" * 15, b"c" * 16],
        ),
        # Too short, too long, and half of a record's length.
        (bytes(4) + b"\x01\x08" + b"l" * 2049 + b"\0\x0e\0" + b"a" * 14 + b"\xff", [b"a" * 14]),
        # A record that says more than there is ends its datagram.
        (b"\x0e\0" + b"a" * 14 + b"\x64\0" + b"x" * 40, [b"a" * 14]),
        # More than one call gives.
        ((b"\x0e\0" + b"a" * 14) * 300, [b"a" * 14] * 300),
    ],
    ids=["three", "bad lengths", "more than there is", "many"],
)
def test_records_of_a_datagram(records: bytes, frames: list[bytes]) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(f"no machine code: {reason}")
    one, other = pair()
    link = Link.over_datagrams(one, HandshakeResult(TOKEN, 1472, b"", b""))
    other.send(TOKEN + bytes(4) + records)
    assert [frame for frame in heard(link) if len(frame) >= 14] == frames
    link.close()
    other.close()


def test_garbage_behind_a_token_reads_alike() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(f"no machine code: {reason}")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    entered = HandshakeResult(TOKEN, 1472, b"", b"")
    (one, to_one), (two, to_two) = pair(), pair()
    in_c, in_python = Link.over_datagrams(one, entered), DatagramLink(two, entered)
    for _ in range(300):
        body = rng.randbytes(rng.choice([0, 1, 2, 3, 30, 1460]))
        if len(body) > 2 and rng.random() < 0.7:
            body = rng.randrange(1460).to_bytes(2, "little") + body[2:]
        datagram = TOKEN + bytes([rng.choice([0, 0, 0, 4, 200])]) + bytes(3) + body
        for end in (to_one, to_two):
            end.send(datagram)
        in_range = [frame for frame in heard(in_python) if 14 <= len(frame) <= 2048]
        assert [frame for frame in heard(in_c) if len(frame) >= 14] == in_range
    for thing in (in_c, in_python, to_one, to_two):
        thing.close()


# -- The handshake -------------------------------------------------------------------------------


class Switch:
    """Answers one worker's handshake; what it sends may get lost."""

    def __init__(self, key: bytes = b"", *, is_free: bool = True, loses: int = 0) -> None:
        self.admission = HandshakeServer(key)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        never_cut_up(self.sock)
        self.sock.bind(("127.0.0.1", 0))
        self.entered: HandshakeResult | None = None
        self._is_free = is_free
        self._loses = loses

    def serve(self) -> None:
        while True:
            message, address = self.sock.recvfrom(65536)
            if not message:
                return
            answer, entered = self.admission.answer(message, address, is_free=self._is_free)
            self.entered = entered or self.entered
            if self._loses:
                self._loses -= 1
            elif answer:
                self.sock.sendto(answer, address)


def shake(switch: Switch, key: bytes = b"") -> HandshakeResult:
    thread = threading.Thread(target=switch.serve)
    thread.start()
    worker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        worker.setblocking(False)
        never_cut_up(worker)
        worker.connect(switch.sock.getsockname())
        return enter(worker, key, time.monotonic() + SECONDS)
    finally:
        worker.send(b"")
        thread.join(SECONDS)
        worker.close()
        switch.sock.close()


@pytest.mark.parametrize("key", [b"", b"sixteen bytes or more"])
@pytest.mark.parametrize("loses", [0, 2])
def test_both_get_the_same_token(key: bytes, loses: int) -> None:
    switch = Switch(key, loses=loses)
    entered = shake(switch, key)
    assert switch.entered is not None
    assert (entered.token, entered.size) == (switch.entered.token, switch.entered.size)
    assert entered.size >= LEAST_BYTES


def test_a_wrong_key_is_refused() -> None:
    with pytest.raises(HandshakeRefusedError, match="do not have the same key"):
        shake(Switch(b"the key of the switch"), b"some other key entirely")


def test_a_busy_port_is_refused() -> None:
    with pytest.raises(HandshakeRefusedError, match="has another worker"):
        shake(Switch(is_free=False))


def test_nobody_listens() -> None:
    gone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    gone.bind(("127.0.0.1", 0))
    worker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    worker.setblocking(False)
    worker.connect(gone.getsockname())
    gone.close()
    with worker, pytest.raises((ConnectionRefusedError, TimeoutError)):
        enter(worker, b"", time.monotonic() + 0.5)


def hello(nonce: bytes = b"n" * 16, size: int = 1200) -> bytes:
    return (b"P4RU\x01\x01\0\0" + nonce).ljust(size, b"\0")


def test_no_answer_is_longer_than_its_question() -> None:
    """So a forged address gets no more than its forger sends."""
    admission = HandshakeServer()
    for size in range(24, 100):
        answer, entered = admission.answer(hello(size=size), ADDRESS, is_free=True)
        assert len(answer) <= size
        assert entered is None


def test_a_cookie_is_of_one_address() -> None:
    """Whoever does not get the answer cannot go on: the switch lets nobody in by one datagram."""
    admission = HandshakeServer()
    answer, _ = admission.answer(hello(), ADDRESS, is_free=True)
    head = b"P4RU\x01\x03\0\0" + b"n" * 16
    proofless = head + answer[24:40] + (1200).to_bytes(4, "big")
    proof = hmac.digest(
        hashlib.sha256(b"").digest(),
        b"|".join((b"connect", b"n" * 16, answer[24:40], (1200).to_bytes(4, "big"))),
        "sha256",
    )[:16]
    connect = proofless + proof
    for address, is_in in (
        (("127.0.0.2", 4242), False),
        (("127.0.0.1", 4243), False),
        (ADDRESS, True),
    ):
        _, entered = admission.answer(connect, address, is_free=True)
        assert (entered is not None) == is_in
    _, entered = HandshakeServer().answer(connect, ADDRESS, is_free=True)
    assert entered is None


def test_random_messages_let_nobody_in() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    admission = HandshakeServer()
    for _ in range(2000):
        message = bytearray(rng.choice([hello(), b"P4RU\x01\x03\0\0" + rng.randbytes(52)]))
        for _ in range(rng.randrange(4)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        _, entered = admission.answer(bytes(message[: rng.randrange(1300)]), ADDRESS, is_free=True)
        assert entered is None


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (b"short", 0o600, "5 bytes; a key has 16 to 1,024"),
        (b"x" * 2000, 0o600, "a key has 16 to 1,024"),
        (b"sixteen bytes or more", 0o644, "others may read it"),
        (None, 0, "No such file"),
    ],
)
def test_a_bad_key_file(tmp_path: Path, content: bytes | None, mode: int, complaint: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(ValueError, match=complaint) as caught:
        read_key(path)
    assert str(path) in str(caught.value)


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"sixteen bytes or more\n")
    path.chmod(0o400)
    assert read_key(path) == b"sixteen bytes or more"
