# SPDX-License-Identifier: Apache-2.0
"""The thread that runs all jobs of this process on one transport to the switch.

Several jobs may share a port: a communicator and its children, or several calls of `init`. Each job
has an engine. The port has one transport, and one thread that runs all engines. Each answer carries
job and rank, by which it finds its engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from p4reduce_common.threads import new_thread

from p4reduce.errors import (
    ClosedError,
    ConfigurationError,
    P4ReduceError,
    SwitchUnreachableError,
)
from p4reduce.protocol.native_iteration import LinkLock
from p4reduce.thread_failure import ThreadFailedError
from p4reduce.transport.base import Transport
from p4reduce.transport.registry import port_type
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer

if TYPE_CHECKING:
    from p4reduce.session.engine import Engine

log = logging.getLogger(__name__)

_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_END_TIMEOUT = 5.0
QUIET = 1.0  # seconds without a collective, after which the thread listens at the link itself
QUIET_BY_UDP = 0.1  # the same, where the switch may ask whether this rank is still there


class WorkerPort:
    """A transport, and the only thread that uses it.

    It lasts until its last share is released, or until the transport breaks.

    Attributes:
        transport: to the switch; used by the thread alone from now on.
        engine: the kind of engine of all its jobs, as for `init`.
        error: the error that broke it, or None.
        over: whether the thread has ended, or is about to.
        cpu_seconds: the thread's processor time.
        lock: of the link, if callers may run collectives themselves.
    """

    def __init__(self, transport: Transport, name: str, engine: str) -> None:
        self.transport = transport
        self.engine = engine
        self.error: P4ReduceError | None = None
        self.cpu_seconds = 0.0
        self.lock = LinkLock.of(transport)
        self._lock = threading.Lock()
        self._shares = 0
        self.over = False
        self._requests: deque[Callable[[], object]] = deque()
        self._engines: list[Engine] = []
        self._thread = new_thread(self._run, name)

    @classmethod
    def alone(cls, transport: Transport, rank: int, engine: str = "native") -> PortShare:
        """Return the first share of a new port. The rank is for the thread's name."""
        share = cls(transport, f"p4reduce-{rank}", engine).share()
        assert share is not None
        return share

    def share(self) -> PortShare | None:
        """Return a share; None if the port has ended, so the caller opens another one."""
        with self._lock:
            if self.over or self.error is not None:
                return None
            self._shares += 1
            if self._shares == 1:
                self._thread.start()
            return PortShare(self)

    def release(self) -> None:
        """Release a share. With the last one the transport is closed."""
        with self._lock:
            self._shares -= 1
            last = self._shares == 0 and not self.over
            if last:
                self.over = True
                self.transport.wake()
        if last:
            self.join(_END_TIMEOUT)

    @property
    def in_thread(self) -> bool:
        """Whether the caller is the port's thread."""
        return threading.current_thread() is self._thread

    @property
    def asked(self) -> bool:
        """Whether requests wait for the thread."""
        return bool(self._requests)

    def join(self, timeout: float) -> None:
        """Wait until the thread ends."""
        if not self.in_thread:
            self._thread.join(timeout)

    def add_engine(self, engine: Engine) -> None:
        """Run an engine from now on. Its share keeps the port open."""
        if not self.post(lambda: self._engines.append(engine)):
            error = self.error or ClosedError("the path to the switch was closed")
            new_thread(_end_all, "p4reduce-end", args=([engine], error)).start()

    def post(self, work: Callable[[], object]) -> bool:
        """Let the thread call a function soon. Returns False if it has ended."""
        with self._lock:
            if self.over:
                return False
            self._requests.append(work)
            self.transport.wake()
            return True

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: P4ReduceError = ClosedError("the communicator was closed")
        try:
            while not self.over:
                self._iteration()
        except P4ReduceError as problem:
            # Whoever keeps it must not keep all that this thread has worked on.
            error = self.error = problem.with_traceback(None)
        except BaseException as problem:
            error = self.error = ThreadFailedError.of(
                f"the progress thread failed: {problem!r}", problem
            )
            raise
        finally:
            with self._lock:
                self.over = True
            while self._requests:
                with contextlib.suppress(Exception):
                    self._requests.popleft()()  # engines about to be added end too
            engines, self._engines = self._engines, []
            _end_all(engines, error)
            # Holders of a share find it broken: another connection may be made now.
            self.transport.close()

    def _iteration(self) -> None:
        for engine in list(self._engines):
            self._guarded(engine, engine.take_events)
        run_requests(self._requests)
        for engine in list(self._engines):
            if not self._guarded(engine, engine.begin_iteration):
                self._drop(engine, ClosedError("the communicator was closed"))
        engines = self._engines
        busy = [engine for engine in engines if not engine.machine.idle]
        # Whoever has nothing to do is asked for something by what wakes its turn. Beside several
        # others it gets its late frames all the same; one that runs alone does without the search.
        running = list(engines) if len(busy) > 1 else busy or engines[:1]
        if running:
            iterations = [engine.iteration for engine in running]
            quiet = QUIET if self.transport.lossless else QUIET_BY_UDP
            why = iterations[0].run(iterations[1:], quiet)
            for engine in running:
                self._guarded(engine, lambda: engine.run_iteration(why))  # noqa: B023  # called at once
        elif not self.over:
            self.transport.wait(_LONGEST_WAIT)
            self.transport.receive()  # no peer is left to get it
        self.cpu_seconds = time.thread_time()

    def _guarded(self, engine: Engine, work: Callable[[], bool | None]) -> bool:
        """Do one engine's work. What goes wrong in it ends that one only, unless it is the way."""
        try:
            return work() is not False
        except SwitchUnreachableError:
            raise
        except Exception as problem:
            log.exception("the progress thread failed")
            self._drop(
                engine, ThreadFailedError.of(f"the progress thread failed: {problem!r}", problem)
            )
            return True

    def _drop(self, engine: Engine, error: P4ReduceError) -> None:
        self._engines.remove(engine)
        _end_all([engine], error)


