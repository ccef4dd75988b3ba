# SPDX-License-Identifier: Apache-2.0
"""Ways to the switch that a test cuts while they are in use."""

from __future__ import annotations

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport import Transport, open_port
from p4reduce.transport.base import Indices
from p4reduce.transport.faulty import FaultPlan, FaultyTransport
from p4reduce.wire.frames import FrameBuffer


class Cable(FaultyTransport):
    """A transport that may be cut at any moment, in one direction or for good.

    Attributes:
        deaf: nothing comes from the switch.
        mute: nothing gets to the switch.
        broken: the next call finds that out.
        lost: frames on their way to the switch.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, FaultPlan())
        self.deaf = self.mute = self.broken = False
        self.lost = 0

    def receive(self) -> int:
        if self.broken:
            raise SwitchUnreachableError("a test has cut the cable")
        count = super().receive()
        return 0 if self.deaf else count

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        if not self.mute:
            return super().send(buffer, rows)
        self.lost += len(rows)
        return len(rows)


class Cables(dict[int, Cable]):
    """The newest of each rank.

    Attributes:
        away: whether no rank finds a way to the switch any more.
    """

    away = False

    def open(self, name: str, rank: int, udp_port: int, _: object) -> Transport:
        if self.away:
            raise SwitchUnreachableError("a test has cut all cables")
        self[rank] = Cable(open_port(name, rank, udp_port))
        return self[rank]

    def cut(self) -> None:
        """All of them, until `away` is False again."""
        self.away = True
        for cable in list(self.values()):
            cable.broken = True
            cable.wake()
