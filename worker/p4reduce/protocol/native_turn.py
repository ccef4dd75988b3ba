# SPDX-License-Identifier: Apache-2.0
"""The progress thread's loop in C, for transports that C can use."""

from __future__ import annotations

import ctypes
import math
from typing import Protocol, cast

import numpy as np
from p4reduce_native.link import Kind, Link

from p4reduce.machine_code import (
    Library,
    LinkOwnerStructure,
    NapStructure,
    TurnStructure,
    native_library,
)
from p4reduce.tensors.blocks import Indices
from p4reduce.wire.frames import FrameBuffer

_ROW_PAD = 2  # a frame begins that many bytes into its row
_NOBODY = 1  # P4R_NOBODY
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

    @property
    def lossless(self) -> bool:
        """As of `transport.base.Transport`."""


WOKEN, NEWS, OVERSLEPT, BROKEN = 1, 2, 8, 16
PAUSED, DONE, REFUSED = 32, 64, 128
"""Why the loop has returned, as bits: `P4R_TURN_…`. Plain numbers: flags of an enumeration cost
microseconds before Python 3.12."""


class LinkOwner:
    """`struct p4r_link_owner`: whose turn it is on a link, the progress thread's or a caller's.

    Args:
        library: the functions.
        transport: that goes by the link.

    Attributes:
        address: of the structure.
    """

    def __init__(self, library: Library, transport: LinkedTransport) -> None:
        self._rest = library.rest
        self._fds = transport.link.fileno(), transport.wake_fd
        self._shared = LinkOwnerStructure()
        self.address = ctypes.addressof(self._shared)

    @classmethod
    def of(cls, transport: object) -> LinkOwner | None:
        """Return that of a transport; None: only the thread can use it.

        Only rings in shared memory may be left alone while nothing is under way.
        """
        link = getattr(transport, "link", None)
        library = native_library()
        if library is None or not library.has_links or not isinstance(link, Link):
            return None
        if link.kind is not Kind.SHARED:
            return None
        return cls(library, cast(LinkedTransport, transport))

    @property
    def taken(self) -> int:
        """How often the thread has taken the link back."""
        return int(self._shared.taken)

    @property
    def loans(self) -> int:
        """How often callers have borrowed the link."""
        return int(self._shared.loans)

    @property
    def free(self) -> bool:
        """Whether a caller may borrow the link."""
        return bool(self._shared.holder == _NOBODY)

    def rest(self, quiet: float) -> bool:
        """For the thread: let callers borrow the link, until there is something else to do.

        Args:
            quiet: seconds without a caller that are enough of it.

        Returns:
            Whether there was nothing but quiet.
        """
        return bool(self._rest(self.address, *self._fds, int(quiet * 1000)))


class NativeTurn:
    """`struct p4r_turn`.

    Args:
        library: the functions.
        slots: address of what to run.
        number: of these slots.
        transport: to the switch; stays open as long as this is used.
        owner: of its link, where callers may borrow that.
    """

    def __init__(
        self,
        library: Library,
        slots: int,
        number: int,
        transport: LinkedTransport,
        owner: LinkOwner | None = None,
    ) -> None:
        self._library = library
        self._backlog = np.zeros(_ROUNDS_OF_BACKLOG * number, np.int64)
        self._received = transport.received
        self._turn = TurnStructure(
            slots=slots,
            link=transport.link.pointer,
            received=self._received.address - _ROW_PAD,
            received_lengths=self._received.lengths.ctypes.data,
            backlog=self._backlog.ctypes.data,
            backlog_room=len(self._backlog),
            wake_fd=transport.wake_fd,
            asked_at=math.inf,
            owner=None if owner is None else owner.address,
            most=len(self._received),
            # Within this machine frames come as fast as its cores allow, in batches by themselves.
            nap=NapStructure(allowed=not transport.lossless),
        )
        self._address = ctypes.addressof(self._turn)

    def run(self) -> int:
        """Go on until there is something for Python, without the interpreter's lock.

        Returns:
            Why it is back: `WOKEN` and so on, together.
        """
        return int(self._library.run(self._address))

    def lend(self, stream: int, begins: bool, taken: int, counted: bool) -> int:
        """Run a collective in the thread that waits for it: `p4r_turn_lend`.

        Returns:
            `DONE`, `REFUSED`, or why it is back.
        """
        return int(self._library.lend(self._address, stream, begins, taken, counted))

    @property
    def lent(self) -> bool:
        """Whether callers have run something since `take_back`."""
        return bool(self._turn.lent)

    @property
    def begun(self) -> tuple[int, bool]:
        """Number of the latest collective that callers have begun, and whether it is not over."""
        return self._turn.lent_sequence, bool(self._turn.lent_open)

    def take_back(self) -> int:
        """Take notice of what callers have run; return why they have left the rest."""
        turn = self._turn
        why = int(turn.lent_why)
        turn.lent = turn.lent_open = turn.lent_why = 0
        return why

    def take_backlog(self) -> Indices:
        """Return the rows that wait for room in the link, which are not C's any more."""
        count, self._turn.backlog_count = self._turn.backlog_count, 0
        rows: Indices = self._backlog[:count].copy()
        return rows

    def give_backlog(self, rows: Indices) -> Indices:
        """Let C send rows that have waited for room; return those that there is no room for."""
        count = self._turn.backlog_count
        some = rows[: len(self._backlog) - count]
        self._backlog[count : count + len(some)] = some
        self._turn.backlog_count += len(some)
        return rows[len(some) :]

    @property
    def asked(self) -> tuple[float, int]:
        """When something was first sent since the switch last answered, and how often since."""
        return self._turn.asked_at, self._turn.asked

    @asked.setter
    def asked(self, asked: tuple[float, int]) -> None:
        self._turn.asked_at, self._turn.asked = asked
