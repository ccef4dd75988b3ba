# SPDX-License-Identifier: Apache-2.0
"""Ranks exchange texts before there is a network, and do things together: all, or none.

They exchange by a store or an all-gather of their engine, or by a socket of rank 0.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p4reduce_common.host_port import format_host_port
from p4reduce_common.polling import retry
from p4reduce_common.threads import new_thread

from p4reduce import errors
from p4reduce.control.controller_address import parse_address
from p4reduce.errors import ConfigurationError, LaunchError, P4ReduceError, P4ReduceTimeoutError
from p4reduce.hosts import address_towards

_PAUSE = 0.05  # seconds between two attempts to reach rank 0
_CONNECT_TIMEOUT = 5.0
_HELLO_TIMEOUT = 5.0  # for a stranger that connects and says nothing
_FIRST_TEXT = 1.0  # seconds at least for a rank that has just come
_MOST_TEXTS = 3  # of other ranks' errors, in one error
ROUND_TIMEOUT = 130.0  # seconds for a text of ranks that have met; they may start processes first


Exchange = Callable[[str], Sequence[str]]
"""Gives this rank's text to all ranks, and returns the texts of all in their order."""


def agreed(rank: int, exchange: Exchange, work: Callable[[], Any]) -> list[Any]:
    """Do this rank's part of something, and return what the parts of all ranks have returned.

    Args:
        rank: of this process.
        exchange: of the engine.
        work: this rank's part; returns what JSON can hold.

    Raises:
        The error of `work`, or on other ranks that of the first of these: another rank's wrong
        argument is a ConfigurationError, and its other exceptions are LaunchError. The text has
        what further ranks said: one error may be the consequence of another.
    """
    own: BaseException | None = None
    try:
        said: dict[str, Any] = {"said": work()}
    except BaseException as error:  # the others wait for this rank's text
        own, said = error, _described(error)
    told = [json.loads(text) for text in exchange(json.dumps(said))]
    texts: dict[str, str] = {}  # each once, of the first rank that has it
    for number, one in enumerate(told):
        if "error" in one:
            texts.setdefault(one["text"], f"rank {number}: {one['text']}")
    if own is not None:
        texts.pop(said["text"], None)
        if isinstance(own, P4ReduceError):
            own.args = ("; ".join([str(own), *list(texts.values())[:_MOST_TEXTS]]), *own.args[1:])
        raise own
    for one in told:
        if "error" in one:
            text = "; ".join(list(texts.values())[:_MOST_TEXTS])
            raise getattr(errors, one["error"], P4ReduceError)(text)
    return [one["said"] for one in told]


def _described(error: BaseException) -> dict[str, Any]:
    if isinstance(error, P4ReduceError):
        return {"error": type(error).__name__, "text": str(error)}
    kind = ConfigurationError if isinstance(error, (TypeError, ValueError)) else LaunchError
    return {"error": kind.__name__, "text": f"{type(error).__name__}: {error}"}


class SocketMeeting:
    """A meeting at a socket of rank 0, which each rank leaves when it has what it needs.

    Args:
        address: "unix:PATH" or "HOST:PORT", where rank 0 listens.
        rank: of this process.
        size: number of ranks.
        timeout: seconds to reach rank 0, and for all to come.
        secret: known to all ranks; "": nothing tells strangers from ranks.
        listener: of rank 0, from `listen`; None: it is made at the address.

    Raises:
        P4ReduceTimeoutError: rank 0 cannot be reached within the timeout.
        ConfigurationError: rank 0 cannot listen there; or the address is none.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        timeout: float,
        secret: str = "",
        listener: socket.socket | None = None,
    ) -> None:
        self._size = size
        deadline = time.monotonic() + timeout
        if rank == 0:
            host = _Rendezvous(listener or listen(address), size, secret, deadline)
            new_thread(host.run, "p4reduce-meet").start()
        self._timeout = timeout
        self._connection = _connected(address, deadline, rank)
        self._lines = self._connection.makefile("rb")
        self._send({"rank": rank, "secret": secret})

    def exchange(self, text: str) -> Sequence[str]:
        """Say a text, and return those of all ranks, as `Exchange`.

        Raises:
            P4ReduceTimeoutError: ranks did not come; names them.
            LaunchError: ranks have ended.
        """
        timeout, self._timeout = self._timeout, ROUND_TIMEOUT
        self._connection.settimeout(timeout + _HELLO_TIMEOUT)  # rank 0 knows better who is missing
        try:
            self._send(text)
            line = self._lines.readline()
        except TimeoutError:
            raise P4ReduceTimeoutError(
                f"rank 0 of {self._size} has not answered within {timeout:g} s",
                missing=[0],
                seconds=timeout,
            ) from None
        except OSError:
            line = b""
        if not line:
            raise LaunchError("rank 0 has ended before the ranks had met")
        told = json.loads(line)
        if "missing" in told:
            raise P4ReduceTimeoutError(told["text"], missing=told["missing"])
        if "text" in told:
            raise LaunchError(told["text"])
        texts: list[str] = told["all"]
        return texts

    def close(self) -> None:
        """Leave. Rank 0's socket closes when all have left."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> SocketMeeting:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def listen(address: str) -> socket.socket:
    """Return a listening socket of rank 0.

    Its host's name may lead to 127.0.1.1 there, so by TCP it listens at all of the host's
    addresses.

    Args:
        address: "unix:PATH", or "HOST:PORT"; TCP port 0: any.

    Raises:
        ConfigurationError: the address is none, or is in use.
    """
    try:
        place = parse_address(address)
        if place is None:
            path = Path(address.removeprefix("unix:"))
            path.unlink(missing_ok=True)  # of a rank 0 that was killed
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            old = os.umask(0o177)
            try:
                server.bind(str(path))
            finally:
                os.umask(old)
            server.listen(4096)
            return server
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(("", place[1]), family=family, backlog=4096)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"rank 0 cannot listen at {address}: {why}") from None


