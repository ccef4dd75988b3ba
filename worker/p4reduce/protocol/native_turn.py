# SPDX-License-Identifier: Apache-2.0
"""The progress thread's loop in C, for transports that C can use."""

from __future__ import annotations

import ctypes
import math
from typing import Protocol

import numpy as np
from p4reduce_native.link import Link

from p4reduce.machine_code import TurnStructure
from p4reduce.protocol.native_slots import NativeSlots
from p4reduce.tensors.blocks import Indices
from p4reduce.wire.frames import FrameBuffer

_ROW_PAD = 2  # a frame begins that many bytes into its row
_ROUNDS_OF_BACKLOG = 4  # rows that wait for the link, for each slot, beyond which nothing is taken


class LinkedTransport(Protocol):
    """A transport on a link of `p4reduce_native`."""

    @property
    def link(self) -> Link:
        """Open as long as the transport is."""

    @property
    def received(self) -> FrameBuffer:
        """Where frames are put."""

    @property
    def wake_fd(self) -> int:
        """The eventfd that `wake` writes to."""


WOKEN, ODD, DUE, OVERSLEPT, BROKEN = 1, 2, 4, 8, 16
"""Why the loop has returned, as bits: `P4R_TURN_…`. Plain numbers: flags of an enumeration cost
microseconds before Python 3.12."""


class NativeTurn:
    """`struct p4r_turn`.

    Attributes:
        received: where frames that are left for Python lie, as the first rows.

    Args:
        slots: what to run.
        transport: to the switch; stays open as long as this is used.
    """

    def __init__(self, slots: NativeSlots, transport: LinkedTransport) -> None:
        self.received = transport.received
        self._slots = slots
        self._backlog = np.zeros(_ROUNDS_OF_BACKLOG * len(slots.streams), np.int64)
        self._turn = TurnStructure(
            slots=slots.address,
            link=transport.link.pointer,
            received=transport.received.address - _ROW_PAD,
            received_lengths=transport.received.lengths.ctypes.data,
            outgoing_lengths=slots.outgoing.lengths.ctypes.data,
            backlog=self._backlog.ctypes.data,
            backlog_room=len(self._backlog),
            wake_fd=transport.wake_fd,
            asked_at=math.inf,
        )
        self._address = ctypes.addressof(self._turn)
        self._late: Indices = self._backlog[:0]

    def run(self, rows: Indices, deadline: float) -> int:
        """Send rows and go on until there is something for Python, without the interpreter's lock.

        Args:
            rows: of the frames to send, that the gate has let out.
            deadline: the earliest of a collective.

        Returns:
            Why it is back: `WOKEN` and so on, together.
        """
        turn = self._turn
        if len(self._late):  # which there had been no room for
            rows = np.concatenate((self._late, rows))
        room = len(self._backlog) - turn.backlog_count
        if len(rows):
            some = rows[:room]
            self._backlog[turn.backlog_count : turn.backlog_count + len(some)] = some
            turn.backlog_count += len(some)
        self._late = rows[room:]
        turn.deadline = deadline
        return int(self._slots.library.run(self._address))

    @property
    def asked(self) -> tuple[float, int]:
        """When something was first sent since the switch last answered, and how often since."""
        return self._turn.asked_at, self._turn.asked

    @asked.setter
    def asked(self, asked: tuple[float, int]) -> None:
        self._turn.asked_at, self._turn.asked = asked
