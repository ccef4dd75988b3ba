# SPDX-License-Identifier: Apache-2.0
"""The data plane's loop in C (csrc/loop), as Python sees it.

Only the data plane's thread calls it. Only `Loop.run` releases the interpreter lock: the other
calls are shorter than getting it back.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from p4reduce_native.c_header import CHeader, Functions, field_types
from p4reduce_native.cpus import usable_cpus
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import keeping_lock, runtime
from p4reduce_native.link import Link

_EPOLL_CTL_ADD, _EPOLL_CTL_DEL, _EPOLL_CTL_MOD = 1, 2, 3

_HEADER = CHeader("loop/loop.h")
_Frame = _HEADER.structure("p4r_frame")
_PortStats = _HEADER.structure("p4r_port_stats")
_LoopStats = _HEADER.structure("p4r_loop_stats")
_NO_PORT = _HEADER.constants["P4R_NO_PORT"]
_REASONS = _HEADER.enumerations["p4r_loop_reason"]
_EVENTS = _HEADER.enumerations["p4r_port_event"]
_TYPES = _HEADER.enumerations["p4r_port_type"]


class Reason(IntFlag):
    """Why `Loop.run` returned; `enum p4r_loop_reason` of loop.h."""

    WOKEN = _REASONS["P4R_LOOP_WOKEN"]
    DEADLINE = _REASONS["P4R_LOOP_DEADLINE"]
    DESCRIPTOR = _REASONS["P4R_LOOP_DESCRIPTOR"]
    EVENTS = _REASONS["P4R_LOOP_EVENTS"]
    PACKET_IN = _REASONS["P4R_LOOP_PACKET_IN"]
    PROGRAM = _REASONS["P4R_LOOP_PROGRAM"]
    ERROR = _REASONS["P4R_LOOP_ERROR"]
    ROOM = _REASONS["P4R_LOOP_ROOM"]


class PortEvent(IntEnum):
    """An event of a port; `enum p4r_port_event` of port.h."""

    NONE = _EVENTS["P4R_EVENT_NONE"]
    DOWN = _EVENTS["P4R_EVENT_DOWN"]
    ERROR = _EVENTS["P4R_EVENT_ERROR"]
    CONTROL_MESSAGE = _EVENTS["P4R_EVENT_CONTROL_MESSAGE"]


@dataclass(frozen=True)
class NativeEntry:
    """The entry points of a compiled program, as addresses; pipeline_abi.h describes them.

    Attributes:
        process: `p4r_program_process`.
        events: `p4r_program_events`.
        state: the `struct p4r_program`, which must live as long as it is installed.
        release: `p4r_program_release` of a program with egress queues, else None.
    """

    process: int
    events: int
    state: int
    release: int | None = None


FramesHandler = Callable[[int, list[bytes]], None]
"""Called with a port's number and the frames that came in there; must not raise."""

_FRAMES_CALLBACK = _HEADER.callback("p4r_frames_callback")
_FRAME_BYTES = ctypes.sizeof(_Frame)


class PortKind(IntEnum):
    """`enum p4r_port_type` of csrc/loop/port.h.

    UNIX: for connected sockets of type SEQPACKET. PACKET: for a bound packet socket with
    PACKET_AUXDATA. OFFLOAD: for one whose packets may have many frames (`csrc/link/offload.c`).
    UDP: for links over connected UDP sockets.
    """

    UNIX = _TYPES["P4R_UNIX"]
    PACKET = _TYPES["P4R_PACKET"]
    OFFLOAD = _TYPES["P4R_OFFLOAD"]
    UDP = _TYPES["P4R_UDP"]


class LoopPort:
    """A port of a `Loop`, without a descriptor at first. The loop's methods make it."""

    def __init__(self, library: Functions, handle: int) -> None:
        self._library = library
        self._handle: int | None = handle
        self._counts = _PortStats.from_address(library.p4r_port_stats(handle))
        self._last: dict[str, int] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The fields of `struct p4r_port_stats` by name; once closed, those at the end."""
        return self._last if self._last is not None else _values(self._counts)

    @property
    def handle(self) -> int | None:
        return self._handle

    def attach(self, fd: int) -> None:
        """Let frames through `fd`. A Unix peer's is the port's from now on; an interface's stays
        the caller's.

        Raises:
            OSError: it cannot be used; it is the caller's as before.
        """
        _checked(self._library.p4r_port_attach(self._handle, fd))

    def capture_out(self, fd: int) -> None:
        """Write outgoing frames to a file of their own, which the loop closes."""
        if self._library.p4r_port_capture_out(self._handle, fd):
            raise MemoryError("no memory for a capture")

    def attach_link(self, link: Link) -> None:
        """Let frames of a UDP port through a link, which is the port's from now on.

        Raises:
            OSError: it cannot be watched; it is the caller's as before.
        """
        _checked(self._library.p4r_port_attach_link(self._handle, link.pointer))
        link.hand_over()

    @property
    def link(self) -> Link | None:
        """The present peer's link, to look at before the loop runs again; None without a peer."""
        pointer = None
        if self._handle is not None:
            pointer = self._library.p4r_port_link(self._handle)
        return None if pointer is None else Link(pointer)

    def detach(self) -> None:
        """Stop using the descriptor, if there is one. Waiting frames are dropped."""
        if self._handle is not None:
            self._library.p4r_port_detach(self._handle)

    def take_port_event(self) -> tuple[PortEvent, int]:
        """Return the event since the last call, and an errno (0: none)."""
        error = ctypes.c_int()
        return PortEvent(self._library.p4r_port_take_event(self._handle, ctypes.byref(error))), (
            error.value
        )

    def forget(self) -> None:
        """Note that the loop is about to be freed, and this port with it."""
        self._last = self.counts
        self._handle = None


