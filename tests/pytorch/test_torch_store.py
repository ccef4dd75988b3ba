# SPDX-License-Identifier: Apache-2.0
"""A store of torch that does not answer any more, though its connections stay open."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

import torch.distributed as dist
from needed import DEADLINE
from p4reduce.torch import delegate, store
from p4reduce.torch.delegate import GlooDelegate
from p4reduce.torch.meeting import exchange_by
from p4reduce.torch.presence import arrive, meet

SILENT = (
    r"torch's store at 127\.0\.0\.1:\d+ has not answered for \d+ s: rank 0, or torchrun on its host"
)


class Relay:
    """A way to a store of this process, which swallows all bytes once it is `silent`.

    Attributes:
        port: of 127.0.0.1.
        silent: set to make it so.
    """

    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.silent = threading.Event()
        self._sockets = [self._listener]
        self._thread(self._accept)

    def _thread(self, run: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=run, args=args, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._store.port))
                self._sockets += [client, server]
                self._thread(self._forward, client, server)
                self._thread(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if not self.silent.is_set():
                    target.sendall(data)

    def close(self) -> None:
        """Break all connections, so that nobody waits for an answer any more."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.close()


@pytest.fixture
def client(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(store, "LEAST", 0.3)
    monkeypatch.setattr(delegate, "STORE_MARGIN", 0.3)
    within = timedelta(seconds=1)
    return dist.TCPStore("127.0.0.1", relay.port, timeout=within, wait_for_workers=False)


def failure_of(call: Callable[[], object]) -> BaseException | None:
    """What a call raises, which may hang without end."""
    ended: Future[object] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return ended.exception(DEADLINE)


CALLS: dict[str, Callable[[Any, Callable[[], None]], object]] = {
    "a rank arrives": lambda client, silence: (silence(), arrive(client, 1, 0.0)),
    "a rank waits for others": lambda client, silence: meet(client, 1, 2, "", 0.3, silence),
    "a rank says a text": lambda client, silence: (
        silence(),
        exchange_by(client, 1, 2, 0.3)("text"),
    ),
    "Gloo connects": lambda client, silence: (
        silence(),
        GlooDelegate(client, 1, 2, timedelta(seconds=0.3), "127.0.0.1"),
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_store_that_falls_silent_is_named(what: str, relay: Relay, client: Any) -> None:
    error = failure_of(lambda: CALLS[what](client, relay.silent.set))
    assert isinstance(error, dist.DistNetworkError)
    assert re.search(SILENT, str(error))


def test_a_store_that_accepts_connections_and_no_more_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "LEAST", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = failure_of(lambda: store.connected("127.0.0.1", port, 0.3))
        assert isinstance(error, dist.DistNetworkError)
        assert re.search(SILENT, str(error))
        store.break_off()


class LostError(Exception):
    """A rank is lost."""


def test_news_of_a_lost_rank_end_a_question_without_an_answer(relay: Relay, client: Any) -> None:
    relay.silent.set()

    def check() -> None:
        raise LostError

    assert isinstance(failure_of(lambda: meet(client, 1, 2, "", 3600.0, check)), LostError)


def test_who_does_not_answer_is_in_the_log_while_a_rank_waits(
    relay: Relay, client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FIRST_WARNING", 0.0)
    relay.silent.set()
    failure_of(lambda: arrive(client, 1, 0.0))
    assert re.search(rf"still waiting: {SILENT}", caplog.text)


def test_a_store_that_is_gone_is_not_waited_for(relay: Relay, client: Any) -> None:
    relay.close()
    error = failure_of(lambda: meet(client, 1, 2, "", 3600.0))
    assert isinstance(error, dist.DistNetworkError)
    assert "torch's store is gone: rank 0 has ended" in str(error)


@pytest.mark.parametrize("kind", [TimeoutError, RuntimeError, KeyError])
def test_a_question_fails_with_its_own_error(kind: type[Exception]) -> None:
    def question(_: object) -> None:
        raise kind("why")

    with pytest.raises(kind, match="why"):
        store.in_time(dist.HashStore(), question, DEADLINE)


def test_no_question_is_left_when_the_interpreter_ends(relay: Relay, client: Any) -> None:
    before = set(threading.enumerate())
    relay.silent.set()
    failure_of(lambda: arrive(client, 1, 0.0))
    left = set(threading.enumerate()) - before
    assert "p4reduce-store" in {thread.name for thread in left}
    ours, theirs = socket.socketpair()  # whose peers have no name
    with ours, theirs:
        store.break_off()
        ours.send(b"still open")
        assert theirs.recv(16) == b"still open"
    assert not any(thread.name == "p4reduce-store" and thread.is_alive() for thread in left)
