# SPDX-License-Identifier: Apache-2.0
"""Serves the page in the controller's event loop, by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import uvicorn
from p4reduce.control.controller_address import is_local, parse_address
from p4reduce_common.host_port import format_host_port
from p4reduce_common.threads import watch_task

from p4reduce_controller.controller import Controller
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.service.listen import ListenError
from p4reduce_controller.settings import Http
from p4reduce_controller.web.app import make_app
from p4reduce_controller.web.certificate import keep_fresh
from p4reduce_controller.web.deadlines import Connections, DeadlineProtocol, noting_requests
from p4reduce_controller.web.guard import own_names
from p4reduce_controller.web.monitor import Monitor

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
STOP_WITHIN = 1  # seconds for open streams when stopping


class _WebServer(uvicorn.Server):
    """The signals are the daemon's, not uvicorn's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


def bind(http: Http) -> socket.socket:
    """Bind the page's address before anything else starts. Raises ListenError."""
    if not is_local(http.address) and (http.tls is None or not http.token):
        raise ListenError(
            f"refusing to serve the page at {http.address} without TLS and a token: beyond "
            "loopback anyone could watch. Give --tls-cert, --tls-key, --tls-ca and "
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
    """Serve the page while the block runs; yields its address."""
    monitor = Monitor(controller, service)
    host, _ = parse_address(http.address) or ("", 0)
    files: dict[str, Any] = {}
    if http.tls is not None:
        files = {"ssl_certfile": http.tls.cert, "ssl_keyfile": http.tls.key}
    connections: Connections = {}
    config = uvicorn.Config(
        noting_requests(make_app(monitor, own_names(host), http.token), connections),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the client is whose connection it is
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=STOP_WITHIN,
        **files,
    )
    config.load()
    own: Any = partial(DeadlineProtocol, config.http_protocol_class, connections)
    config.http_protocol_class = own
    if http.tls is not None and config.ssl is not None:
        keep_fresh(config.ssl, http.tls)
    server = _WebServer(config)
    sampling = asyncio.create_task(monitor.run(), name="page")
    answering = asyncio.create_task(server.serve([listener]), name="http")
    watch_task(sampling)
    watch_task(answering)
    scheme = "https" if http.tls is not None else "http"
    try:
        yield f"{scheme}://{format_host_port(host, listener.getsockname()[1])}/"
    finally:
        monitor.end()
        sampling.cancel()
        server.should_exit = True
        await asyncio.gather(sampling, answering, return_exceptions=True)
        listener.close()
