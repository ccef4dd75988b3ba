# SPDX-License-Identifier: Apache-2.0
"""A port on a network interface, by a packet socket. Needs CAP_NET_RAW."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import struct
from dataclasses import dataclass

from p4reduce_native.loop import Loop, LoopPort, PortEvent, PortKind

from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.place import PortOptions, PortPlace, PortSpec
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Poller, PortError, PortStats, SwitchPort

log = logging.getLogger(__name__)

# linux/if_packet.h, linux/if_ether.h, linux/sockios.h, linux/if.h
_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP = 1
_PACKET_STATISTICS = 6
_PACKET_AUXDATA = 8
_PACKET_IGNORE_OUTGOING = 23  # since Linux 4.20
_PACKET_MR_PROMISC = 1
_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_IFF_UP = 1
_IFF_RUNNING = 0x40
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33

_OFFLOAD = ",offload"
_MAX_NAME = 15  # IFNAMSIZ - 1
_HEADER_BYTES = 18  # Ethernet with one VLAN tag, which an interface allows beyond its MTU
_BUFFER_BYTES = 8 << 20
_SHALLOW_BYTES = 53_248  # which the kernel doubles: some 45 full frames


@dataclass(frozen=True, slots=True)
class InterfacePlace(PortPlace):
    """A network interface.

    With `offload`, large packets are split into frames, and are sent to peers that send such
    packets.
    """

    name: str
    offload: bool = False

    scheme = ""
    form = "INTERFACE"
    purpose = "for a network interface (requires root)"

    @classmethod
    def parse(cls, where: str) -> InterfacePlace:
        name = where.removesuffix(_OFFLOAD)
        try:
            return cls(checked_name(name), offload=where.endswith(_OFFLOAD))
        except ValueError as error:
            raise ValueError(f"has no interface: {error}; for a socket write unix:PATH") from None

    def __str__(self) -> str:
        return f"{self.name}{_OFFLOAD if self.offload else ''}"

    def open(self, spec: PortSpec, options: PortOptions) -> PacketPort:
        return PacketPort(spec, options.captures)


def checked_name(name: str) -> str:
    """Return the name. Raises ValueError if no interface can have it."""
    if len(name) > _MAX_NAME or "/" in name or any(c.isspace() for c in name):
        raise ValueError(
            f"'{name}' is not an interface name (at most {_MAX_NAME} characters, no '/' or space)"
        )
    return name


class PacketPort(SwitchPort):
    """A port on an interface.

    The socket receives all incoming frames of the interface, in promiscuous mode, but not those
    that leave by it.

    Args:
        captures: how frames are captured, or None.

    Raises:
        PortError: the interface does not exist or may not be opened, or the capture cannot be
            written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        place = spec.place
        assert isinstance(place, InterfacePlace)
        super().__init__(spec.number, str(spec))
        self._interface = place.name
        try:
            self._socket = _open(place.name)
        except PermissionError:
            raise PortError(
                f"port {spec}: opening an interface requires root or CAP_NET_RAW; "
                f"without, use a socket: --port {spec.number}=unix:PATH"
            ) from None
        except OSError as error:
            raise PortError(f"port {spec}: {_reason(place.name, error)}") from None
        try:
            mtu = _interface_int(self._socket, place.name, _SIOCGIFMTU)
        except OSError as error:
            self._socket.close()
            raise PortError(f"port {spec}: {_reason(place.name, error)}") from None
        self._max_bytes = min(MAX_FRAME_BYTES, mtu + _HEADER_BYTES)
        self._offload = place.offload
        self._overruns = 0
        if not self.is_up:
            log.warning("port %s: the interface is down", spec)
        self._open_capture(captures)

    @property
    def stats(self) -> PortStats:
        stats = super().stats
        stats.rx_overrun = self._overruns
        return stats

    @property
    def is_up(self) -> bool:
        return bool(self._flags() & _IFF_UP)

    @property
    def has_carrier(self) -> bool:
        return self._flags() & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING

    def limit_backlog(self, limited: bool) -> None:
        _set_buffer(
            self._socket,
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
            _SHALLOW_BYTES if limited else _BUFFER_BYTES,
        )

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        kind = PortKind.OFFLOAD if self._offload else PortKind.PACKET
        return loop.add_port(kind, self.number, capture_fd, max_bytes=self._max_bytes)

    def _begin(self, poller: Poller) -> None:
        self._in_loop.attach(self._socket.fileno())

    def poll_events(self) -> PortEvent:
        event, error = self._in_loop.take_port_event()
        if event is PortEvent.ERROR:
            # Reported once per change; the socket continues when the interface comes up again.
            why = _reason(self._interface, OSError(error, os.strerror(error)))
            log.warning("port %s: %s", self.description, why)
        return event

    def poll_stats(self) -> None:
        raw = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)  # resets the kernel's
        self._overruns += int(struct.unpack("II", raw)[1])

    def close(self) -> None:
        if self._served is not None:
            self.poll_stats()
            self._served.detach()
        self._socket.close()
        super().close()

    def _flags(self) -> int:
        try:
            return _interface_int(self._socket, self._interface, _SIOCGIFFLAGS)
        except (OSError, ValueError):  # ValueError: it was closed
            return 0


def _open(interface: str) -> socket.socket:
    # Protocol 0 receives nothing, so no frame of another interface slips in before the bind.
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        index = socket.if_nametoindex(interface)
        sock.setblocking(False)
        _grow_buffers(sock)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        membership = struct.pack("iHH8s", index, _PACKET_MR_PROMISC, 0, b"")
        sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        sock.bind((interface, _ETH_P_ALL))
    except OSError:
        sock.close()
        raise
    return sock


def _grow_buffers(sock: socket.socket) -> None:
    """Ask for large buffers, beyond the kernel's limits where that is allowed."""
    _set_buffer(sock, (_SO_RCVBUFFORCE, socket.SO_RCVBUF), _BUFFER_BYTES)
    _set_buffer(sock, (_SO_SNDBUFFORCE, socket.SO_SNDBUF), _BUFFER_BYTES)


def _set_buffer(sock: socket.socket, options: tuple[int, int], size: int) -> None:
    """By the option that goes beyond the kernel's limits, or by the one that everybody may use."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, options[0], size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, options[1], size)


def _interface_int(sock: socket.socket, interface: str, request: int) -> int:
    """An integer property of an interface (`struct ifreq`): 16 bits of flags, or the MTU."""
    answer = fcntl.ioctl(sock, request, struct.pack("16s16x", os.fsencode(interface)))
    code = "16xH" if request == _SIOCGIFFLAGS else "16xi"
    return int(struct.unpack_from(code, answer)[0])


def _reason(interface: str, error: OSError) -> str:
    if error.errno in (errno.ENODEV, errno.ENXIO) or "no interface" in str(error).lower():
        return f"there is no interface '{interface}'"
    if error.errno == errno.ENETDOWN:
        return f"the interface '{interface}' is down"
    if error.errno == errno.ENOPROTOOPT:
        return "the kernel lacks PACKET_IGNORE_OUTGOING; Linux 4.20 or newer is needed"
    return error.strerror or str(error)
