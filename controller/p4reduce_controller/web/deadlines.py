# SPDX-License-Identifier: Apache-2.0
"""Drops clients that send no request or do not read. uvicorn would wait for ever.

A protocol stands between the transport and uvicorn's own, and passes everything on. The application
tells it when a request is being answered.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

SEND_BUFFER = 64 << 10  # bytes; the kernel would keep megabytes for a browser that stops reading
REQUEST_WITHIN = 10.0  # seconds that a client has for all of a request's head
STOPPED_READING = 10.0  # seconds after which a browser that takes nothing is dropped
_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for 0 s

Connections: TypeAlias = "dict[tuple[str, int], DeadlineProtocol]"
"""The open ones, by the client's host and port."""


class DeadlineProtocol(asyncio.Protocol):
    """Passes a connection on to uvicorn's protocol, within deadlines.

    Args:
        make: makes uvicorn's protocol; it takes `options`.
        connections: where this one is while it is open.
    """

    def __init__(
        self, make: Callable[..., asyncio.Protocol], connections: Connections, **options: Any
    ) -> None:
        self._inner = make(**options)
        self._connections = connections
        self._answers = 0  # that have begun and not ended: the client may pipeline
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for a request."""
        self._transport = transport
        self._client = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._connections[self._client] = self
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._expect_request()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The send buffer is full: give the browser a short time to read."""
        self._inner.pause_writing()
        self._unread = asyncio.get_running_loop().call_later(STOPPED_READING, self._drop)

    def _drop(self) -> None:
        """Reset it: to close would wait for what was not read, here or in the kernel."""
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def resume_writing(self) -> None:
        """The browser reads again."""
        if self._unread is not None:
            self._unread.cancel()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._connections.pop(self._client, None)
        self._stop_deadline()
        if self._unread is not None:
            self._unread.cancel()
        self._inner.connection_lost(exc)

    def request_begins(self) -> None:
        """A request has come: its answer may take any time."""
        self._answers += 1
        self._stop_deadline()

    def request_ends(self) -> None:
        """A request is answered: expect the next one, unless another answer is under way."""
        self._answers -= 1
        if not self._answers:
            self._expect_request()

    def _expect_request(self) -> None:
        """Close the connection unless a whole request comes in time."""
        self._stop_deadline()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_WITHIN, self._close)

    def _close(self) -> None:
        """Send what is left, for as long as a browser may take to read it."""
        self._transport.close()
        self._deadline = asyncio.get_running_loop().call_later(STOPPED_READING, self._drop)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def noting_requests(app: ASGIApp, connections: Connections) -> ASGIApp:
    """Return the application; it tells a connection when it begins and ends an answer."""

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        connection = connections.get(scope["client"])
        if connection is None:  # closed meanwhile
            await app(scope, receive, send)
            return
        connection.request_begins()
        try:
            await app(scope, receive, send)
        finally:
            if connections.get(scope["client"]) is connection:
                connection.request_ends()

    return noting
