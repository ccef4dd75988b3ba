# SPDX-License-Identifier: Apache-2.0
"""How a worker gets a port of the switch by UDP: a handshake of four messages.

| | from | holds | |
|---|---|---|---|
| HELLO | worker | its nonce | filled up to the size that is to be tried on this path |
| COOKIE | switch | that nonce, a cookie | of the same size; the switch remembers nothing |
| CONNECT | worker | nonce, cookie, size, proof | the cookie shows that its address is true |
| ACCEPT | switch | nonce, the switch's nonce, proof | or REFUSE with a reason |

An answer is never longer than its question, so nobody can have the switch send much to a third
host. The cookie is a MAC of address, nonce and time with a secret of the switch (as in RFC 9147,
section 5.1, and RFC 9000, section 8.1). It admits a worker once. With a key, both prove by
HMAC-SHA-256 that they know it. The token of the data that follows (`csrc/link/datagram.c`) is made
of both nonces and the key.

A switch with several cores (`cores.py`) has a socket at the port for each of them. The head of a
worker's messages names the core that it wants. Zero is the first one, and what every version of
this protocol has sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from p4reduce_native.cores import core_of_token
from p4reduce_native.files import read_file

TOKEN_BYTES = 8
LEAST_BYTES = 1200
"""A path that takes no datagram of this size takes no frame with numbers in it."""

MAGIC = b"P4RU"
CORE_OFFSET = 6
"""Of the core that is meant, in a message of a worker."""

_VERSION = 1
_NONCE = 16
_PROOF = 16
_HEAD = struct.Struct(">4sBBBx")  # magic, version, kind, core
_BARE = _HEAD.size + _NONCE  # each message has a head and the worker's nonce
_CONNECT = _BARE + _PROOF + 4 + _PROOF  # cookie, size, proof
_ACCEPT = _BARE + _NONCE + _PROOF
_COOKIE_SECONDS = 10.0  # a cookie is good for so long, and at most twice that
_SIZES = (65507, 8972, 1472, 1452, LEAST_BYTES)  # loopback; jumbo, plain, and tunnelled Ethernet
_HELLO_TIMEOUT = 0.25  # seconds for the answer to a HELLO, before the next size
_KEY_BYTES = (16, 1024)


class HandshakeKind(IntEnum):
    """The messages of the handshake."""

    HELLO = 1
    COOKIE = 2
    CONNECT = 3
    ACCEPT = 4
    REFUSE = 5


class Refusal(IntEnum):
    """Why a switch refuses a CONNECT."""

    BUSY = 1
    WRONG_KEY = 2
    STALE_COOKIE = 3
    NO_SUCH_CORE = 4


_WHY = {
    Refusal.BUSY: "the port has another worker",
    Refusal.WRONG_KEY: "switch and worker do not have the same key (P4REDUCE_UDP_KEY_FILE)",
    Refusal.STALE_COOKIE: "the switch does not know its own cookie: it was started again",
    Refusal.NO_SUCH_CORE: "the switch has fewer cores than the controller says (--cores)",
}


class HandshakeRefusedError(Exception):
    """The switch refuses the worker; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(_WHY[refusal])
        self.refusal = refusal


@dataclass(frozen=True)
class HandshakeResult:
    """The result of a handshake, which both ends have.

    Attributes:
        token: at the start of each datagram.
        size: the largest size of a datagram in bytes.
        greeting: the CONNECT, which may come again, and `answer`, what is answered then.
    """

    token: bytes
    size: int
    greeting: bytes
    answer: bytes


