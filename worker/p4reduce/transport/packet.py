# SPDX-License-Identifier: Apache-2.0
"""A transport on a network interface, by a packet socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from p4reduce_native.link import Link

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.base import Transport
from p4reduce.transport.link import FramesOverLink
from p4reduce.transport.packet_socket import addresses, drops_of, packet_socket, reserve_port
from p4reduce.transport.port_type import Look, PortType
from p4reduce.wire.format import Endpoint

_OFFLOAD = ",offload"
LEAST_MTU = 1088  # 1,102 bytes of frame less Ethernet's header


class PacketTransport(FramesOverLink):
    """Frames to and from an interface.

    Args:
        interface: its name.
        udp_port: own UDP port; 0 lets the kernel choose one.
        offload: send frames together, many per packet, to a switch of our own at the other end of
            a veth pair, which answers in the same way. It needs the option as well (`--port
            1=veth1,offload`); no other switch understands such packets, nor do other listeners at
            this veth pair.

    Raises:
        SwitchUnreachableError: no such interface, it is down, it has no IPv4 address, no
            permission, port in use, or the kernel has no `offload`.
        NativeUnavailableError: there is no machine code.
    """

    def __init__(self, interface: str, udp_port: int = 0, *, offload: bool = False) -> None:
        mac, ip = addresses(interface)
        with contextlib.ExitStack() as undo:
            self._port_guard = undo.enter_context(reserve_port(interface, ip, udp_port))
            port = self._port_guard.getsockname()[1]
            self._socket = undo.enter_context(packet_socket(interface, port))
            try:
                if offload:
                    link = Link.over_interface(self._socket, peer_understands=True)
                else:
                    link = Link.over_packets(self._socket)
            except OSError as error:
                if offload:
                    raise SwitchUnreachableError(f"no offload on {interface!r}: {error}") from None
                raise SwitchUnreachableError(f"no link on {interface!r}: {error}") from None
            undo.pop_all()
        super().__init__(interface + _OFFLOAD * offload, link)
        self.endpoint = Endpoint(mac, ip, port)
        self._dropped = 0

    def descriptors(self) -> Iterator[int]:
        yield from super().descriptors()
        yield from (self._port_guard.fileno(), self._socket.fileno())

    @property
    def dropped(self) -> int:
        self._dropped += drops_of(self._socket)
        return self._dropped

    def close(self) -> None:
        super().close()
        self._port_guard.close()
        self._socket.close()


def _open_interface(name: str, udp_port: int, _environ: Mapping[str, str]) -> Transport:
    offload = name.endswith(_OFFLOAD)
    return PacketTransport(name.removesuffix(_OFFLOAD), udp_port, offload=offload)


def _look(name: str) -> Iterator[Look]:
    what, interface = "interface", name.removesuffix(_OFFLOAD)
    directory = Path("/sys/class/net", interface)
    try:
        state = (directory / "operstate").read_text().strip()
        mtu = int((directory / "mtu").read_text())
    except (OSError, ValueError):
        yield Look(what, f"there is no interface {interface!r}", "ip link lists those there are.")
        return
    if state not in ("up", "unknown"):
        yield Look(what, f"{interface} is {state}", f"ip link set {interface} up")
    elif mtu < LEAST_MTU:
        found = f"{interface} has an MTU of {mtu}, and frames take {LEAST_MTU}"
        yield Look(what, found, f"ip link set {interface} mtu 1500")
    else:
        yield Look(what, f"{interface} is up, MTU {mtu}")


INTERFACE = PortType("", "eth0", _open_interface, _look, one_connection=False, packet_socket=True)
