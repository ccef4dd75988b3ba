# SPDX-License-Identifier: Apache-2.0
"""A port on a network interface, by a packet socket. Needs CAP_NET_RAW."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence

from p4reduce_switch.ports.batch import FrameBatches
from p4reduce_switch.ports.egress_queue import EgressQueue
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Poller, PortError, PortSpec, PortStats

__all__ = ["InterfaceSocket", "PacketPort"]

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

_HEADER_BYTES = 18  # Ethernet with one VLAN tag, which an interface allows beyond its MTU
_BUFFER_BYTES = 8 << 20
_SHALLOW_BYTES = 53_248  # which the kernel doubles: some 45 full frames


class InterfaceSocket:
    """What every port on an interface does in Python: the packet socket, and how the interface is.

    The socket receives all frames of the interface, in promiscuous mode, but for those that leave
    by it.

    Raises:
        PortError: there is no such interface, or no right to open it.
    """

    def __init__(self, spec: PortSpec) -> None:
        assert spec.interface is not None
        self.number = spec.number
        self.description = str(spec)
        self._interface = spec.interface
        try:
            self._socket = _open(spec.interface)
        except PermissionError:
            raise PortError(
                f"port {spec}: opening an interface takes root or CAP_NET_RAW; "
                f"without, use a socket: --port {spec.number}=unix:PATH"
            ) from None
        except OSError as error:
            raise PortError(f"port {spec}: {_reason(spec.interface, error)}") from None
        try:
            mtu = _interface_int(self._socket, spec.interface, _SIOCGIFMTU)
        except OSError as error:
            self._socket.close()
            raise PortError(f"port {spec}: {_reason(spec.interface, error)}") from None
        self._max_bytes = min(MAX_FRAME_BYTES, mtu + _HEADER_BYTES)
        if not self.is_up:
            log.warning("port %s: the interface is down", spec)

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

    def _flags(self) -> int:
        try:
            return _interface_int(self._socket, self._interface, _SIOCGIFFLAGS)
        except (OSError, ValueError):  # ValueError: it was closed
            return 0

    def _overrun(self) -> int:
        """Frames that the kernel has dropped since the last call."""
        raw = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)  # resets the kernel's
        return int(struct.unpack("II", raw)[1])

    def _warn(self, error: OSError) -> None:
        # Reported once per change; the socket goes on when the interface comes up again.
        log.warning("port %s: %s", self.description, _reason(self._interface, error))


class PacketPort(InterfaceSocket):
    """A port on an interface that Python serves.

    Raises:
        PortError: there is no such interface, no right to open it, or it shall have offload.
    """

    def __init__(self, spec: PortSpec, batches: FrameBatches) -> None:
        if spec.offload:
            raise PortError(f"port {spec}: offload needs the data plane in C")
        super().__init__(spec)
        self.stats = PortStats()
        self._batches = batches
        self._poller: Poller | None = None
        self._on_frames: Callable[[], None] | None = None
        self._egress = EgressQueue(
            self.stats, max_bytes=self._max_bytes, set_events=self._set_events
        )

    @property
    def has_room(self) -> bool:
        return self._egress.is_empty

    def attach(self, poller: Poller, on_frames: Callable[[], None]) -> None:
        self._poller = poller
        self._on_frames = on_frames
        poller.watch(self._socket.fileno(), select.EPOLLIN, self._on_events)

    def receive(self) -> Sequence[bytes]:
        try:
            return self._batches.receive_packets(self._socket.fileno(), self.stats)
        except OSError as error:
            self._warn(error)
            return ()

    def send(self, frames: Sequence[bytes]) -> None:
        try:
            self._egress.send(self._push, frames)
        except OSError:
            self._egress.clear()  # logged when the kernel reports it to `receive`

    def poll_stats(self) -> None:
        self.stats.rx_overrun += self._overrun()

    def flush(self) -> None:
        """Nothing is buffered that has to be written."""

    def close(self) -> None:
        self.poll_stats()
        if self._poller is not None:
            self._poller.unwatch(self._socket.fileno())
        self._socket.close()

    def _on_events(self, events: int) -> None:
        if events & select.EPOLLOUT:
            try:
                self._egress.drain(self._push)
            except OSError:
                self._egress.clear()
                self._set_events(select.EPOLLIN)
        if events & (select.EPOLLIN | select.EPOLLERR) and self._on_frames is not None:
            self._on_frames()

    def _push(self, frames: Sequence[bytes]) -> int:
        return self._batches.send(self._socket.fileno(), frames)

    def _set_events(self, events: int) -> None:
        if self._poller is not None:
            self._poller.change(self._socket.fileno(), events)


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
