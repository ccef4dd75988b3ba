# SPDX-License-Identifier: Apache-2.0
"""The data plane: one thread with a loop in C, and the requests of other threads to it.

A compiled pipeline runs without Python. A Python pipeline gets the frames of the same loop and
ports, a batch per call. So a switch can load either kind, one after the other, and keeps its ports.
Python runs only for requests, packet-ins, timers and rare events.

Only the data plane's thread touches ports, pipeline and tables; other threads use `run`. So the
packet path has no locks, and each change happens between two packets.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from p4reduce_common.threads import new_thread
from p4reduce_native.library import runtime
from p4reduce_native.loop import Loop, Reason

from p4reduce_switch.errors import exhausted, invalid, too_early
from p4reduce_switch.ports.place import PortOptions, PortSpec
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Poller, SwitchPort
from p4reduce_switch.ports.port_warnings import PortWarnings
from p4reduce_switch.rate_limited_log import RateLimitedLog
from p4reduce_switch.requests import Requests, result_of
from p4reduce_switch.state.timers import Timers

if TYPE_CHECKING:
    from p4reduce_switch.pipeline import Pipeline
    from p4reduce_switch.state.queues import EgressQueues

log = logging.getLogger(__name__)

_T = TypeVar("_T")

PACKET_OUT_QUEUE = 1024  # packet-outs that wait to be injected; more are refused
_RUN_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 2.0
FLUSH_INTERVAL_S = 1.0  # of captures
_LOG_INTERVAL_S = 5.0  # between reports of failing packets


@dataclass(slots=True)
class DataPlaneStats:
    """Counts of frames in the data plane itself. `PortStats` has those of ports."""

    no_pipeline: int = 0  # came in before a pipeline was set
    no_such_port: int = 0  # left by a port that does not exist
    failed: int = 0  # the pipeline's code raised an exception
    packet_outs: int = 0
    packet_ins: int = 0
    packet_ins_dropped: int = 0  # no primary controller, it does not read, or too many at once

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class DataPlane:
    """A thread that runs packets through a pipeline.

    Args:
        ports: opened ports; `stop` closes them.
        cpu_port: the port of packet-ins and packet-outs, or None.

    Raises:
        NativeUnavailableError: machine code is not available.
    """

    def __init__(self, ports: Sequence[SwitchPort], *, cpu_port: int | None = None) -> None:
        self.cpu_port = cpu_port
        self.ports: Mapping[int, SwitchPort] = {port.number: port for port in ports}
        self.stats = DataPlaneStats()
        self._pipeline: Pipeline | None = None
        self._timers = Timers()  # those of the pipeline, once there is one
        self._queues: EgressQueues | None = None  # those of a program that is interpreted
        self._packet_in: Callable[[bytes], bool] = _no_controller
        self._requests = Requests()
        self._packet_outs: deque[bytes] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = Loop(self._wake_fd, cpu_port)
        self._poller = Poller(self._loop)
        self._duties = {  # done in this order
            int(Reason.EVENTS): self._poll_events,
            int(Reason.DESCRIPTOR): self._serve_descriptors,
            int(Reason.PROGRAM): self._serve_events,
            int(Reason.PACKET_IN): self._take_packet_ins,
            int(Reason.WOKEN): self._on_wake,
            int(Reason.ERROR): self._report_error,
        }
        self._left = 0  # of these reasons, those that the loop has reported and nobody handled yet
        self._running = False
        self._closed = False
        self._stop_requested = False
        self._thread = new_thread(self._serve, "dataplane")
        self._failures = RateLimitedLog(log, _LOG_INTERVAL_S)
        self._port_warnings = PortWarnings(ports)

    # -- From any thread ---------------------------------------------------------------------------

    def on_packet_in(self, sink: Callable[[bytes], bool]) -> None:
        """Set the function for frames that leave by the CPU port. It must not block. False: not
        taken."""
        self._packet_in = sink

    def start(self) -> None:
        for port in self.ports.values():
            port.join(self._loop, self._poller)
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the batches in hand, and close the ports. Idempotent."""
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
        self._loop.close()
        os.close(self._wake_fd)

    def run(self, action: Callable[[], _T], timeout: float = _RUN_TIMEOUT_S) -> _T:
        """Call `action` in the data plane's thread, between two packets; return what it returns.

        Before `start` and after `stop` this thread calls it. Exceptions of `action` are raised
        here.

        Raises:
            P4RuntimeError: UNAVAILABLE, the data plane did not call it within `timeout` seconds.
        """
        if not self._running or threading.current_thread() is self._thread:
            return action()
        future = self._requests.ask(action)
        self._wake()
        return result_of(future, timeout)

    def install(self, pipeline: Pipeline) -> None:
        """Send packets through `pipeline` from now on. Call it by `run` only."""
        self._pipeline = pipeline
        self._timers = pipeline.timers
        self._queues = pipeline.queues
        if self._queues is not None:
            self._queues.ready = self._loop.has_room
        if self._closed:
            return
        for port in self.ports.values():
            port.limit_backlog(pipeline.has_queues)
        if pipeline.native is not None:
            self._loop.set_program(pipeline.native)
        else:
            self._loop.set_handler(self._run_in_python)

    def inject(self, frame: bytes) -> None:
        """Let a frame enter at the CPU port soon.

        Raises:
            P4RuntimeError: there is no CPU port, the frame is too long, or too many frames wait.
        """
        if self.cpu_port is None:
            raise too_early("the switch was started without a CPU port")
        if len(frame) > MAX_FRAME_BYTES:
            raise invalid(
                f"the packet-out takes {len(frame)} bytes with its header; "
                f"at most {MAX_FRAME_BYTES} are allowed"
            )
        if len(self._packet_outs) >= PACKET_OUT_QUEUE:
            raise exhausted(f"{PACKET_OUT_QUEUE} packet-outs wait already; send more slowly")
        self._packet_outs.append(frame)
        self._wake()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return all present counts: "switch", "port N" of each port, and "pipeline" if there is
        one."""
        return self.run(self._counts)

    # -- In the data plane's thread ----------------------------------------------------------------

    def _serve(self) -> None:
        next_flush = time.monotonic() + FLUSH_INTERVAL_S
        while not self._stop_requested:
            try:
                quiet = not self._iteration(self._wait_s())
                self._timers.run_due()
                if self._queues is not None:
                    self._send(self._queues.release())
                if quiet or time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + FLUSH_INTERVAL_S
                    self._flush()
                    self._port_warnings.look(time.monotonic())
            except Exception:  # noqa: PERF203 - once an iteration
                self._failures.exception("the data plane failed")
        self._requests.serve()

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do one piece of work. What goes wrong in it must not stop the others."""
        try:
            work()
        except Exception:
            self._failures.exception("the data plane failed")

    def _wait_s(self) -> float:
        """Seconds until there is something to do without anybody asking."""
        if self._left:
            return 0.0
        wait = self._timers.wait_s(FLUSH_INTERVAL_S)
        due = None if self._queues is None else self._queues.next_ns()
        return wait if due is None else max(0.0, min(wait, (due - self._timers.clock()) / 1e9))

    def _iteration(self, timeout_s: float) -> bool:
        """Serve ports and requests, waiting at most so long; whether there was anything."""
        # Reason.ROOM has no handler: queues in Python are asked after every iteration.
        reasons = self._loop.run(time.monotonic_ns() + int(timeout_s * 1e9))
        self._note(reasons)
        for reason, duty in self._duties.items():
            if self._left & reason:
                self._left &= ~reason
                self._guarded(duty)
        return reasons != Reason.DEADLINE

    def _note(self, reasons: Reason) -> None:
        """Keep reasons until they are handled: the loop reports each once, whatever fails."""
        self._left |= int(reasons) & sum(self._duties)

    def _on_wake(self) -> None:
        self._requests.serve()
        if self._packet_outs and self.cpu_port is not None:
            frames = [self._packet_outs.popleft() for _ in range(len(self._packet_outs))]
            self.stats.packet_outs += len(frames)
            for frame in frames:
                self._loop.inject(self.cpu_port, frame)
            self._note(self._loop.flush())

    def _poll_events(self) -> None:
        for port in self.ports.values():
            self._guarded(port.poll_events)

    def _serve_descriptors(self) -> None:
        for handle in self._poller.ready():
            self._guarded(handle)

    def _serve_events(self) -> None:
        if self._pipeline is not None:
            self._pipeline.serve_events()

    def _take_packet_ins(self) -> None:
        for frame in self._loop.packet_ins():
            self._guarded(partial(self._hand_over, frame))

    def _hand_over(self, frame: bytes) -> None:
        self.stats.packet_ins_dropped += 1  # until it is taken
        if self._packet_in(frame):
            self.stats.packet_ins_dropped -= 1
            self.stats.packet_ins += 1

    def _report_error(self) -> None:
        raise self._loop.error

    def _send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        for egress_port, frame in frames:
            self._loop.emit(egress_port, frame)
        if frames:
            self._note(self._loop.flush())

    def _run_in_python(self, port_number: int, frames: list[bytes]) -> None:
        assert self._pipeline is not None
        process, emit = self._pipeline.process, self._loop.emit
        for frame in frames:
            try:
                for egress_port, out in process(port_number, frame):
                    emit(egress_port, out)
            except Exception:  # noqa: PERF203 - the next frame must not suffer
                self.stats.failed += 1
                self._failures.exception(
                    "a frame of %d bytes from port %d failed", len(frame), port_number
                )

    def _flush(self) -> None:
        self._loop.flush_captures()
        for port in self.ports.values():
            self._guarded(port.flush)

    def _counts(self) -> dict[str, dict[str, int]]:
        in_loop = self._loop.counts
        self.stats.no_pipeline = in_loop["no_pipeline"]
        self.stats.no_such_port = in_loop["no_such_port"]
        counts = {"switch": self.stats.as_dict()}
        counts["switch"]["packet_ins_dropped"] += in_loop["packet_ins_lost"]
        for number, port in self.ports.items():
            port.poll_stats()
            counts[f"port {number}"] = port.stats.as_dict()
        if self._pipeline is not None:
            counts["pipeline"] = self._pipeline.stats.as_dict()
        return counts

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)


def open_data_plane(
    specs: Sequence[PortSpec], options: PortOptions | None = None, *, cpu_port: int | None = None
) -> DataPlane:
    """Open ports, and make a data plane of them.

    Raises:
        NativeUnavailableError: there is no machine code here; no port was opened.
        PortError: a port cannot be opened; the others are closed again.
    """
    runtime()
    options = options or PortOptions()
    with ExitStack() as undo:
        ports: list[SwitchPort] = []
        for spec in specs:
            ports.append(spec.place.open(spec, options))
            undo.callback(ports[-1].close)
        undo.pop_all()
    return DataPlane(ports, cpu_port=cpu_port)


def _no_controller(frame: bytes) -> bool:
    return False
