# SPDX-License-Identifier: Apache-2.0
"""A client of the controller, for workers and the CLI, with deadlines and readable errors.

Example:
    ::

        with ControlClient() as controller:
            jobs = controller.call(controller.stub.ListJobs, pb.ListJobsRequest())
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import grpc
from p4reduce_common.grpc_channels import open_channel

from p4reduce.control import control_pb2 as pb
from p4reduce.control import tls
from p4reduce.control.control_pb2_grpc import ControlStub
from p4reduce.control.controller_address import connections_to, default_address
from p4reduce.errors import ConfigurationError
from p4reduce.inherited import close_inherited

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

# The controller marks its own errors with this; those without were made up by gRPC on this side.
ANSWERED = (("p4reduce-answered", "1"),)
_MISSING = "p4reduce-missing"
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Or another client's failures in this process would make this one wait at first.
    ("grpc.use_local_subchannel_pool", 1),
]

_CHANNELS: weakref.WeakKeyDictionary[grpc.Channel, str] = weakref.WeakKeyDictionary()
_INHERITED: list[grpc.Channel] = []
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"


class _User:
    """The process that opened the first channel; 0 for none. A forked child inherits its number."""

    process = 0


def _keep_inherited() -> None:
    """In a forked child, keep the parent's channels for good, without their connections.

    Closing a channel would use it. A thread that the child does not have may have held its locks.
    A connection that stays open here hides from the controller that the parent has ended.
    """
    _INHERITED.extend(_CHANNELS)
    if addresses := frozenset(_CHANNELS.values()):
        close_inherited(list(connections_to(addresses)))
    _CHANNELS.clear()


os.register_at_fork(after_in_child=_keep_inherited)


def _check_process() -> None:
    """Raise ConfigurationError where gRPC would wait for threads that only the parent has."""
    alone = os.environ.get(FORK_SUPPORT, "1").lower() in ("0", "false", "no")
    if alone and _User.process not in (0, os.getpid()):
        raise ConfigurationError(
            f"this process was forked from process {_User.process}, which had called the "
            "controller, so gRPC does not work in it: fork before init, or start the process by "
            'multiprocessing\'s "spawn" or by subprocess'
        )
    _User.process = os.getpid()


def answered(missing: Iterable[int] = ()) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a controller's refusal. `missing` are the ranks that it waited for."""
    ranks = ",".join(map(str, missing))
    return (*ANSWERED, (_MISSING, ranks)) if ranks else ANSWERED


class ControlError(Exception):
    """The controller refused a call. `code` is the kind of refusal; the message says why.

    `missing`: the ranks that did not come in time.
    """

    def __init__(self, code: grpc.StatusCode, message: str, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.missing = missing


class NoAnswerError(ControlError):
    """Nobody answers at the controller's address, or not in time.

    `lasting`: whether waiting cannot help.
    """

    def __init__(self, code: grpc.StatusCode, message: str, *, lasting: bool = False) -> None:
        super().__init__(code, message)
        self.lasting = lasting


class ClientClosedError(ValueError):
    """The connection to the controller was closed on this side."""

    def __init__(self) -> None:
        super().__init__("the connection to the controller is closed")


class ControlClient:
    """A connection to the controller at `address`, by default `default_address()`. Thread-safe.

    Over TCP it uses TLS if there are `files`; by default they come from the environment. Raises
    TlsError if they cannot be used, and ConfigurationError for an address that gRPC cannot take, a
    wrong `P4REDUCE_GRPC_PROXY`, and in a forked child of a process that had one.
    """

    def __init__(self, address: str | None = None, files: tls.TlsFiles | None = None) -> None:
        _check_process()
        self.address = address or default_address()
        # A Unix socket is protected by its directory.
        by_tcp = not self.address.startswith("unix:")
        self._tls = (files or tls.TlsFiles.from_environment()) if by_tcp else None
        credentials = None if self._tls is None else self._tls.channel_credentials()
        try:
            self._channel = open_channel(self.address, credentials, _OPTIONS)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        _CHANNELS[self._channel] = self.address
        self._stub: ControlStub | None = ControlStub(self._channel)
        self._lock = threading.Lock()
        self._users = 1

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def share(self) -> ControlClient:
        """Return this client for one more user, who closes it too. Raises ClientClosedError."""
        with self._lock:
            if not self._users:
                raise ClientClosedError
            self._users += 1
        return self

    def close(self) -> None:
        """Disconnect when all users have called this. Calls in flight then fail."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            last = not self._users
        if last and self._stub is not None:
            self._channel.close()
            # gRPC's threads end with its last channel.
            self._stub = None
            del self._channel

    @property
    def stub(self) -> ControlStub:
        """The controller's methods. Raises ClientClosedError."""
        if (stub := self._stub) is None:
            raise ClientClosedError
        return stub

    def call(
        self,
        method: Callable[..., _Reply],
        request: _Request,
        *,
        timeout: float = 10.0,
        wait: bool = False,
    ) -> _Reply:
        """Call a method of `stub` and return the reply, within `timeout` seconds.

        With `wait`, wait for a controller that has not started yet. Raises ControlError, and
        NoAnswerError if no answer comes, and ClientClosedError.
        """
        try:
            with self.naming_closed():
                return method(request, timeout=timeout, wait_for_ready=wait)
        except grpc.RpcError as error:
            raise self._translated(error, timeout) from None

    @contextlib.contextmanager
    def naming_closed(self) -> Iterator[None]:
        """Raise ClientClosedError for the ValueError by which gRPC says so, and for no other."""
        try:
            yield
        except ValueError:
            if self._users:
                raise
            raise ClientClosedError from None

    def watch(self, job: str = "", recent: int = 0) -> Iterator[pb.Event]:
        """Yield events until the controller stops. Raises ControlError."""
        request = pb.WatchEventsRequest(job=job, recent=recent)
        try:
            yield from self.stub.WatchEvents(request)
        except grpc.RpcError as error:
            raise self._translated(error, 0.0) from None

    def _translated(self, error: grpc.RpcError, timeout: float) -> ControlError:
        code, details = error.code(), error.details() or ""
        metadata: Any = error.trailing_metadata()  # grpc-stubs has its type wrong
        if ANSWERED[0] in (pairs := [(key, value) for key, value in metadata or ()]):
            ranks = dict(pairs).get(_MISSING, "")
            return ControlError(code, details, tuple(map(int, ranks.split(",") if ranks else ())))
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return NoAnswerError(
                code, f"the controller at {self.address} did not answer within {timeout:g} s"
            )
        if code == grpc.StatusCode.UNAVAILABLE:
            # gRPC's own text says the address three times.
            by_tls = tls.diagnose(self.address, self._tls)
            why = by_tls or details.rpartition("error: ")[2]
            return NoAnswerError(
                code,
                f"no controller answers at {self.address} ({why})",
                lasting=bool(by_tls),
            )
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return ControlError(
                code,
                f"the server at {self.address} is not a p4reduce controller, or an older one; is "
                "it a switch's address (--grpc-addr)? Give the one of serve --listen",
            )
        return ControlError(code, f"the controller at {self.address} failed: {code.name} {details}")
