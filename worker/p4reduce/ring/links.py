# SPDX-License-Identifier: Apache-2.0
"""A rank's two connections in a ring: from the previous rank, and to the next one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p4reduce_common.host_port import parse_host_port
from p4reduce_common.polling import Backoff

from p4reduce.errors import (
    ClosedError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
    WorkerLostError,
)
from p4reduce.inherited import keep_from_children
from p4reduce.ring import handshake
from p4reduce.ring.handshake import Connection, HandshakeError, introduction
from p4reduce.ring.rank_address import RingListener
from p4reduce.thread_failure import ThreadFailedError

_HEAD = struct.Struct(">BI")  # kind, length of what follows
_DATA, _ABORT = 0, 1
_MAX_MESSAGE = 64 << 20
_MAX_REASON = 64 << 10
_MAX_STRANGERS = 64  # who connect and have not proved yet who they are
STRANGER_TIMEOUT = 2.0  # seconds for one who connects to prove who it is
_RETRY = Backoff(0.02, 0.5)
_MESSAGES_AHEAD = 4
_LAST_WORDS = 1.0  # seconds to learn why a neighbour is gone

TRY, FALL_BACK = 0, 1  # purposes of rings


@dataclass(frozen=True)
class RingNeighbours:
    """The ranks of a ring, and their addresses.

    Attributes:
        incarnation: of the job.
        rank: of this process.
        addresses: of all ranks, in order.
        secret: known to these ranks only.
    """

    incarnation: int
    rank: int
    addresses: tuple[str, ...]
    secret: bytes

    @property
    def before(self) -> int:
        """The previous rank, which sends to this one."""
        return (self.rank - 1) % len(self.addresses)

    @property
    def after(self) -> int:
        """The next rank, to which this one sends."""
        return (self.rank + 1) % len(self.addresses)


class RingLinks:
    """The two connections, made by `form`. One task makes all calls. Messages are sent whole.

    Attributes:
        before: the connection from the previous rank.
        after: the connection to the next rank.
        awaited: the rank whose message is awaited, if known; for error messages.
        gone_reason: why no message will come, once known, even without `exchange`.
    """

    def __init__(self, who: RingNeighbours, before: Connection, after: Connection) -> None:
        self.who = who
        self.awaited = who.before
        self.gone_reason: asyncio.Future[P4ReduceError] = asyncio.get_running_loop().create_future()
        self.before = before
        self.after = after
        self._arrived: asyncio.Queue[bytes | P4ReduceError] = asyncio.Queue(_MESSAGES_AHEAD)
        self._reading = asyncio.ensure_future(self._read())
        keep_from_children(self)

    def descriptors(self) -> Iterator[int]:
        for _, writer in (self.before, self.after):
            yield writer.get_extra_info("socket").fileno()

    async def exchange(self, out: bytes | memoryview) -> bytes:
        """Send a message to the next rank, and return the one that arrives meanwhile.

        Raises:
            WorkerLostError: a neighbour hung up, or another rank's error was passed on. That is
                so for all errors in a ring.
        """
        receiving = asyncio.ensure_future(self._arrived.get())
        try:
            try:
                await self._send(_DATA, out)
            except OSError:
                # It may have gone because of another one; that one's reason goes the other way
                # round.
                await asyncio.wait({self.gone_reason}, timeout=_LAST_WORDS)
                if self.gone_reason.done():
                    raise self.gone_reason.result() from None
                raise _hung_up(self.who.after) from None
            message = await receiving
        finally:
            receiving.cancel()
        if isinstance(message, P4ReduceError):
            raise message
        return message

    async def abort(self, error: P4ReduceError) -> None:
        """Tell the next rank why this one leaves. It tells its next one."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._send(_ABORT, _pack(error, self.who.rank)), _LAST_WORDS)

    async def close(self) -> None:
        """Close the connections when the last message has been sent."""
        self._reading.cancel()
        for _, writer in (self.before, self.after):
            writer.close()
        for _, writer in (self.before, self.after):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _LAST_WORDS)

    async def _send(self, kind: int, data: bytes | memoryview) -> None:
        writer = self.after[1]
        writer.write(_HEAD.pack(kind, len(data)))
        writer.write(data)
        await writer.drain()

    async def _read(self) -> None:
        """Receive what comes, so that an idle rank notices the end of another."""
        try:
            while True:
                await self._arrived.put(await self._receive())
        except Exception as problem:
            error = problem
            if not isinstance(error, P4ReduceError):
                error = ThreadFailedError.of(f"reading the ring failed: {problem!r}", problem)
            self.gone_reason.set_result(error)
            await self._arrived.put(error)

    async def _receive(self) -> bytes:
        reader = self.before[0]
        try:
            kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
            if length > (_MAX_REASON if kind == _ABORT else _MAX_MESSAGE):
                raise P4ReduceError(f"rank {self.who.before} sent {length:,} bytes at once")
            data = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            raise _hung_up(self.who.before) from None
        if kind == _ABORT:
            raise _unpack(data, self.who.before)
        if kind != _DATA:
            raise _no_message(self.who.before)
        return data


