# SPDX-License-Identifier: Apache-2.0
"""Authenticates two neighbours in a ring by the secret of their job's incarnation.

    accepting rank                                     connecting rank
        a challenge, 32 random bytes  ------------->
                                      <-------------   whom it wants, who it is (`introduction`),
                                                       a challenge of its own, and the proof: a MAC
                                                       of all of that and the first challenge
        the proof: a MAC of both challenges
        and of the introduction       ------------->

A MAC is HMAC-SHA-256 under the secret, with a word that tells the two directions apart. So neither
side accepts a process without the secret, and a recording cannot be used again. What is sent
afterwards is neither encrypted nor authenticated: see docs/security.md.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import struct
from typing import TypeAlias

_CHALLENGE_BYTES = 32
_PROOF_BYTES = 32
_MAGIC = b"p4reduce ring 1\n"
_INTRODUCTION = struct.Struct(">16sIHHB")

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HandshakeError(Exception):
    """The other side is not the expected rank."""


def introduction(incarnation: int, source: int, target: int, purpose: int) -> bytes:
    """Return what names a connection: the rank `source` connects, and `target` accepts.

    `purpose` tells rings of one incarnation apart.
    """
    return _INTRODUCTION.pack(_MAGIC, incarnation, source, target, purpose)


async def accept(connection: Connection, secret: bytes, expected: bytes) -> None:
    """Accept the rank with that introduction.

    Raises HandshakeError, and OSError if the connection breaks.
    """
    reader, writer = connection
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    writer.write(ours)
    introduced = await _read(reader, _INTRODUCTION.size)
    theirs = await _read(reader, _CHALLENGE_BYTES)
    proof = await _read(reader, _PROOF_BYTES)
    right = proof_of(secret, b"connect", introduced, ours, theirs)
    if not hmac.compare_digest(proof, right) or introduced != expected:
        raise HandshakeError("a process that is not the previous rank")
    writer.write(proof_of(secret, b"accept", introduced, ours, theirs))
    await writer.drain()


async def connect(connection: Connection, secret: bytes, who: bytes) -> None:
    """Connect with an introduction. Raises as `accept`."""
    reader, writer = connection
    theirs = await _read(reader, _CHALLENGE_BYTES)
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    writer.write(who + ours + proof_of(secret, b"connect", who, theirs, ours))
    await writer.drain()
    proof = await _read(reader, _PROOF_BYTES)
    if not hmac.compare_digest(proof, proof_of(secret, b"accept", who, theirs, ours)):
        raise HandshakeError("the process that listens there does not belong to this job")


def proof_of(
    secret: bytes, direction: bytes, who: bytes, acceptors: bytes, connectors: bytes
) -> bytes:
    """Return the MAC that authenticates one side, by the introduction and both challenges.

    `direction` is b"connect" or b"accept".
    """
    return hmac.digest(secret, direction + who + acceptors + connectors, "sha256")


async def _read(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError:
        raise HandshakeError("the other side hung up") from None
