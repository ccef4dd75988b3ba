# SPDX-License-Identifier: Apache-2.0
"""A packet socket on a network interface, see packet(7). Needs CAP_NET_RAW."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import socket
import struct

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.base import BUFFER_BYTES
from p4reduce.wire.format import (
    AGGREGATION_PORT,
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    IPV4_BYTES,
    PROTOCOL_UDP,
)

# From linux/sockios.h, linux/if.h, linux/if_arp.h, linux/if_packet.h and asm-generic/socket.h; the
# socket module has none of them.
_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFHWADDR = 0x8927
_IFF_UP = 1
_ARPHRD_ETHER = 1
_ARPHRD_LOOPBACK = 772
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SO_SNDBUFFORCE = 32

# Classic BPF (linux/filter.h): opcodes, and where the kernel shows a packet's type.
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20
_JUMP_IF_EQUAL, _RETURN = 0x15, 0x06
_PACKET_TYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
_PACKET_HOST = 0
_EVERYTHING = 0xFFFF

_IPV4_WITHOUT_OPTIONS = 0x45


def drops_of(sock: socket.socket) -> int:
    """Return how many frames found no room in a packet socket since the last call."""
    dropped: int = struct.unpack("II", sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]
    return dropped


def addresses(interface: str) -> tuple[str, str]:
    """Return an interface's MAC and IPv4 address.

    Raises:
        SwitchUnreachableError: there is no such Ethernet, it is down, or has no IPv4 address.
    """
    request = struct.pack("16s240x", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            hardware = fcntl.ioctl(probe, _SIOCGIFHWADDR, request)
        except OSError:
            raise SwitchUnreachableError(
                f"there is no interface {interface!r}; a Unix socket is written unix:/path",
                lasting="/" in interface,
            ) from None
        family = struct.unpack_from("H", hardware, 16)[0]
        if family not in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK):
            raise SwitchUnreachableError(
                f"interface {interface!r} is not an Ethernet", lasting=True
            )
        try:
            address = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            raise SwitchUnreachableError(
                f"interface {interface!r} has no IPv4 address for results; "
                f"give it one: ip address add 10.77.0.1/16 dev {interface}"
            ) from None
        (flags,) = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        if not flags & _IFF_UP:
            # It could be opened, and would say so at the first frame.
            raise SwitchUnreachableError(
                f"interface {interface!r} is down: ip link set dev {interface} up"
            )
    return hardware[18:24].hex(":"), socket.inet_ntoa(address[20:24])


def reserve_port(interface: str, ip: str, port: int) -> socket.socket:
    """Return a socket that keeps a UDP port for this process, and reads nothing; 0: any port.

    It also keeps the host from answering the switch with "port unreachable".

    Raises:
        SwitchUnreachableError: the port is in use.
    """
    guard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        _attach_filter(guard, [(_RETURN, 0, 0, 0)])  # nothing is ever read here
        guard.bind((ip, port))
    except OSError as error:
        guard.close()
        raise SwitchUnreachableError(
            f"cannot take UDP port {port} of {ip} ({interface}): {error.strerror}"
        ) from None
    return guard


def packet_socket(interface: str, udp_port: int) -> socket.socket:
    """Return a packet socket on an interface, which does not block.

    A filter in the kernel lets only the switch's answers to our UDP port through, so that other
    traffic does not wake us.

    Raises:
        SwitchUnreachableError: no permission, or no such interface.
    """
    try:
        # Protocol 0: nothing comes in before the filter is there.
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise SwitchUnreachableError(
            f"no permission to exchange frames on {interface!r}: needs root or CAP_NET_RAW "
            "(or a Unix socket of the embedded switch, unix:/path)",
            lasting=True,
        ) from None
    try:
        sock.setblocking(False)
        _attach_filter(sock, _answers_to(udp_port))
        for force, plain in (
            (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
            with contextlib.suppress(PermissionError):
                sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        sock.bind((interface, ETHERTYPE_IPV4))
    except OSError as error:
        sock.close()
        raise SwitchUnreachableError(f"interface {interface!r}: {error.strerror}") from None
    return sock


_Instruction = tuple[int, int, int, int]


def _answers_to(udp_port: int) -> list[_Instruction]:
    """Build a filter: UDP over IPv4 from the switch's port to ours, not our own frames."""
    udp = ETHERNET_BYTES + IPV4_BYTES
    tests = [
        (_LOAD_WORD, _PACKET_TYPE, _PACKET_HOST),
        (_LOAD_HALF, 12, ETHERTYPE_IPV4),
        (_LOAD_BYTE, ETHERNET_BYTES, _IPV4_WITHOUT_OPTIONS),
        (_LOAD_BYTE, ETHERNET_BYTES + 9, PROTOCOL_UDP),
        (_LOAD_WORD, udp, AGGREGATION_PORT << 16 | udp_port),
    ]
    program: list[_Instruction] = []
    for number, (load, offset, value) in enumerate(tests):
        to_the_end = 2 * (len(tests) - number) - 1
        program += [(load, 0, 0, offset), (_JUMP_IF_EQUAL, 0, to_the_end, value)]
    return [*program, (_RETURN, 0, 0, _EVERYTHING), (_RETURN, 0, 0, 0)]


def _attach_filter(sock: socket.socket, program: list[_Instruction]) -> None:
    code = array.array("B", b"".join(struct.pack("HBBI", *step) for step in program))
    address, _ = code.buffer_info()
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), address))
