# SPDX-License-Identifier: Apache-2.0
"""Serves the page in the controller's event loop, by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from p4reduce.control.controller_address import is_local, parse_address
from uvicorn.protocols.http.h11_impl import H11Protocol

from p4reduce_controller.controller import Controller
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.service.listen import ListenError
from p4reduce_controller.settings import Http
from p4reduce_controller.web.app import make_app
from p4reduce_controller.web.guard import own_names
from p4reduce_controller.web.monitor import Monitor

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
REQUEST_WITHIN = 10.0  # seconds that a client has for all of a request's head
STOP_WITHIN = 1  # seconds for open streams when stopping


class PromptProtocol(H11Protocol):
    """Closes connections whose request does not come: uvicorn would wait for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._expect(transport)

    def data_received(self, data: bytes) -> None:
        """Wait no longer while a request is answered; else go on waiting."""
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not answering and self._deadline is None:
            self._expect(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect(self, transport: Any) -> None:
        self._deadline = self.loop.call_later(REQUEST_WITHIN, transport.close)


class _Server(uvicorn.Server):
    """The signals are the daemon's, not uvicorn's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


def bind(http: Http) -> socket.socket:
    """Bind before anything else is done. Raises ListenError saying what is wrong."""
    if not is_local(http.address) and (http.tls is None or not http.token):
        raise ListenError(
            f"refusing to serve the page at {http.address} without TLS and a token: beyond "
            "loopback anybody could watch. Give --tls-cert, --tls-key, --tls-ca and "
            "--http-token-file, or use 127.0.0.1:PORT"
        )
    host, port = parse_address(http.address) or ("", 0)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        raise ListenError(f"cannot serve the page at {http.address}: {error.strerror}") from None
    return listener


@contextlib.asynccontextmanager
async def serving(
    http: Http, listener: socket.socket, controller: Controller, service: Service
) -> AsyncIterator[str]:
    """Serve the page while the block runs; gives its address."""
    monitor = Monitor(controller, service)
    host, _ = parse_address(http.address) or ("", 0)
    files: dict[str, Any] = {}
    if http.tls is not None:
        files = {"ssl_certfile": http.tls.cert, "ssl_keyfile": http.tls.key}
    server = _Server(
        uvicorn.Config(
            make_app(monitor, own_names(host), http.token),
            http=PromptProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=STOP_WITHIN,
            **files,
        )
    )
    sampling = asyncio.create_task(monitor.run(), name="page")
    answering = asyncio.create_task(server.serve([listener]), name="http")
    scheme = "https" if http.tls is not None else "http"
    try:
        yield f"{scheme}://{host}:{listener.getsockname()[1]}/"
    finally:
        sampling.cancel()
        server.should_exit = True
        await asyncio.gather(sampling, answering, return_exceptions=True)
        listener.close()
