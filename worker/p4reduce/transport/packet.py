# SPDX-License-Identifier: Apache-2.0
"""On a network interface, by a packet socket: in Python, or on a link of machine code."""

from __future__ import annotations

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.link import Link

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.base import SocketTransport
from p4reduce.transport.link import FramesOverLink
from p4reduce.transport.packet_socket import PacketSocket

__all__ = ["LinkedPacketTransport", "PacketTransport"]


class PacketTransport(SocketTransport):
    """Frames to and from an interface, where there is no machine code.

    Args:
        interface: its name.
        udp_port: own UDP port; 0 lets the kernel choose one.

    Raises:
        SwitchUnreachableError: as `PacketSocket`.
    """

    def __init__(self, interface: str, udp_port: int = 0) -> None:
        self._packets = PacketSocket(interface, udp_port)
        self.endpoint = self._packets.endpoint
        super().__init__(interface, self._packets.socket)

    @property
    def dropped(self) -> int:
        return self._packets.dropped

    def close(self) -> None:
        super().close()
        self._packets.close()


class LinkedPacketTransport(FramesOverLink):
    """As `PacketTransport`, for an engine in C as well.

    Args:
        interface: its name.
        udp_port: own UDP port; 0 lets the kernel choose one.
        offload: send frames together, many per packet, to a switch of our own at the other end of
            a veth pair, which answers in the same way. It has to have been told as well (`--port
            1=veth1,offload`); no other one understands such packets, nor does whoever else
            listens at this veth pair.

    Raises:
        SwitchUnreachableError: as `PacketSocket`; or with `offload`, there is no machine code.
        NativeUnavailableError: without `offload`, there is no machine code.
    """

    def __init__(self, interface: str, udp_port: int = 0, *, offload: bool = False) -> None:
        self._packets = PacketSocket(interface, udp_port)
        self.endpoint = self._packets.endpoint
        try:
            if offload:
                link = Link.over_interface(self._packets.socket, peer_understands=True)
            else:
                link = Link.over_packets(self._packets.socket)
        except (NativeUnavailableError, OSError) as error:
            self._packets.close()
            if not offload:
                raise
            raise SwitchUnreachableError(f"no offload on {interface!r}: {error}") from None
        super().__init__(f"{interface},offload" if offload else interface, link)

    @property
    def dropped(self) -> int:
        return self._packets.dropped

    def close(self) -> None:
        super().close()
        self._packets.close()
