# SPDX-License-Identifier: Apache-2.0
"""The data plane in Python: takes frames from ports, runs the pipeline, sends the outcome.

Neither ports nor requests starve: a turn of the loop serves one batch of every port that has
frames, and all requests. `native_dataplane` does the same in C.
"""

from __future__ import annotations

import os
import select
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from p4reduce_switch.dataplane_thread import DataPlaneStats, DataPlaneThread
from p4reduce_switch.ports.port import Handler, Port

__all__ = ["DataPlane", "DataPlaneStats"]


class DataPlane(DataPlaneThread):
    """Runs packets through a pipeline, with ports that are served by Python.

    Args:
        ports: opened ports; `stop` closes them.
        cpu_port: the port of packet-ins and packet-outs, or None.
    """

    language = "Python"

    def __init__(self, ports: Sequence[Port], *, cpu_port: int | None = None) -> None:
        super().__init__(ports, cpu_port=cpu_port)
        self._own_ports = {port.number: port for port in ports}
        self._poller = _EpollPoller()

    def _attach(self) -> None:
        self._poller.watch(self._wake_fd, select.EPOLLIN, self._on_wake_fd)
        for port in self._own_ports.values():
            port.attach(self._poller, partial(self._on_frames, port))

    def _release(self) -> None:
        self._poller.close()

    def _turn(self, timeout_s: float) -> bool:
        return self._poller.turn(timeout_s)

    def _has_room(self, port_number: int) -> bool:
        port = self._own_ports.get(port_number)
        return port is None or port.has_room

    def _flush(self) -> None:
        for port in self._own_ports.values():
            port.flush()

    def _on_wake_fd(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)
        self._on_wake()

    def _on_frames(self, port: Port) -> None:
        frames = port.receive()
        if frames:
            self._process(port.number, frames)

    def _process(self, port_number: int, frames: Sequence[bytes]) -> None:
        if self._pipeline is None:
            self.stats.no_pipeline += len(frames)
            return
        process = self._pipeline.process
        outgoing: list[tuple[int, bytes]] = []
        for frame in frames:
            try:
                outgoing += process(port_number, frame)
            except Exception:  # noqa: PERF203 - the next frame must not suffer
                self.stats.failed += 1
                self._report(f"a frame of {len(frame)} bytes from port {port_number}")
        self._send(outgoing)

    def _send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        outgoing: defaultdict[int, list[bytes]] = defaultdict(list)
        for egress_port, frame in frames:
            outgoing[egress_port].append(frame)
        for egress_port, batch in outgoing.items():
            port = self._own_ports.get(egress_port)
            if port is not None:
                port.send(batch)
            elif egress_port == self.cpu_port:
                self._punt(batch)
            else:
                self.stats.no_such_port += len(batch)


class _EpollPoller:
    """`port.Poller` by epoll, level-triggered."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def turn(self, timeout: float) -> bool:
        """Handle what is ready, waiting at most `timeout` seconds; whether anything was."""
        ready = self._epoll.poll(timeout)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:  # else closed by a handler of this turn
                handler(events)
        return bool(ready)

    def close(self) -> None:
        self._epoll.close()