async def form(who: RingNeighbours, listener: RingListener, purpose: int) -> RingLinks:
    """Connect to the next rank, and accept the previous one, however long it takes.

    Cancel it at a deadline. Other connections are refused.
    """
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    expected = introduction(who.incarnation, who.before, who.rank, purpose)
    strangers: dict[asyncio.StreamWriter, None] = {}  # the first is the one that is here longest

    async def knock(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        strangers[writer] = None
        if len(strangers) > _MAX_STRANGERS:
            # A rank proves itself at once; so it is not one of those that have been here longest.
            next(iter(strangers)).transport.abort()
            del strangers[next(iter(strangers))]
        try:
            greeting = handshake.accept((reader, writer), who.secret, expected)
            await asyncio.wait_for(greeting, STRANGER_TIMEOUT)
        except (OSError, HandshakeError, asyncio.TimeoutError):
            writer.close()
        except asyncio.CancelledError:  # the loop ends; Python 3.11.7 would leave this open
            writer.transport.abort()
        else:
            if accepted.done():
                writer.close()
            else:
                accepted.set_result((reader, writer))
        finally:
            strangers.pop(writer, None)

    server = await asyncio.start_server(knock, sock=listener.socket())
    connecting = asyncio.ensure_future(_connect(who, purpose))
    try:
        await asyncio.gather(accepted, connecting)
    except BaseException:
        for made in (accepted, connecting):
            if made.done() and not made.cancelled() and made.exception() is None:
                made.result()[1].close()
        raise
    finally:
        connecting.cancel()
        server.close()
    return RingLinks(who, accepted.result(), connecting.result())


async def _connect(who: RingNeighbours, purpose: int) -> Connection:
    host, port = parse_host_port(who.addresses[who.after])
    mine = introduction(who.incarnation, who.rank, who.after, purpose)
    pauses = iter(_RETRY)
    while True:
        with contextlib.suppress(OSError, HandshakeError):
            connection = await asyncio.open_connection(host, port)
            try:
                await handshake.connect(connection, who.secret, mine)
            except BaseException:
                connection[1].close()
                raise
            return connection
        await asyncio.sleep(next(pauses))


# -- Why a rank is gone --------------------------------------------------------------------------

_KINDS: dict[str, Callable[[str, tuple[int, ...]], P4ReduceError]] = {
    "lost": lambda text, ranks: WorkerLostError(text, ranks=ranks),
    "late": lambda text, ranks: P4ReduceTimeoutError(text, missing=ranks),
    "mismatch": lambda text, ranks: MismatchError(text),
    "failed": lambda text, ranks: P4ReduceError(text),
}


def _hung_up(rank: int) -> WorkerLostError:
    return WorkerLostError(f"rank {rank} hung up on the ring of the ranks", ranks=(rank,))


def _pack(error: P4ReduceError, rank: int) -> bytes:
    text, ranks = str(error), [rank]
    if isinstance(error, WorkerLostError):
        kind, ranks = "lost", list(error.ranks)
    elif isinstance(error, ClosedError):
        kind, text = "lost", f"rank {rank} left while the ranks formed a ring"
    elif isinstance(error, P4ReduceTimeoutError):
        kind, ranks = "late", list(error.missing)
        text = f"rank {rank} gave up: {error}"
    elif isinstance(error, MismatchError):
        kind = "mismatch"
    else:
        kind, text = "failed", f"rank {rank} gave up: {error}"
    return json.dumps({"kind": kind, "ranks": ranks, "text": text}).encode()


def _unpack(data: bytes, rank: int) -> P4ReduceError:
    """Return what a neighbour passes on, or that this is not a known error."""
    try:
        gone_reason = json.loads(data)
        kind, text = _KINDS[gone_reason["kind"]], str(gone_reason["text"])
        ranks = tuple(int(one) for one in gone_reason["ranks"])
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return _no_message(rank)
    return kind(text, ranks)


def _no_message(rank: int) -> P4ReduceError:
    return P4ReduceError(f"rank {rank} sent something that is not a message of the ring")
