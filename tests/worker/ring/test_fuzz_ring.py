# SPDX-License-Identifier: Apache-2.0
"""Whoever connects to a rank's ring, and a neighbour that sends what no rank sends.

Strangers must not keep a ring from coming about. A neighbour has proved who it is, but may be of
another version, or broken: this rank then ends with an error that says so, and never hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from p4reduce.errors import P4ReduceError
from p4reduce.ring import handshake, rounds
from p4reduce.ring.handshake import introduction
from p4reduce.ring.links import FALL_BACK, RingLinks, RingNeighbours, form
from p4reduce.ring.rank_address import RingListener
from p4reduce_common.host_port import parse_host_port
from worker_system import DEADLINE

pytestmark = pytest.mark.fuzz

INCARNATION = 77
HEAD = struct.Struct(">BI")
DATA, ABORT = 0, 1


class Two:
    """Two ranks; each test is one of them, or both."""

    def __init__(self) -> None:
        self.listeners = [RingListener("127.0.0.1", "") for _ in range(2)]
        addresses = tuple(one.address for one in self.listeners)
        self.secret = secrets.token_bytes(32)
        self.who = [RingNeighbours(INCARNATION, rank, addresses, self.secret) for rank in range(2)]

    async def exchange(self, rank: int) -> bytes:
        links = await form(self.who[rank], self.listeners[rank], FALL_BACK)
        try:
            return b"".join(await rounds.gather(links, bytes([rank])))
        finally:
            await links.close()

    def meet(self) -> None:
        """Assert that both form a ring, and hear each other."""

        async def both() -> list[bytes]:
            return await asyncio.gather(self.exchange(0), self.exchange(1))

        assert asyncio.run(asyncio.wait_for(both(), DEADLINE)) == [b"\0\1", b"\0\1"]

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def two() -> Iterator[Two]:
    ranks = Two()
    try:
        yield ranks
    finally:
        ranks.close()


# -- Strangers -----------------------------------------------------------------------------------


def greeting(rng: Any, secret: bytes, challenge: bytes) -> bytes:
    """An introduction with proof in which something is wrong, or just bytes."""
    who = introduction(INCARNATION, 1, 0, FALL_BACK)
    ours = rng.randbytes(32)
    proof = handshake.proof_of(secret, b"connect", who, challenge, ours)
    whole = bytearray(who + ours + proof)
    match rng.randrange(6):
        case 0:
            return bytes(rng.randbytes(rng.choice((0, 1, 24, 89, 90, 5000, 300_000))))
        case 1:
            del whole[rng.randrange(len(whole)) :]
        case 2:
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        case 3:
            wrong = handshake.proof_of(secret, b"accept", who, challenge, ours)
            return who + ours + bytes(wrong)
        case 4:
            stale = handshake.proof_of(secret, b"connect", who, rng.randbytes(32), ours)
            return who + ours + bytes(stale)
        case 5:
            other = introduction(INCARNATION, rng.randrange(9), rng.randrange(9), 9)
            return other + ours + handshake.proof_of(secret, b"connect", other, challenge, ours)
    return bytes(whole)


def pester(rng: Any, secret: bytes, where: tuple[str, int], stop: threading.Event) -> None:
    """Connect over and over; say something wrong, or nothing, and stay, or hang up."""
    open_: list[socket.socket] = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            stranger = socket.create_connection(where, timeout=0.5)
            open_.append(stranger)
            if rng.random() < 0.6:
                stranger.sendall(greeting(rng, secret, stranger.recv(32)))
        while len(open_) > 150 or (open_ and rng.random() < 0.3):
            open_.pop(rng.randrange(len(open_))).close()
    for stranger in open_:
        stranger.close()


def test_strangers_keep_no_ring_from_coming_about(fuzz: Any, two: Two, bounded: None) -> None:
    stop = threading.Event()
    where = parse_host_port(two.listeners[0].address)
    arguments = (fuzz.random, two.secret, where, stop)
    strangers = threading.Thread(target=pester, args=arguments, daemon=True)
    strangers.start()
    try:
        for _ in fuzz.rounds(5):
            time.sleep(0.05)
            two.meet()
    finally:
        stop.set()
        strangers.join(DEADLINE)


def test_silent_strangers_make_room(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than there is room for: those that came first are hung up on."""
    monkeypatch.setattr("p4reduce.ring.links.STRANGER_TIMEOUT", DEADLINE)
    where = parse_host_port(two.listeners[0].address)

    async def both() -> list[bytes]:
        first = asyncio.ensure_future(two.exchange(0))
        strangers = [await asyncio.open_connection(*where) for _ in range(100)]
        began = time.monotonic()
        for reader, _ in strangers[:30]:
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read(100)) in (0, 32)
                assert await reader.read(1) == b""
        assert time.monotonic() - began < DEADLINE / 2, "only when their time was up"
        parts = await asyncio.gather(first, two.exchange(1))
        for _, writer in strangers:
            writer.close()
        return parts

    assert asyncio.run(asyncio.wait_for(both(), DEADLINE)) == [b"\0\1", b"\0\1"]