class Loop:
    """The data plane's loop. `close` frees it.

    Args:
        wake_fd: an eventfd; `run` returns when it is written to.
        cpu_port: the number of the port whose frames go to Python, or None.

    Raises:
        NativeUnavailableError: machine code is not available.
    """

    def __init__(self, wake_fd: int, cpu_port: int | None) -> None:
        library = runtime()
        self._library = _HEADER.functions(keeping_lock(library))
        self._run = _HEADER.functions(library).p4r_loop_run
        self._error = ctypes.c_int()
        handle = self._library.p4r_loop_new(
            wake_fd,
            _NO_PORT if cpu_port is None else cpu_port,
            usable_cpus(),
            ctypes.byref(self._error),
        )
        if handle is None:
            raise NativeUnavailableError(f"no native loop: {os.strerror(self._error.value)}")
        self._handle: int | None = handle
        self._ports: list[LoopPort] = []
        self._callback = _FRAMES_CALLBACK(0)  # kept alive while it may be called
        self._last_counts: dict[str, int] | None = None

    def close(self) -> None:
        if self._handle is not None:
            self._last_counts = self.counts
            for port in self._ports:
                port.forget()
            self._library.p4r_loop_free(self._handle)
            self._handle = None

    def add_port(
        self, kind: PortKind, number: int, capture_fd: int = -1, *, max_bytes: int = 0
    ) -> LoopPort:
        """Add a port; the loop closes `capture_fd`.

        Args:
            max_bytes: longer frames are not sent; 0: the switch's own limit.
        """
        handle = self._library.p4r_loop_add_port(self._handle, kind, number, max_bytes, capture_fd)
        if handle is None:
            raise MemoryError(f"no memory for port {number}")
        port = LoopPort(self._library, handle)
        self._ports.append(port)
        return port

    def set_program(self, entry: NativeEntry) -> None:
        """Send frames through a compiled program from now on."""
        self._library.p4r_loop_set_program(
            self._handle, entry.process, entry.events, entry.release, entry.state
        )

    def set_handler(self, handler: FramesHandler) -> None:
        """Give frames to Python from now on. It sends copies with `emit`."""

        def called(port: int, address: int, count: int) -> None:
            string_at, end = ctypes.string_at, address + count * _FRAME_BYTES
            frames = map(_Frame.from_address, range(address, end, _FRAME_BYTES))
            handler(port, [string_at(frame.bytes, frame.length) for frame in frames])

        callback = _FRAMES_CALLBACK(called)
        self._library.p4r_loop_set_callback(self._handle, callback)
        self._callback = callback

    def run(self, deadline_ns: int) -> Reason:
        """Serve ports, without the interpreter lock, until there is something for Python, or until
        `deadline_ns` of CLOCK_MONOTONIC.

        With `Reason.ERROR`, `error` says what is wrong with epoll.
        """
        return Reason(self._run(self._handle, deadline_ns, ctypes.byref(self._error)))

    @property
    def error(self) -> OSError:
        """The error of the last `run`."""
        return OSError(self._error.value, os.strerror(self._error.value))

    def drain(self, port: LoopPort) -> None:
        """If the peer has hung up, receive its last frames and release it."""
        self._library.p4r_loop_drain(self._handle, port.handle)

    def inject(self, port: int, frame: bytes) -> None:
        """Run a frame as if it had arrived at `port`."""
        self._library.p4r_loop_inject(self._handle, port, frame, len(frame))

    def emit(self, port: int, frame: bytes) -> None:
        """Send a frame out of `port`."""
        self._library.p4r_loop_emit(self._handle, port, frame, len(frame))

    def has_room(self, port: int) -> bool:
        """Whether no frame waits for room at a port, even at one that does not exist."""
        return bool(self._library.p4r_loop_has_room(self._handle, port))

    def flush(self) -> Reason:
        """Send what `inject` and `emit` have queued, and return the work for Python. `run` does so
        by itself.
        """
        return Reason(self._library.p4r_loop_flush(self._handle))

    def flush_captures(self) -> None:
        self._library.p4r_loop_flush_captures(self._handle)

    def watch(self, fd: int, events: int) -> None:
        """Let `ready` report when a descriptor of Python is ready."""
        _checked(self._library.p4r_loop_watch(self._handle, _EPOLL_CTL_ADD, fd, events))

    def change(self, fd: int, events: int) -> None:
        _checked(self._library.p4r_loop_watch(self._handle, _EPOLL_CTL_MOD, fd, events))

    def unwatch(self, fd: int) -> None:
        _checked(self._library.p4r_loop_watch(self._handle, _EPOLL_CTL_DEL, fd, 0))

    def ready(self) -> Iterator[tuple[int, int]]:
        """Return the watched descriptors that are ready, with their events."""
        fd, events = ctypes.c_int(), ctypes.c_uint32()
        while self._library.p4r_loop_next_ready(
            self._handle, ctypes.byref(fd), ctypes.byref(events)
        ):
            yield fd.value, events.value

    def packet_ins(self) -> Iterator[bytes]:
        """Return the frames that left by the CPU port since the last call."""
        address = ctypes.c_void_p()
        while True:
            length = self._library.p4r_loop_next_packet_in(self._handle, ctypes.byref(address))
            if length < 0:
                return
            yield ctypes.string_at(address.value or 0, length)

    @property
    def counts(self) -> dict[str, int]:
        """The fields of `struct p4r_loop_stats` by name; once closed, those at the end."""
        if self._last_counts is not None:
            return self._last_counts
        return _values(_LoopStats.from_address(self._library.p4r_loop_stats(self._handle)))


def _values(counts: ctypes.Structure) -> dict[str, int]:
    return {name: getattr(counts, name) for name in field_types(type(counts))}


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
