# SPDX-License-Identifier: Apache-2.0
"""To a switch of our own at the other end of a veth pair: many frames per packet."""

from __future__ import annotations

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.link import Link

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.link import FramesOverLink
from p4reduce.transport.packet import PacketTransport
from p4reduce.wire.format import Endpoint

__all__ = ["OffloadTransport"]


class OffloadTransport(FramesOverLink):
    """As `PacketTransport`; frames to the switch go together, and it answers in the same way.

    The switch has to have been told as well (`--port 1=veth1,offload`); no other one understands
    such packets, nor does whoever else listens at this veth pair.

    Args:
        interface: its name.
        udp_port: own UDP port; 0 lets the kernel choose one.

    Raises:
        SwitchUnreachableError: as `PacketTransport`, or there is no machine code.
    """

    def __init__(self, interface: str, udp_port: int = 0) -> None:
        self._packets = PacketTransport(interface, udp_port)
        try:
            link = Link.over_interface(self._packets.socket, peer_understands=True)
        except (NativeUnavailableError, OSError) as error:
            self._packets.close()
            raise SwitchUnreachableError(f"no offload on {interface!r}: {error}") from None
        super().__init__(f"{interface},offload", link)

    @property
    def endpoint(self) -> Endpoint:
        return self._packets.endpoint

    @property
    def dropped(self) -> int:
        return self._packets.dropped

    def close(self) -> None:
        super().close()
        self._packets.close()