class HandshakeServer:
    """The switch's end. It remembers nothing of a worker before the cookie has come back.

    Args:
        key: the key that workers must know; empty: none.
        core: the core that it serves, from 0.
        cores: the number of cores at this port.
    """

    def __init__(self, key: bytes = b"", core: int = 0, cores: int = 1) -> None:
        self._key = key
        self._core = core
        self._cores = cores
        self._secret = os.urandom(32)
        self._used: dict[bytes, float] = {}  # cookies of admitted workers, with their expiry

    def answer(
        self, message: bytes, address: tuple[str, int], *, is_free: bool
    ) -> tuple[bytes, HandshakeResult | None]:
        """Return the answer (maybe empty), and the admission if a worker is admitted.

        Args:
            message: a datagram from `address`.
            is_free: whether the port has no worker.
        """
        kind, nonce, rest = _parse(message)
        if kind is HandshakeKind.HELLO:
            answer = _message(HandshakeKind.COOKIE, nonce) + self._cookie(nonce, address, _now())
            return (answer.ljust(len(message), b"\0") if len(answer) <= len(message) else b""), None
        if kind is not HandshakeKind.CONNECT or len(message) != _CONNECT:
            return b"", None
        cookie, size_bytes, proof = rest[:_PROOF], rest[_PROOF:-_PROOF], rest[-_PROOF:]
        size = int.from_bytes(size_bytes, "big")
        if not self._knows(cookie, nonce, address) or not LEAST_BYTES <= size <= _SIZES[0]:
            return _refuse(nonce, Refusal.STALE_COOKIE), None
        if not hmac.compare_digest(proof, _prove(self._key, b"connect", nonce, cookie, size_bytes)):
            return _refuse(nonce, Refusal.WRONG_KEY), None
        if message[CORE_OFFSET] != self._core:
            return _refuse(nonce, Refusal.NO_SUCH_CORE), None
        if not is_free:
            return _refuse(nonce, Refusal.BUSY), None
        self._use_up(cookie)
        own, token = self._own_nonce(nonce)
        accept = (
            _message(HandshakeKind.ACCEPT, nonce) + own + _prove(self._key, b"accept", nonce, own)
        )
        return accept, HandshakeResult(token, size, message, accept)

    def _own_nonce(self, theirs: bytes) -> tuple[bytes, bytes]:
        """Return a nonce, and the token that it makes, which is one of this core."""
        while True:
            own = os.urandom(_NONCE)
            token = _token(self._key, theirs, own)
            if core_of_token(token, self._cores) == self._core:
                return own, token

    def _cookie(self, nonce: bytes, address: tuple[str, int], period: int) -> bytes:
        text = f"{address[0]}|{address[1]}|{period}".encode()
        return hmac.digest(self._secret, nonce + text, "sha256")[:_PROOF]

    def _knows(self, cookie: bytes, nonce: bytes, address: tuple[str, int]) -> bool:
        now = _now()
        return cookie not in self._used and any(
            hmac.compare_digest(cookie, self._cookie(nonce, address, period))
            for period in (now, now - 1)
        )

    def _use_up(self, cookie: bytes) -> None:
        """A cookie lets one worker in once: a CONNECT may be on its way twice."""
        now = time.monotonic()
        self._used = {used: until for used, until in self._used.items() if until > now}
        self._used[cookie] = now + 2 * _COOKIE_SECONDS


def enter(sock: socket.socket, key: bytes, deadline: float, core: int = 0) -> HandshakeResult:
    """Run the worker's end, on a connected UDP socket.

    Args:
        sock: non-blocking; its datagrams must not be fragmented (Don't Fragment).
        key: the switch's key; empty: none.
        deadline: on the monotonic clock.
        core: of the switch, from 0.

    Raises:
        HandshakeRefusedError: the switch refuses this worker.
        ConnectionRefusedError: nobody listens there.
        TimeoutError: nobody answers, or the path takes no datagram of 1,200 bytes.
    """
    nonce = os.urandom(_NONCE)
    cookie, size = _get_cookie(sock, nonce, deadline, core)
    size_bytes = size.to_bytes(4, "big")
    proof = _prove(key, b"connect", nonce, cookie, size_bytes)
    connect = _message(HandshakeKind.CONNECT, nonce, core) + cookie + size_bytes + proof
    for pause in _pauses(deadline):
        _send(sock, connect)
        for kind, rest in _answers(sock, nonce, pause):
            if kind is HandshakeKind.REFUSE and rest[0] in _WHY:
                raise HandshakeRefusedError(Refusal(rest[0]))
            if kind is not HandshakeKind.ACCEPT or len(rest) != _ACCEPT - _BARE:
                continue
            theirs, their_proof = rest[:_NONCE], rest[_NONCE:]
            if hmac.compare_digest(their_proof, _prove(key, b"accept", nonce, theirs)):
                return HandshakeResult(_token(key, nonce, theirs), size, b"", b"")
    raise TimeoutError("the switch answered once, and then no more")


def ask(sock: socket.socket, deadline: float) -> None:
    """Ask a switch for an answer, on a connected UDP socket. No port is taken by it.

    Args:
        sock: as for `enter`.
        deadline: on the monotonic clock.

    Raises:
        ConnectionRefusedError: nobody listens there.
        TimeoutError: nobody answers.
    """
    _get_cookie(sock, os.urandom(_NONCE), deadline, 0)


