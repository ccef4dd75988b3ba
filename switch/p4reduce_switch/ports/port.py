# SPDX-License-Identifier: Apache-2.0
"""The interface between the data plane and any kind of port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from p4reduce_native.loop import Loop, News

__all__ = [
    "MAX_FRAME_BYTES",
    "MAX_PORT",
    "Handler",
    "Poller",
    "Port",
    "PortError",
    "PortStats",
]

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


class Poller(Protocol):
    """Registers a port's file descriptors to watch. Used in the data plane's thread only."""

    def watch(self, fd: int, events: int, handler: Handler) -> None: ...

    def change(self, fd: int, events: int) -> None: ...

    def unwatch(self, fd: int) -> None: ...


class Port(Protocol):
    """A port of the switch. Python opens it, closes it and writes the log; C moves its frames.

    Only `stats` may be used outside the data plane's thread.
    """

    @property
    def number(self) -> int: ...

    @property
    def description(self) -> str:
        """The port as the command line gives it, such as "1=veth1"."""

    @property
    def stats(self) -> PortStats: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def has_carrier(self) -> bool:
        """Whether a frame could leave. Any thread may call it."""

    def limit_backlog(self, limited: bool) -> None:
        """Whether to let few frames wait in the kernel. The others wait in egress queues, where the
        program sees them."""

    def join(self, loop: Loop, poller: Poller) -> None:
        """Start serving this port; called once."""

    def look_for_news(self) -> News:
        """Handle the news of the loop, and return it."""

    def poll_stats(self) -> None:
        """Update `stats` with counts that the kernel keeps."""

    def flush(self) -> None:
        """Try waiting work again; called about once per second."""

    def close(self) -> None:
        """Release everything, including sockets in the file system."""
