# SPDX-License-Identifier: Apache-2.0
"""The interface between the data plane and any kind of port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from p4reduce_switch.ports.capture import Capture, Captures

if TYPE_CHECKING:
    from p4reduce_native.loop import Loop, LoopPort, PortEvent

MAX_FRAME_BYTES = 2048
MAX_PORT = 510  # 9 bits in v1model, of which 511 means "drop"

Handler: TypeAlias = Callable[[int], None]
"""Called with the epoll events of a file descriptor."""


class PortError(Exception):
    """A port cannot be opened. The message says which, and why."""


@dataclass(slots=True)
class PortStats:
    """Counts of a port since it was opened.

    `rx_frames` does not include refused frames, and `tx_frames` not those that could not be sent.
    """

    rx_frames: int = 0
    rx_bytes: int = 0
    rx_too_short: int = 0
    rx_too_long: int = 0
    rx_overrun: int = 0  # dropped by the kernel, because the switch did not read fast enough
    tx_frames: int = 0
    tx_bytes: int = 0
    tx_too_long: int = 0
    tx_queue_full: int = 0
    tx_down: int = 0  # no peer, or the interface is down
    rx_stranger: int = 0  # UDP: datagrams of nobody who was let in
    path_narrowed: int = 0  # UDP: how often the path took smaller datagrams only than before
    path_too_narrow: int = 0  # UDP: how often not even the least size was answered
    tx_runs_refused: int = 0  # UDP: the kernel did not send several datagrams in one piece

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Poller:
    """Registers a port's file descriptors to watch. Used in the data plane's thread only."""

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

    def ready(self) -> Iterator[Callable[[], None]]:
        """Return the calls of the handlers of what is ready."""
        for fd, events in self._loop.ready():
            handler = self._handlers.get(fd)
            if handler is not None:
                yield partial(handler, events)


class SwitchPort(ABC):
    """A port of the switch. Python opens it, closes it and writes the log; C moves its frames.

    Only `stats` may be used outside the data plane's thread. A subclass's constructor ends with
    `_open_capture`; after that `close` may be called.

    Args:
        number: within the switch.
        description: the port as the command line gives it, such as "1=veth1".
    """

    def __init__(self, number: int, description: str) -> None:
        self.number = number
        self.description = description
        self._served: LoopPort | None = None
        self._capture: Capture | None = None

    def _open_capture(self, captures: Captures | None) -> None:
        """Open the files of a capture. Raises PortError where that fails; the port is closed."""
        files = [] if captures is None else captures.files(self.number, self.description)
        try:
            self._capture = Capture(files)
        except OSError as error:
            self.close()
            raise PortError(
                f"port {self.description}: {error.filename}: {error.strerror}"
            ) from None

    @property
    def stats(self) -> PortStats:
        return PortStats() if self._served is None else PortStats(**self._served.counts)

    @property
    @abstractmethod
    def is_up(self) -> bool: ...

    @property
    @abstractmethod
    def has_carrier(self) -> bool:
        """Whether a frame could leave. Any thread may call it."""

    def limit_backlog(self, limited: bool) -> None:  # noqa: B027 - most ports hold little
        """Whether to let few frames wait in the kernel. The others wait in egress queues, where the
        program sees them."""

    def join(self, loop: Loop, poller: Poller) -> None:
        """Start serving this port; called once."""
        assert self._capture is not None
        self._served = self._join(loop, self._capture.take())
        self._capture.split(self._served)
        self._begin(poller)

    @abstractmethod
    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        """Make it a port of a loop."""

    @abstractmethod
    def _begin(self, poller: Poller) -> None:
        """Let frames pass from now on, or as soon as there is a peer."""

    @property
    def _in_loop(self) -> LoopPort:
        assert self._served is not None, "it has not joined a loop"
        return self._served

    @abstractmethod
    def poll_events(self) -> PortEvent:
        """Handle the event of the loop, and return it."""

    def poll_stats(self) -> None:  # noqa: B027 - most counts are the loop's
        """Update `stats` with counts that the kernel keeps."""

    def flush(self) -> None:  # noqa: B027 - a port may have nothing that waits
        """Try waiting work again; called about once per second."""

    def close(self) -> None:
        """Release everything, including sockets in the file system."""
        if self._capture is not None:
            self._capture.close()
