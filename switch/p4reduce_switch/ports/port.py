# SPDX-License-Identifier: Apache-2.0
"""What the data plane asks of a port, whatever it is made of; and the `--port` notation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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
    "PortSpec",
    "PortStats",
    "UdpAddress",
    "interface_port",
    "parse_port",
    "parse_ports",
]

MAX_FRAME_BYTES = 2048
MAX_PORT = 510  # 9 bits in v1model, of which 511 means "drop"

Handler: TypeAlias = Callable[[int], None]
"""Called with the epoll events of a file descriptor."""


class PortError(Exception):
    """A port that cannot be opened; the message says which and why."""


@dataclass(slots=True)
class PortStats:
    """Counts of one port since it was opened.

    Frames that came in but were refused are not in `rx_frames`; nor are frames that could not be
    sent in `tx_frames`.
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
    """Where a port tells which file descriptors to watch. Only used in the data plane's thread."""

    def watch(self, fd: int, events: int, handler: Handler) -> None: ...

    def change(self, fd: int, events: int) -> None: ...

    def unwatch(self, fd: int) -> None: ...


class Port(Protocol):
    """A port of the switch: Python opens and closes it and writes the log, C passes its frames.

    Everything but `stats` is only used in the data plane's thread.
    """

    @property
    def number(self) -> int: ...

    @property
    def description(self) -> str:
        """How the port was asked for, e.g. "1=veth1"."""

    @property
    def stats(self) -> PortStats: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def has_carrier(self) -> bool:
        """Whether a frame could leave. Any thread may ask."""

    def limit_backlog(self, limited: bool) -> None:
        """Whether only a little may wait outside of the switch, in the kernel: what is behind it
        waits in egress queues, where the program sees it."""

    def join(self, loop: Loop, poller: Poller) -> None:
        """Begin to be served; once."""

    def look_for_news(self) -> News:
        """Handle what the loop has to tell, and return what it was."""

    def poll_stats(self) -> None:
        """Bring `stats` up to date with counts that others keep (the kernel's)."""

    def flush(self) -> None:
        """Called about once a second: try again what had to wait."""

    def close(self) -> None:
        """Release everything, sockets in the file system included."""


@dataclass(frozen=True, slots=True)
class UdpAddress:
    """Where a UDP port listens: a host's name or address, and a UDP port (0: any free one)."""

    host: str
    udp_port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.udp_port}"


@dataclass(frozen=True, slots=True)
class PortSpec:
    """A port of a `--port` option: one of `interface`, `socket_path` and `udp_address` is set.

    With `offload`, packets of many frames are taken apart, and sent to who sends such. With `calls`
    it connects to a socket at the path, where another switch listens.
    """

    number: int
    interface: str | None = None
    socket_path: Path | None = None
    offload: bool = False
    udp_address: UdpAddress | None = None
    calls: bool = False

    def __str__(self) -> str:
        unix = _UNIX_TO if self.calls else _UNIX
        where = self.interface if self.interface is not None else f"{unix}{self.socket_path}"
        if self.udp_address is not None:
            where = f"{_UDP}{self.udp_address}"
        return f"{self.number}={where}{_OFFLOAD if self.offload else ''}"


_OFFLOAD = ",offload"
_UDP = "udp:"
_UNIX = "unix:"
_UNIX_TO = "unix-to:"
_MAX_UDP_PORT = 65535
_MAX_INTERFACE_NAME = 15  # IFNAMSIZ - 1


def parse_ports(text: str) -> list[PortSpec]:
    """Read what `parse_port` reads, or "1-64=udp:0.0.0.0:7001": the UDP ports count up as well.

    Raises:
        ValueError: with a message for whoever typed it.
    """
    numbers, equals, where = text.partition("=")
    first, dash, last = numbers.partition("-")
    if not (dash and equals and first.isdecimal() and last.isdecimal()):
        return [parse_port(text)]
    if not where.startswith(_UDP):
        raise ValueError(f"'{text}' is a range of ports, which is for udp:HOST:PORT alone")
    if not int(first) <= int(last) <= MAX_PORT:
        raise ValueError(f"'{numbers}' of '{text}' is no range of ports within 0 and {MAX_PORT}")
    start = parse_port(f"{first}={where}")
    assert start.udp_address is not None
    host, udp_port = start.udp_address.host, start.udp_address.udp_port
    count = int(last) - int(first)
    if udp_port and udp_port + count > _MAX_UDP_PORT:
        raise ValueError(
            f"'{text}' ends at UDP port {udp_port + count}; {_MAX_UDP_PORT} is the last"
        )
    return [
        replace(
            start,
            number=start.number + step,
            udp_address=UdpAddress(host, udp_port + step if udp_port else 0),
        )
        for step in range(count + 1)
    ]


def parse_port(text: str) -> PortSpec:
    """Read "1=veth1", "1=veth1,offload", "2=unix:/path/p2.sock", "3=udp:0.0.0.0:7003", or
    "4=unix-to:/path/of-another-switch.sock".

    Raises:
        ValueError: with a message for whoever typed it.
    """
    number_text, equals, where = text.partition("=")
    if not equals or not where:
        raise ValueError(
            f"'{text}' is not of the form NUMBER=INTERFACE, NUMBER=unix:PATH, NUMBER=unix-to:PATH "
            "or NUMBER=udp:HOST:PORT"
        )
    if not (number_text.isascii() and number_text.isdigit()) or int(number_text) > MAX_PORT:
        raise ValueError(f"port number '{number_text}' of '{text}' is not within 0 to {MAX_PORT}")
    number = int(number_text)
    for kind in (_UNIX, _UNIX_TO):
        if where.startswith(kind):
            path = where.removeprefix(kind)
            if not path:
                raise ValueError(f"'{text}' has no path after '{kind}'")
            return PortSpec(number, socket_path=Path(path), calls=kind == _UNIX_TO)
    if where.startswith(_UDP):
        return PortSpec(number, udp_address=_parse_udp(text, where.removeprefix(_UDP)))
    offload = where.endswith(_OFFLOAD)
    try:
        return interface_port(number, where.removesuffix(_OFFLOAD), offload=offload)
    except ValueError as error:
        raise ValueError(f"{error} in '{text}'; for a socket write unix:PATH") from None


def interface_port(number: int, name: str, *, offload: bool = False) -> PortSpec:
    """A port on an interface. Raises ValueError: no interface can be called so."""
    if len(name) > _MAX_INTERFACE_NAME or "/" in name or any(c.isspace() for c in name):
        raise ValueError(
            f"'{name}' is not an interface name (at most {_MAX_INTERFACE_NAME} characters, no '/' "
            "or space)"
        )
    return PortSpec(number, interface=name, offload=offload)


def _parse_udp(text: str, where: str) -> UdpAddress:
    host, colon, port = where.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets, like udp:[::]:7001, not '{text}'")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"'{text}' is not of the form NUMBER=udp:HOST:PORT")
    if int(port) > _MAX_UDP_PORT:
        raise ValueError(f"UDP port {port} of '{text}' is not within 0 to {_MAX_UDP_PORT}")
    return UdpAddress(host, int(port))
