# SPDX-License-Identifier: Apache-2.0
"""The data plane in C: Python enters for requests, packet-ins, timers, and what is rare.

A compiled pipeline never comes near Python. One that only runs in Python is handed the frames of
the same loop and the same ports, a batch per call; so a switch may load either kind, one after the
other, and loses no port.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from p4reduce_native.loop import Loop, NativeEntry, Reason

from p4reduce_switch.dataplane_thread import DataPlaneThread
from p4reduce_switch.ports.port import Handler

if TYPE_CHECKING:
    from p4reduce_switch.pipeline import Pipeline
    from p4reduce_switch.ports.native import NativePort

__all__ = ["NativeDataPlane"]


class NativeDataPlane(DataPlaneThread):
    """Runs packets through a pipeline, with ports that are served by C.

    Args:
        ports: opened ports; `stop` closes them.
        cpu_port: the port of packet-ins and packet-outs, or None.

    Raises:
        NativeUnavailableError: there is no compiled library here.
    """

    language = "C"

    def __init__(self, ports: Sequence[NativePort], *, cpu_port: int | None = None) -> None:
        super().__init__(ports, cpu_port=cpu_port)
        self._native_ports = tuple(ports)
        self._loop_in_c = Loop(self._wake_fd, cpu_port)
        self._poller = _LoopPoller(self._loop_in_c)

    def install(self, pipeline: Pipeline) -> None:
        super().install(pipeline)
        if self._closed:
            return
        entry: NativeEntry | None = getattr(pipeline, "native", None)
        if entry is not None:
            self._loop_in_c.set_program(entry)
        else:
            self._loop_in_c.set_handler(self._run_in_python)

    def _attach(self) -> None:
        for port in self._native_ports:
            port.join(self._loop_in_c, self._poller)

    def _release(self) -> None:
        self._loop_in_c.close()

    def _turn(self, timeout_s: float) -> bool:
        # Reason.ROOM has no handler: queues in Python are asked after every turn.
        reasons = self._loop_in_c.run(time.monotonic_ns() + int(timeout_s * 1e9))
        if reasons & Reason.DESCRIPTOR:
            self._poller.handle()
        self._take(reasons)
        if reasons & Reason.WOKEN:
            self._on_wake()
        return reasons != Reason.DEADLINE

    def _process(self, port_number: int, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._loop_in_c.inject(port_number, frame)
        self._take(self._loop_in_c.flush())

    def _take(self, reasons: Reason) -> None:
        """Take in what frames have led to: first what the program says, then whom it sent it to."""
        if reasons & Reason.NEWS:
            for port in self._native_ports:
                port.look_for_news()
        if reasons & Reason.PROGRAM and self._pipeline is not None:
            self._pipeline.serve_events()  # type: ignore[attr-defined]
        if reasons & Reason.PACKET_IN:
            self._punt(list(self._loop_in_c.packet_ins()))

    def _send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        for egress_port, frame in frames:
            self._loop_in_c.emit(egress_port, frame)
        if frames:
            self._take(self._loop_in_c.flush())

    def _has_room(self, port_number: int) -> bool:
        return self._loop_in_c.has_room(port_number)

    def _run_in_python(self, port_number: int, frames: list[bytes]) -> None:
        assert self._pipeline is not None
        process, emit = self._pipeline.process, self._loop_in_c.emit
        for frame in frames:
            try:
                for egress_port, out in process(port_number, frame):
                    emit(egress_port, out)
            except Exception:  # noqa: PERF203 - the next frame must not suffer
                self.stats.failed += 1
                self._report(f"a frame of {len(frame)} bytes from port {port_number}")

    def _flush(self) -> None:
        self._loop_in_c.flush_captures()
        for port in self.ports.values():
            port.flush()

    def _counts(self) -> dict[str, dict[str, int]]:
        counts = super()._counts()
        no_pipeline, no_such_port, lost = self._loop_in_c.counts
        switch = counts["switch"]
        switch["no_pipeline"] = no_pipeline
        switch["no_such_port"] = no_such_port
        switch["packet_ins_dropped"] += lost
        return counts


class _LoopPoller:
    """`ports.Poller` for the descriptors that Python serves: those that listen."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handlers: dict[int, Handler] = {}

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        self._loop.watch(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        self._loop.change(fd, events)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._loop.unwatch(fd)

    def handle(self) -> None:
        """Call the handlers of what is ready."""
        for fd, events in self._loop.ready():
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
