# SPDX-License-Identifier: Apache-2.0
"""Authenticates two neighbours in a ring by the secret of their job's incarnation.

    accepting rank                                     connecting rank
        a challenge, 32 random bytes  ------------->
                                      <-------------   whom it wants, who it is (`Introduction`),
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
from dataclasses import dataclass

_CHALLENGE_BYTES = 32
_PROOF_BYTES = 32
_MAGIC = b"p4reduce ring 1\n"
_INTRODUCTION = struct.Struct(">16sIHHB")


class HandshakeError(Exception):
    """The other side is not the expected rank."""


@dataclass(frozen=True)
class Introduction:
    """The identity of a connection in a ring.

    Attributes:
        incarnation: of the job.
        source: the rank that connects.
        target: the rank that accepts.
        purpose: tells rings of one incarnation apart.
    """

    incarnation: int
    source: int
    target: int
    purpose: int

    def pack(self) -> bytes:
        return _INTRODUCTION.pack(_MAGIC, self.incarnation, self.source, self.target, self.purpose)


async def accept(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    expected: Introduction,
) -> None:
    """Take the accepting side. Raises HandshakeError, and OSError if the connection breaks."""
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    writer.write(ours)
    introduction = await _read(reader, _INTRODUCTION.size)
    theirs = await _read(reader, _CHALLENGE_BYTES)
    proof = await _read(reader, _PROOF_BYTES)
    right = proof_of(secret, b"connect", introduction, ours, theirs)
    if not hmac.compare_digest(proof, right) or introduction != expected.pack():
        raise HandshakeError("a process that is not the previous rank")
    writer.write(proof_of(secret, b"accept", introduction, ours, theirs))
    await writer.drain()


async def connect(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    who: Introduction,
) -> None:
    """Take the connecting side. Raises as `accept`."""
    theirs = await _read(reader, _CHALLENGE_BYTES)
    ours = secrets.token_bytes(_CHALLENGE_BYTES)
    introduction = who.pack()
    writer.write(introduction + ours + proof_of(secret, b"connect", introduction, theirs, ours))
    await writer.drain()
    proof = await _read(reader, _PROOF_BYTES)
    if not hmac.compare_digest(proof, proof_of(secret, b"accept", introduction, theirs, ours)):
        raise HandshakeError("the process that listens there does not belong to this job")


def proof_of(
    secret: bytes, direction: bytes, introduction: bytes, acceptors: bytes, connectors: bytes
) -> bytes:
    """Return the MAC that authenticates one side.

    Args:
        secret: of the job.
        direction: b"connect" or b"accept".
        introduction: of the side that connects.
        acceptors: the challenge of the side that accepts.
        connectors: the challenge of the side that connects.
    """
    return hmac.digest(secret, direction + introduction + acceptors + connectors, "sha256")


async def _read(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError:
        raise HandshakeError("the other side hung up") from None
