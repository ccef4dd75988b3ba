# SPDX-License-Identifier: Apache-2.0
"""The thread that makes progress over one way to the switch, for all jobs that go by it.

A rank of each of several jobs may go by the same port: a communicator and its children, or those
of several calls of `init`. Each job has an engine of its own; the port has the one transport and
the one thread that runs all of them. What comes in is told apart by job and rank, which each
answer carries.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from p4reduce.errors import ClosedError, P4ReduceError, SwitchUnreachableError
from p4reduce.protocol.native_turn import LinkLock, NativeTurn
from p4reduce.transport.base import RECEIVE_BATCH, Indices, Transport
from p4reduce.transport.registry import port_type
from p4reduce.wire.answers import JOB, KIND_FLAGS_RANK
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer

log = logging.getLogger(__name__)

_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_OVERSLEPT = 1.0  # seconds longer than asked for: the process was stopped, or starved
REPRIEVE = 4.0  # seconds for the lease's thread to hear what has happened meanwhile
_END_TIMEOUT = 5.0
_QUIET = 1.0  # seconds without a collective, after which the thread listens at the link itself


class PortClient(Protocol):
    """A job's engine, as the port's thread sees it. All calls are made by that thread."""

    @property
    def key(self) -> int:
        """See `SlotMachine.key`."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""

    @property
    def turn(self) -> NativeTurn | None:
        """What C runs its loop by; None: it cannot."""

    def take_events(self) -> None:
        """Take notice of what callers have left to this thread."""

    @property
    def due(self) -> float:
        """When the first of its timers runs out."""

    @property
    def backlogged(self) -> bool:
        """Whether frames wait for room in the transport."""

    def begin_turn(self) -> bool:
        """Do what was asked for. False: it is to end."""

    def give_backlog(self) -> None:
        """Let C send what waits for room in the transport."""

    def take_turn(self, why: int) -> None:
        """Take notice of what C has done, and why it is back: see `NativeTurn.run`."""

    def send(self) -> None:
        """Send what can be sent."""

    def receive(self, buffer: FrameBuffer, count: int) -> None:
        """Take frames, the first rows of a buffer."""

    def postpone(self, until: float) -> None:
        """Let nothing come to its deadline before then."""

    def expire(self) -> None:
        """Do what is due."""

    def end(self, error: P4ReduceError) -> Callable[[], None] | None:
        """The thread does nothing more for it. Returns what to call after all have ended."""


