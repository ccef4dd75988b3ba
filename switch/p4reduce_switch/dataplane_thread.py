# SPDX-License-Identifier: Apache-2.0
"""What both data planes share: one thread, and what others ask of it.

Everything that touches ports, pipeline or tables happens in the data plane's thread; others ask for
it with `run`. So the packet path has no locks, and a change from outside falls between two packets.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from google.rpc import code_pb2

from p4reduce_switch.errors import P4RuntimeError
from p4reduce_switch.ports.complaints import Complaints
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, OpenPort
from p4reduce_switch.state.timers import Timers

if TYPE_CHECKING:
    from p4reduce_switch.pipeline import Pipeline
    from p4reduce_switch.state.queues import EgressQueues

__all__ = ["DataPlaneStats", "DataPlaneThread"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

PACKET_OUT_QUEUE = 1024  # packet-outs that wait to be injected; more are refused
_RUN_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 2.0
_FLUSH_INTERVAL_S = 1.0  # of captures
_LOG_INTERVAL_S = 5.0  # between reports of failing packets


@dataclass(slots=True)
class DataPlaneStats:
    """Counts of what the data plane itself did with frames; those of ports are in `PortStats`."""

    no_pipeline: int = 0  # came in before a pipeline was set
    no_such_port: int = 0  # left by a port that does not exist
    failed: int = 0  # the pipeline's code raised an exception
    packet_outs: int = 0
    packet_ins: int = 0
    packet_ins_dropped: int = 0  # no primary controller, or it does not read

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class DataPlaneThread(ABC):
    """A thread that runs packets through a pipeline.

    Args:
        ports: opened ports; `stop` closes them.
        cpu_port: the port of packet-ins and packet-outs, or None.
    """

    language: ClassVar[str]
    """What the ports are served in."""

    def __init__(self, ports: Sequence[OpenPort], *, cpu_port: int | None = None) -> None:
        self.cpu_port = cpu_port
        self.ports: Mapping[int, OpenPort] = {port.number: port for port in ports}
        self.stats = DataPlaneStats()
        self._pipeline: Pipeline | None = None
        self._timers = Timers()  # those of the pipeline, once there is one
        self._queues: EgressQueues | None = None  # those of a pipeline that runs in Python
        self._packet_in: Callable[[bytes], bool] = _no_controller
        self._requests: deque[_Request[object]] = deque()
        self._packet_outs: deque[bytes] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._running = False
        self._closed = False
        self._stop_requested = False
        self._thread = threading.Thread(target=self._loop, name="dataplane", daemon=True)
        self._next_report = 0.0
        self._unreported = 0
        self._complaints = Complaints(ports)

    # -- From any thread ---------------------------------------------------------------------------

    def on_packet_in(self, sink: Callable[[bytes], bool]) -> None:
        """Set what takes frames that leave by the CPU port; it must not wait. False: not taken."""
        self._packet_in = sink

    def start(self) -> None:
        self._attach()
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the batches under way, and close the ports. Once is enough."""
        if self._closed:
            return
        if self._running:
            self._stop_requested = True
            self._wake()
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.error("the data plane did not stop within %.0f s", _STOP_TIMEOUT_S)
                return
            self._running = False
        self._closed = True
        for port in self.ports.values():
            port.close()
        self._release()
        os.close(self._wake_fd)

    def run(self, action: Callable[[], _T], timeout: float = _RUN_TIMEOUT_S) -> _T:
        """Call `action` in the data plane's thread, between two packets; return what it returns.

        Before `start` and after `stop` it is called right here. What it raises is raised here.

        Raises:
            P4RuntimeError: UNAVAILABLE, the data plane did not get to it within `timeout` seconds.
        """
        if not self._running or threading.current_thread() is self._thread:
            return action()
        request = _Request(action)
        self._requests.append(request)  # type: ignore[arg-type]
        self._wake()
        return request.result(timeout)

    def install(self, pipeline: Pipeline) -> None:
        """Send packets through `pipeline` from now on. Only by `run`."""
        self._pipeline = pipeline
        self._timers = pipeline.timers
        self._queues = pipeline.queues
        if self._queues is not None:
            self._queues.ready = self._has_room
        for port in () if self._closed else self.ports.values():
            port.limit_backlog(pipeline.has_queues)

    def inject(self, frame: bytes) -> None:
        """Take in a frame at the CPU port, soon.

        Raises:
            P4RuntimeError: there is no CPU port, the frame is too long, or too many wait.
        """
        if self.cpu_port is None:
            raise P4RuntimeError(
                code_pb2.FAILED_PRECONDITION, "the switch was started without a CPU port"
            )
        if len(frame) > MAX_FRAME_BYTES:
            raise P4RuntimeError(
                code_pb2.INVALID_ARGUMENT,
                f"the packet-out takes {len(frame)} bytes with its header; "
                f"at most {MAX_FRAME_BYTES} are allowed",
            )
        if len(self._packet_outs) >= PACKET_OUT_QUEUE:
            raise P4RuntimeError(
                code_pb2.RESOURCE_EXHAUSTED,
                f"{PACKET_OUT_QUEUE} packet-outs wait already; send more slowly",
            )
        self._packet_outs.append(frame)
        self._wake()

    def counts(self) -> dict[str, dict[str, int]]:
        """All counts by now: "switch", "port N" of each port, and "pipeline" if there is one."""
        return self.run(self._counts)

    # -- In the data plane's thread ----------------------------------------------------------------

    def _loop(self) -> None:
        next_flush = time.monotonic() + _FLUSH_INTERVAL_S
        while not self._stop_requested:
            try:
                quiet = not self._turn(self._wait_s())
                self._timers.run_due()
                if self._queues is not None:
                    self._send(self._queues.release())
                if quiet or time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + _FLUSH_INTERVAL_S
                    self._flush()
                    self._complaints.look(time.monotonic())
            except Exception:  # noqa: PERF203 - once a turn
                # A port's own failure must not stop the others.
                self._report("the data plane")
        self._serve_requests()

    def _wait_s(self) -> float:
        """Seconds until there is something to do without anybody asking."""
        wait = self._timers.wait_s(_FLUSH_INTERVAL_S)
        due = None if self._queues is None else self._queues.next_ns()
        return wait if due is None else max(0.0, min(wait, (due - self._timers.clock()) / 1e9))

    @abstractmethod
    def _attach(self) -> None:
        """Before the thread starts: watch the ports and `_wake_fd`."""

    @abstractmethod
    def _release(self) -> None:
        """After the thread has ended and the ports are closed."""

    @abstractmethod
    def _turn(self, timeout_s: float) -> bool:
        """Serve ports and `_on_wake`, waiting at most so long; whether there was anything."""

    @abstractmethod
    def _process(self, port_number: int, frames: Sequence[bytes]) -> None:
        """Run frames as if they had come in at a port, and send the outcome."""

    @abstractmethod
    def _send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Send frames, each by a port."""

    @abstractmethod
    def _has_room(self, port_number: int) -> bool:
        """Whether nothing waits for room at a port; also for one that does not exist."""

    @abstractmethod
    def _flush(self) -> None:
        """Write out what ports have buffered (captures)."""

    def _on_wake(self) -> None:
        self._serve_requests()
        if self._packet_outs and self.cpu_port is not None:
            frames = [self._packet_outs.popleft() for _ in range(len(self._packet_outs))]
            self.stats.packet_outs += len(frames)
            self._process(self.cpu_port, frames)

    def _punt(self, frames: Sequence[bytes]) -> None:
        taken = sum(map(self._packet_in, frames))
        self.stats.packet_ins += taken
        self.stats.packet_ins_dropped += len(frames) - taken

    def _serve_requests(self) -> None:
        for _ in range(len(self._requests)):
            self._requests.popleft().carry_out()

    def _report(self, what: str) -> None:
        """Log the exception being handled, but not one a packet."""
        now = time.monotonic()
        if now < self._next_report:
            self._unreported += 1
            return
        more = f" ({self._unreported} more since the last report)" if self._unreported else ""
        log.exception("%s failed%s", what, more)
        self._next_report = now + _LOG_INTERVAL_S
        self._unreported = 0

    def _counts(self) -> dict[str, dict[str, int]]:
        counts = {"switch": self.stats.as_dict()}
        for number, port in self.ports.items():
            port.poll_stats()
            counts[f"port {number}"] = port.stats.as_dict()
        if self._pipeline is not None:
            counts["pipeline"] = self._pipeline.stats.as_dict()
        return counts

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)


class _Request(Generic[_T]):
    """A call to be made in the data plane's thread, and its outcome."""

    def __init__(self, action: Callable[[], _T]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._abandoned = False
        self._value: _T
        self._error: BaseException | None = None

    def carry_out(self) -> None:
        with self._lock:
            if self._abandoned:
                return
            try:
                self._value = self._action()
            except BaseException as error:
                self._error = error
            self._done.set()

    def result(self, timeout: float) -> _T:
        if not self._done.wait(timeout):
            # Whoever waited is told that it failed, so it must not happen later.
            with self._lock:
                self._abandoned = not self._done.is_set()
            if self._abandoned:
                raise P4RuntimeError(
                    code_pb2.UNAVAILABLE, f"the data plane did not answer within {timeout:.0f} s"
                )
        if self._error is not None:
            raise self._error
        return self._value


def _no_controller(frame: bytes) -> bool:
    return False