# -- A neighbour ---------------------------------------------------------------------------------


def hostile_message(rng: Any) -> bytes:
    """What a neighbour says next: right or not in kind, length and what is in it."""
    kind = rng.choice((DATA, DATA, ABORT, ABORT, ABORT, 2, 255))
    body = rng.choice((b"", b"\0", b"\1", b"\1\1", bytes(rng.randbytes(rng.randrange(300)))))
    if kind == ABORT and rng.random() < 0.8:
        kinds = ("lost", "late", "mismatch", "failed", "x", "", None, [], {})
        ranks = ([], [0], [1], [2**70], ["x"], [None], "12", None, {}, [[0]], [1e308], [0.5])
        texts = ("gone", "", "x" * 5000, None, [], 7)
        fields = {"kind": kinds, "ranks": ranks, "text": texts}
        news: Any = {key: rng.choice(values) for key, values in fields.items()}
        if rng.random() < 0.2:
            del news[rng.choice(list(news))]
        news = rng.choice((news, news, news, news, [news], None, 5, "lost"))
        body = json.dumps(news).encode()
        body = rng.choice((body, body, body, body[:-1], b"[" * 50_000, b"\xff" + body))
    length = len(body)
    if rng.random() < 0.2:
        length = rng.choice((0, 1, length + 1, 2**16, 2**26, 2**26 + 1, 2**31, 2**32 - 1))
    return HEAD.pack(kind, length) + body


async def outcome(links: RingLinks) -> str:
    """Assert that what a rank does in a ring ends, with what it waits for or with our error."""
    try:
        for _ in range(4):
            parts = await asyncio.wait_for(rounds.gather(links, b"\0"), DEADLINE)
            assert [len(part) for part in parts] == [1, 1]
    except P4ReduceError as error:
        return type(error).__name__
    finally:
        await links.close()
    return "done"


def test_a_neighbour_that_sends_anything(fuzz: Any, two: Two, bounded: None) -> None:
    seen: Counter[str] = Counter()

    async def one() -> str:
        here, neighbour = await asyncio.gather(
            *(form(two.who[rank], two.listeners[rank], FALL_BACK) for rank in range(2))
        )
        ending = asyncio.ensure_future(outcome(here))
        writer = neighbour.after[1]
        with contextlib.suppress(OSError):
            for _ in range(fuzz.random.choice((1, 2, 6))):
                writer.write(hostile_message(fuzz.random))
                await writer.drain()
        await asyncio.sleep(0.002)
        await neighbour.close()
        return await asyncio.wait_for(ending, DEADLINE)

    for _ in fuzz.rounds(60):
        seen[asyncio.run(one())] += 1
    assert seen["P4ReduceError"] > 0, seen
    assert seen["WorkerLostError"] > 0, seen
    two.meet()


def test_a_listener_that_answers_anything(fuzz: Any, two: Two, bounded: None) -> None:
    """The next rank's address is somebody else's for a while; then the rank is there."""

    async def one() -> bytes:
        imposters = 0

        async def imposter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal imposters
            imposters += 1
            size = fuzz.random.choice((0, 1, 31, 32, 33, 64, 65, 100_000))
            with contextlib.suppress(OSError):
                writer.write(fuzz.random.randbytes(size))
                await writer.drain()
            await asyncio.sleep(0.005)
            writer.close()

        server = await asyncio.start_server(imposter, sock=two.listeners[1].socket())
        first = asyncio.ensure_future(two.exchange(0))
        while imposters < 3:
            await asyncio.sleep(0.005)
        server.close()
        return b"".join(await asyncio.gather(first, two.exchange(1)))

    for _ in fuzz.rounds(4):
        assert asyncio.run(asyncio.wait_for(one(), DEADLINE)) == b"\0\1\0\1"