def never_cut_up(sock: socket.socket) -> None:
    """Forbid the fragmentation of this UDP socket's datagrams: one lost fragment loses all of it.

    The kernel also ignores routers' messages about the size, which anybody can forge (RFC 8899,
    section 3). The handshake and the link find the size by probing the other end.
    """
    ipv6 = sock.family == socket.AF_INET6
    if sys.platform == "linux":  # IP_MTU_DISCOVER and IPV6_MTU_DISCOVER to PMTUDISC_PROBE
        level, option, value = (socket.IPPROTO_IPV6, 23, 3) if ipv6 else (socket.IPPROTO_IP, 10, 3)
    else:  # IPV6_DONTFRAG and IP_DONTFRAG of macOS and the BSDs
        level, option, value = (socket.IPPROTO_IPV6, 62, 1) if ipv6 else (socket.IPPROTO_IP, 28, 1)
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a key of 16 to 1,024 bytes from a file that only its owner can read.

    Raises:
        ValueError: the file cannot be read, is open to others, or has another length; says which.
    """
    least, most = _KEY_BYTES
    try:
        key, mode = read_file(path, most + 2)
        key = key.rstrip(b"\r\n")
    except OSError as error:
        raise ValueError(f"key file {os.fspath(path)}: {error.strerror}") from None
    if mode & 0o077:
        raise ValueError(f"key file {os.fspath(path)}: others may read it (chmod 600)")
    if not least <= len(key) <= most:
        raise ValueError(
            f"key file {os.fspath(path)}: {len(key)} bytes; a key has {least} to {most:,}"
        )
    return key


def key_of(text: str) -> bytes:
    """Return a key that is given as text. Raises ValueError unless it has 16 to 1,024 bytes."""
    least, most = _KEY_BYTES
    key = text.encode()
    if not least <= len(key) <= most:
        raise ValueError(f"a key of {len(key)} bytes; a key has {least} to {most:,}")
    return key


def _get_cookie(sock: socket.socket, nonce: bytes, deadline: float, core: int) -> tuple[bytes, int]:
    """Return a cookie and the largest size that passes; each is tried, the largest first."""
    refused: OSError | None = None
    for _ in _pauses(deadline):
        for size in _SIZES:
            hello = _message(HandshakeKind.HELLO, nonce, core).ljust(size, b"\0")
            try:
                sock.send(hello)
            except ConnectionRefusedError as error:
                refused = error
            except OSError:
                continue  # longer than the first network takes, or there is no way just now
            for kind, rest in _answers(
                sock, nonce, min(_HELLO_TIMEOUT, deadline - time.monotonic())
            ):
                if kind is HandshakeKind.COOKIE and len(rest) >= _PROOF:
                    return rest[:_PROOF], min(size, _BARE + len(rest))
        if refused is not None:
            raise ConnectionRefusedError(refused.errno, refused.strerror)
    raise TimeoutError(f"no answer to a datagram of {LEAST_BYTES} bytes or more")


def _answers(
    sock: socket.socket, nonce: bytes, seconds: float
) -> Iterator[tuple[HandshakeKind, bytes]]:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if not poll.poll(left * 1000):
            return
        try:
            message = sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            continue
        except OSError:
            return  # somebody says that nobody listens there, or that the datagram was too long
        kind, theirs, rest = _parse(message)
        if kind is not None and theirs == nonce:
            yield kind, rest


def _pauses(deadline: float) -> Iterator[float]:
    """How long to wait for each answer: longer and longer, until the deadline; once in any case."""
    pause = 0.1
    while True:
        left = deadline - time.monotonic()
        yield max(min(pause, left), 0.01)
        if time.monotonic() >= deadline:
            return
        pause = min(2 * pause, 1.0)


def _send(sock: socket.socket, message: bytes) -> None:
    with contextlib.suppress(OSError):  # it is sent again
        sock.send(message)


def _message(kind: HandshakeKind, nonce: bytes, core: int = 0) -> bytes:
    return _HEAD.pack(MAGIC, _VERSION, kind, core) + nonce


def _refuse(nonce: bytes, why: Refusal) -> bytes:
    return _message(HandshakeKind.REFUSE, nonce) + bytes([why])


def _parse(message: bytes) -> tuple[HandshakeKind | None, bytes, bytes]:
    """Return kind, nonce and the rest; no kind: it is not one of ours."""
    if len(message) < _BARE:
        return None, b"", b""
    magic, version, kind, _ = _HEAD.unpack_from(message)
    nonce, rest = message[_HEAD.size : _BARE], message[_BARE:]
    if magic != MAGIC or version != _VERSION or kind not in list(HandshakeKind):
        return None, b"", b""
    if kind == HandshakeKind.REFUSE and not rest:
        return None, b"", b""
    return HandshakeKind(kind), nonce, rest


def _prove(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(key).digest(), b"|".join(parts), "sha256")[:_PROOF]


def _token(key: bytes, nonce: bytes, theirs: bytes) -> bytes:
    return _prove(key, b"token", nonce, theirs)[:TOKEN_BYTES]


def _now() -> int:
    return int(time.monotonic() / _COOKIE_SECONDS)