class PortShare:
    """One job's part of a port: for joining, and for an engine."""

    def __init__(self, port: WorkerPort) -> None:
        self.port = port
        self._closed = False

    @property
    def endpoint(self) -> Endpoint | None:
        """The own addresses, as in `Transport`."""
        return self.port.transport.endpoint

    def check(self) -> None:
        """Raise SwitchUnreachableError if the transport broke."""
        if self.port.error is not None:
            raise SwitchUnreachableError(str(self.port.error))

    def send(self, frame: FrameBuffer) -> None:
        """Let the port's thread send a frame. Do not change the buffer.

        A frame without room counts as lost.
        """
        transport = self.port.transport
        self.port.post(lambda: transport.send(frame, np.zeros(1, np.int64)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.port.release()


Connect: TypeAlias = Callable[[int], PortShare]
"""Opens the way to the switch, with a UDP port of one's own, or 0 for any."""


class WorkerPorts:
    """The ports that jobs of this process share, by name.

    A Unix or UDP port of the embedded switch accepts one connection, so jobs share it. An interface
    can have many packet sockets, each with a kernel filter for its own UDP port, so each job has
    one.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all ports."""
        self._lock = threading.Lock()
        # A process may see many networks: what nobody uses any more goes.
        self._opening: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._ports: WeakValueDictionary[str, WorkerPort] = WeakValueDictionary()

    def connect(
        self, name: str, rank: int, engine: str, open_it: Callable[[], Transport]
    ) -> PortShare:
        """Return a share of the port or interface with that name, opened if there is none to share.

        A new thread's name has the rank.

        Raises:
            ConfigurationError: a job with another engine has this port; or as for `open_it`.
            SwitchUnreachableError: as for `open_it`.
        """
        if not port_type(name)[0].one_connection:
            return WorkerPort.alone(open_it(), rank, engine)
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            port = self._ports.get(name)
            share = None if port is None else port.share()
            if share is None:
                if port is not None:
                    port.join(_END_TIMEOUT)  # it may be about to close its connection
                share = WorkerPort.alone(open_it(), rank, engine)
                self._ports[name] = share.port
            if share.port.engine != engine:
                share.close()
                raise ConfigurationError(
                    f"interface {name!r}: a communicator with engine={share.port.engine!r} has "
                    f"this port already; one with engine={engine!r} requires another"
                )
            return share

    def named(self, name: str) -> WorkerPort | None:
        """Return the port with that name that jobs share, or have shared just now, or None."""
        return self._ports.get(name)


def run_requests(requests: deque[Callable[[], object]]) -> None:
    """Do what was asked for. A request that fails stays, for the end, which tells who asked."""
    while requests:
        work = requests.popleft()
        try:
            work()
        except BaseException:
            requests.appendleft(work)
            raise


def _end_all(engines: Sequence[Engine], error: P4ReduceError) -> None:
    afters = []
    for engine in engines:
        try:
            afters.append(engine.end(error))
        except Exception:  # noqa: PERF203 - the others end too
            log.exception("the progress thread failed while it ended a job's engine")
    for after in afters:
        if after is not None:
            after()


PORTS = WorkerPorts()
"""Those of this process."""

# A child has its parent's descriptors, but not the threads.
os.register_at_fork(after_in_child=PORTS.forget)
