# SPDX-License-Identifier: Apache-2.0
"""Questions to torch's store, which are answered in time or end with an error that says so.

The store's own calls have no deadline. Where its host is down, a rank would wait a quarter of an
hour for the kernel to give up. Where its process is stopped, it would wait for ever.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist
from p4reduce_common.threads import new_thread

from p4reduce.control.controller_address import connections
from p4reduce.torch.threads import at_exit

log = logging.getLogger(__name__)

FIRST_WARNING = 10.0  # seconds; the next ones come after twice the time
LEAST = 5.0  # seconds that a store has for an answer, also after the asker's deadline
_LOOK = 0.25  # seconds between two looks at whether the answer is still wanted
_ENDING = 5.0  # seconds at most for a question to notice that its connection is closed

Check = Callable[[], None]
T = TypeVar("T")


class _Address(NamedTuple):
    """Stands for a store to which there is no connection yet."""

    host: str
    port: int


_unanswered: dict[threading.Thread, Any] = {}  # and the store of each


def connected(host: str, port: int, within: float, **options: Any) -> Any:
    """Return a connection to the store of another process.

    Args:
        host: name or IP address.
        port: of TCP.
        within: seconds, also of what is later asked of the store.
        options: of `TCPStore`, added to these.

    Raises:
        DistNetworkError: nobody is there, or answers in time.
    """

    def connect(_: Any) -> Any:
        timeout = timedelta(seconds=within)
        return dist.TCPStore(host, port, is_master=False, timeout=timeout, **options)

    # It knows by itself that nobody is there, and then says more.
    return in_time(_Address(host, port), connect, within + LEAST)


def ask(store: Any, question: Callable[[Any], T], within: float, check: Check | None = None) -> T:
    """Return the store's answer.

    Args:
        store: of torch.
        question: calls its methods.
        within: seconds; five are given at least.
        check: called repeatedly meanwhile; raises if no answer is needed.

    Raises:
        DistNetworkError: the store is gone, or has not answered in time.
    """

    def named(store: Any) -> T:
        try:
            return question(store)
        except RuntimeError as error:  # whose own words name no rank
            raise dist.DistNetworkError(
                "p4reduce: torch's store is gone: rank 0 has ended, or torchrun, in whose process "
                f"it was. Look for that process's own error, which came before this one: {error}"
            ) from error

    return in_time(store, named, within, check, warn_at=FIRST_WARNING)


def in_time(
    store: Any,
    question: Callable[[Any], T],
    within: float,
    check: Check | None = None,
    *,
    warn_at: float = math.inf,
) -> T:
    """As `ask`, for what may fail otherwise: errors of the question are raised as they are.

    Args:
        store: as for `ask`.
        question: as for `ask`.
        within: as for `ask`.
        check: as for `ask`.
        warn_at: seconds until the log says that the store does not answer.
    """
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(question(store))
        except BaseException as error:
            answer.set_exception(error)
        _unanswered.pop(threading.current_thread(), None)

    thread = new_thread(run, "p4reduce-store")  # where the question stays if nobody answers
    _unanswered[thread] = store
    thread.start()
    start = time.monotonic()
    patience = max(within, LEAST)
    while not wait([answer], _LOOK).done:
        if check is not None:
            check()
        waited = time.monotonic() - start
        if waited >= patience:
            raise dist.DistNetworkError(f"p4reduce: {_silent(store, waited)}")
        if waited >= warn_at:
            log.warning("still waiting: %s", _silent(store, waited))
            warn_at *= 2
    return answer.result()


def _silent(store: Any, seconds: float) -> str:
    tcp = _by_tcp(store)
    where = "" if tcp is None else f" at {tcp.host}:{tcp.port}"
    return (
        f"torch's store{where} has not answered for {seconds:.0f} s: rank 0, or torchrun on its "
        "host, in whose process it is, is stopped, or that host is down"
    )


def _by_tcp(store: Any) -> Any:
    """Return what has host and port, if the store is at some."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, (dist.TCPStore, _Address)) else None


def break_off() -> None:
    """At exit: an answer that came later would find no interpreter, and abort the process."""
    asking = list(_unanswered.items())
    ports = {tcp.port for _, store in asking if (tcp := _by_tcp(store)) is not None}
    for descriptor, peer in connections() if ports else ():
        if isinstance(peer, tuple) and peer[1] in ports:
            connection = socket.socket(fileno=descriptor)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.detach()  # the store closes it
    for thread, _ in asking:
        thread.join(_ENDING)


at_exit(break_off)