class Port:
    """A transport, and the thread that alone uses it.

    It lasts as long as somebody has a share of it, or until the transport breaks.

    Attributes:
        transport: to the switch.
        error: what broke it, or None.
        cpu_seconds: that the thread has computed for.
        lock: of the link, where callers may run collectives themselves.

    Args:
        transport: from now on for the thread alone.
        name: of the thread.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self.transport = transport
        self.error: P4ReduceError | None = None
        self.cpu_seconds = 0.0
        self.lock = LinkLock.of(transport)
        self._lock = threading.Lock()
        self._shares = 0
        self._over = False
        self._requests: deque[Callable[[], None]] = deque()
        self._clients: list[PortClient] = []
        self._inbox: FrameBuffer | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def share(self) -> PortShare | None:
        """Return a share; None: it is at its end, so open another one."""
        with self._lock:
            if self._over or self.error is not None:
                return None
            self._shares += 1
            if self._shares == 1:
                self._thread.start()
            return PortShare(self)

    def release(self) -> None:
        """A share is gone; with the last one the transport is closed."""
        with self._lock:
            self._shares -= 1
            last = self._shares == 0 and not self._over
            if last:
                self._over = True
                self.transport.wake()
        if last:
            self.join(_END_TIMEOUT)

    @property
    def in_thread(self) -> bool:
        """Whether it is the port's thread that asks."""
        return threading.current_thread() is self._thread

    @property
    def asked(self) -> bool:
        """Whether the thread has been asked for something that it has not done."""
        return bool(self._requests)

    @property
    def over(self) -> bool:
        """Whether the thread has ended, or is about to."""
        return self._over

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        if not self.in_thread:
            self._thread.join(timeout)

    def add_client(self, client: PortClient) -> None:
        """Run an engine from now on; its share keeps the port open."""
        with self._lock:
            if not self._over:
                self._requests.append(lambda: self._clients.append(client))
                self.transport.wake()
                return
        error = self.error or ClosedError("the way to the switch was closed")
        threading.Thread(target=_end_all, args=([client], error), daemon=True).start()

    def post(self, work: Callable[[], None]) -> None:
        """Let the thread do something soon."""
        with self._lock:
            if not self._over:
                self._requests.append(work)
                self.transport.wake()

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: P4ReduceError = ClosedError("the communicator was closed")
        try:
            while not self._over:
                self._turn()
        except P4ReduceError as problem:
            error = self.error = problem
        except BaseException as problem:
            error = self.error = P4ReduceError(f"the progress thread failed: {problem!r}")
            error.__cause__ = problem
            raise
        finally:
            with self._lock:
                self._over = True
            while self._requests:
                with contextlib.suppress(SwitchUnreachableError):
                    self._requests.popleft()()  # engines about to be added end too
            _end_all(self._clients, error)
            # Whoever still holds a share finds it broken: another connection may be made now.
            self.transport.close()

    def _turn(self) -> None:
        for client in list(self._clients):
            self._guarded(client, client.take_events)
        while self._requests:
            self._requests.popleft()()
        for client in list(self._clients):
            if not self._guarded(client, client.begin_turn):
                self._drop(client, ClosedError("the communicator was closed"))
        clients = self._clients
        busy = [client for client in clients if not client.idle]
        # Whoever has nothing to do is asked for something by what wakes C. Beside several others it
        # gets its late frames all the same; one that runs alone does without the search.
        running = list(clients) if len(busy) > 1 else busy or clients[:1]
        if not self._turn_in_c(running) and not self._over:
            self._turn_in_python()
        self.cpu_seconds = time.thread_time()

    def _turn_in_c(self, clients: Sequence[PortClient]) -> bool:
        """One turn of C for these jobs. False: it cannot run all of them."""
        turns = [turn for client in clients if (turn := client.turn) is not None]
        if not turns or len(turns) < len(clients):
            return False
        self._each(clients, lambda client: client.give_backlog())
        why = turns[0].run(turns[1:], _QUIET)
        self._each(clients, lambda client: client.take_turn(why))
        return True

    def _turn_in_python(self) -> None:
        """One turn where C cannot: on sockets and faulty transports, and with a reference job."""
        clients, transport = self._clients, self.transport
        self._each(clients, lambda client: client.send())
        now = time.monotonic()
        until = min([_LONGEST_WAIT, *(client.due - now for client in clients)])
        transport.wait(until, writable=any(client.backlogged for client in clients))
        if (late := time.monotonic()) - now > max(until, 0.0) + _OVERSLEPT:
            # A stopped process has not waited: before it says that the others are missing, it
            # has to hear whether it is missed itself.
            self._each(clients, lambda client: client.postpone(late + REPRIEVE))
        # What has come counts before timers do: after a pause of this thread, answers lie in
        # the queue.
        while count := transport.receive():
            self._hand_out(transport.received, count)
            self._each(clients, lambda client: client.send())
            if count < len(transport.received):
                break
        self._each(clients, lambda client: client.expire())

    def _each(self, clients: Sequence[PortClient], work: Callable[[PortClient], None]) -> None:
        for client in list(clients):
            self._guarded(client, lambda: work(client))  # noqa: B023  # called at once

    def _guarded(self, client: PortClient, work: Callable[[], bool | None]) -> bool:
        """Do one engine's work. What goes wrong in it ends that one only, unless it is the way."""
        try:
            return work() is not False
        except SwitchUnreachableError:
            raise
        except Exception as problem:
            log.exception("the progress thread failed")
            error = P4ReduceError(f"the progress thread failed: {problem!r}")
            error.__cause__ = problem
            self._drop(client, error)
            return True

    def _drop(self, client: PortClient, error: P4ReduceError) -> None:
        self._clients.remove(client)
        _end_all([client], error)

    # -- Several jobs' frames --------------------------------------------------------------------

    def _hand_out(self, buffer: FrameBuffer, count: int) -> None:
        """Give each engine its frames; those of nobody go to the first one, to be counted."""
        clients = self._clients
        if len(clients) > 1:
            keys = _keys(buffer, count)
            owners = [client for client in clients if np.count_nonzero(keys == client.key)]
            if owners:
                count = self._sift(buffer, count, owners[0])
                clients = owners
        if count and clients:
            first = clients[0]
            self._guarded(first, lambda: first.receive(buffer, count))

    def _sift(self, buffer: FrameBuffer, count: int, client: PortClient) -> int:
        """Leave in a buffer what is one engine's, or nobody's; give the others theirs."""
        keys = _keys(buffer, count)
        kept = np.ones(count, np.bool_)
        for other in list(self._clients):
            if other is client or not np.count_nonzero(mine := keys == other.key):
                continue
            kept &= ~mine
            if self._inbox is None:
                self._inbox = FrameBuffer(RECEIVE_BATCH)
            some = _move(buffer, np.flatnonzero(mine), self._inbox)
            inbox = self._inbox
            self._guarded(other, lambda: other.receive(inbox, some))  # noqa: B023  # at once
        if kept.all():
            return count
        return _move(buffer, np.flatnonzero(kept), buffer)