def open_meeting(hosts: Sequence[str]) -> tuple[socket.socket, str]:
    """Return a listening socket of rank 0, at any free port, and its address.

    Args:
        hosts: names of all ranks' hosts, this one's first.

    Raises:
        ConfigurationError: as `address_towards`, or this host cannot listen at its address.
    """
    address = address_towards(hosts, hosts[0]) or "127.0.0.1"
    listener = listen(format_host_port(address, 0))
    return listener, format_host_port(address, listener.getsockname()[1])


def _connected(address: str, deadline: float, rank: int) -> socket.socket:
    place = parse_address(address)

    def connect(left: float) -> socket.socket:
        if place is not None:
            return socket.create_connection(place, _CONNECT_TIMEOUT)
        return connect_unix(address.removeprefix("unix:"))

    try:
        return retry(connect, OSError, deadline - time.monotonic(), _PAUSE)
    except OSError as error:
        raise P4ReduceTimeoutError(
            f"rank {rank} does not reach rank 0 at {address}: {error.strerror or error}",
            missing=[0],
        ) from None


def connect_unix(path: str) -> socket.socket:
    """Return a connection to a Unix socket. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


class _Rendezvous:
    """Rank 0's end: passes on what all say, round after round, until they leave."""

    def __init__(self, server: socket.socket, size: int, secret: str, deadline: float) -> None:
        self._server = server
        self._size = size
        self._secret = secret
        self._deadline = deadline
        self._ranks: dict[int, Any] = {}  # rank: its lines
        self._sockets: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Serve. The listening socket closes when all ranks are there."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._close)
            if self._server.family == socket.AF_UNIX:
                closing.callback(Path(self._server.getsockname()).unlink, missing_ok=True)
            with self._server:
                missing = self._receive_all()
            deadline = max(self._deadline, time.monotonic() + _FIRST_TEXT)
            while not missing:
                said, missing = self._hear(deadline)
                if missing:
                    break
                if not all(said.values()):
                    gone = [rank for rank, line in said.items() if not line]
                    if len(gone) < self._size:
                        who = ", ".join(map(str, gone))
                        self._tell({"text": f"rank {who} has ended before the network was there"})
                    return
                self._tell({"all": [json.loads(said[rank]) for rank in range(self._size)]})
                self._wait_for_one()
                deadline = time.monotonic() + ROUND_TIMEOUT
            those = ", ".join(map(str, missing))
            text = f"{len(missing)} of {self._size} ranks did not come: {those}"
            self._tell({"missing": missing, "text": text})

    def _hear(self, deadline: float) -> tuple[dict[int, bytes], list[int]]:
        """Return what each rank says next, b"" if it has ended, and those that say nothing."""
        said, silent = dict[int, bytes](), list[int]()
        for rank, lines in self._ranks.items():
            self._sockets[rank].settimeout(max(deadline - time.monotonic(), _PAUSE))
            try:
                said[rank] = lines.readline()
            except TimeoutError:
                silent.append(rank)
            except OSError:
                said[rank] = b""
        return said, silent

    def _wait_for_one(self) -> None:
        """Return when a rank says something, or ends; they may do anything before that."""
        with selectors.DefaultSelector() as selector:
            for connection in self._sockets.values():
                selector.register(connection, selectors.EVENT_READ)
            selector.select()

    def _close(self) -> None:
        for connection in self._sockets.values():
            connection.close()

    def _receive_all(self) -> list[int]:
        """Return the ranks that did not come in time."""
        while len(self._ranks) < self._size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            self._server.settimeout(left)
            with contextlib.suppress(OSError, ValueError):
                self._receive(self._server.accept()[0])
        return [rank for rank in range(self._size) if rank not in self._ranks]

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_TIMEOUT)
        lines = connection.makefile("rb")
        hello = json.loads(lines.readline(4096))
        right = isinstance(hello, dict) and hmac.compare_digest(
            str(hello.get("secret")).encode(), self._secret.encode()
        )
        rank = hello.get("rank") if right else None
        if type(rank) is not int or not 0 <= rank < self._size or rank in self._ranks:
            connection.close()
            return
        self._ranks[rank], self._sockets[rank] = lines, connection

    def _tell(self, message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        for connection in self._sockets.values():
            with contextlib.suppress(OSError):
                connection.settimeout(ROUND_TIMEOUT)
                connection.sendall(line)