class PortShare:
    """One job's part of a port, in a transport's shape: for joining, and for an engine.

    It says who the transport is, and sends and hears by the port's thread.

    Attributes:
        port: whose share it is.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self._closed = False

    @property
    def description(self) -> str:
        return self.port.transport.description

    @property
    def endpoint(self) -> Endpoint | None:
        return self.port.transport.endpoint

    @property
    def received(self) -> FrameBuffer:
        return self.port.transport.received

    @property
    def dropped(self) -> int:
        return self.port.transport.dropped

    @property
    def lossless(self) -> bool:
        return self.port.transport.lossless

    def receive(self) -> int:
        """Return 0: what comes goes to the engines. Raises what broke the transport."""
        if self.port.error is not None:
            raise SwitchUnreachableError(str(self.port.error))
        return 0

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        """Let the port's thread send; the buffer must stay as it is."""
        transport = self.port.transport
        self.port.post(lambda: _send_some(transport, buffer, rows))
        return len(rows)

    def wait(self, timeout: float, *, writable: bool = False) -> None:
        """Wait: what comes is heard by nobody here."""
        time.sleep(timeout)

    def wake(self) -> None:
        self.port.transport.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.port.release()


class Ports:
    """The ports that jobs of this process have in common, by name.

    A port of the embedded switch that is a Unix socket, or of UDP, takes one connection. Of an
    interface there may be any number of packet sockets, each with a filter for its own UDP port in
    the kernel, so each job has one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._ports: dict[str, Port] = {}

    def connect(self, name: str, rank: int, open_it: Callable[[], Transport]) -> Transport:
        """Return a way to the switch.

        Args:
            name: of the port or interface.
            rank: whose it is at first, for the thread's name.
            open_it: opens a transport where there is none to share.

        Raises:
            SwitchUnreachableError, ConfigurationError: as `open_it`.
        """
        if not port_type(name)[0].one_connection:
            return open_it()
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            port = self._ports.get(name)
            share = None if port is None else port.share()
            if share is None:
                if port is not None:
                    port.join(_END_TIMEOUT)  # it may be about to close its connection
                self._ports[name] = port = Port(open_it(), f"p4reduce-{rank}")
                share = port.share()
                assert share is not None
            return share

    def named(self, name: str) -> Port | None:
        """Return the port with that name, which jobs share or have shared; None: there is none."""
        return self._ports.get(name)


def _end_all(clients: Sequence[PortClient], error: P4ReduceError) -> None:
    for after in [client.end(error) for client in clients]:
        if after is not None:
            after()


def _keys(buffer: FrameBuffer, count: int) -> Indices:
    """Return for each frame the job and rank that it is for, as `SlotMachine.key` has them."""
    header = buffer.header[:count]
    job = header[:, JOB].astype(np.int64)
    rank = header[:, KIND_FLAGS_RANK].astype(np.int64) & 0xFFFF
    keys: Indices = job << 16 | rank
    return keys


def _move(buffer: FrameBuffer, rows: Indices, into: FrameBuffer) -> int:
    """Copy rows of a buffer into the first rows of another one, or of its own."""
    count = len(rows)
    into.raw[:count] = buffer.raw[rows]
    into.lengths[:count] = buffer.lengths[rows]
    return count


def _send_some(transport: Transport, buffer: FrameBuffer, rows: Indices) -> None:
    transport.send(buffer, rows)  # what finds no room is as if it had been lost


_ports = Ports()


def connect(name: str, rank: int, open_it: Callable[[], Transport]) -> Transport:
    """Return a way to the switch, by a port that this process has already: `Ports.connect`."""
    return _ports.connect(name, rank, open_it)


def named(name: str) -> Port | None:
    """Return a port of this process: `Ports.named`."""
    return _ports.named(name)


def _begin_anew() -> None:
    global _ports
    _ports = Ports()


# A child has its parent's descriptors, but not the threads.
os.register_at_fork(after_in_child=_begin_anew)
