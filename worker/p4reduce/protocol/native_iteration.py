# SPDX-License-Identifier: Apache-2.0
"""The engines' loop, in C."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from p4reduce_native.link import LinkKind

from p4reduce.machine_code import (
    CONSTANTS,
    BackoffStructure,
    IterationStructure,
    Library,
    LinkLockStructure,
)
from p4reduce.protocol.transport_ops import TransportOps
from p4reduce.transport.base import Transport
from p4reduce.wire.frames import FrameBuffer

_FREE, _TAKEN = CONSTANTS["P4R_FREE"], CONSTANTS["P4R_TAKEN"]
_ROUNDS_OF_BACKLOG = 4  # rows that wait for the link, for each slot, beyond which nothing is taken


class LinkLock:
    """`struct p4r_link_lock`: decides who drives a link's engines, the progress thread or a caller.

    The progress thread holds it at first, and always while it runs Python.

    Attributes:
        address: of the structure.

    Args:
        fd: of the link.
    """

    def __init__(self, fd: int) -> None:
        self._shared = LinkLockStructure(state=_TAKEN, fd=fd)
        self.address = ctypes.addressof(self._shared)

    @classmethod
    def of(cls, transport: Transport) -> LinkLock | None:
        """Return a lock for a transport; None if only the progress thread can use the transport.

        While nothing is in flight, rings in shared memory need no attention, and the peer of a UDP
        socket only an answer to a keepalive, some time.
        """
        link = transport.link
        if link is None or link.kind not in (LinkKind.SHARED, LinkKind.DATAGRAM):
            return None
        return cls(link.fileno())

    @property
    def iterations(self) -> int:
        """How often the thread has taken it."""
        return int(self._shared.iterations)

    @property
    def calls(self) -> int:
        """How often callers have taken it."""
        return int(self._shared.calls)

    @property
    def is_free(self) -> bool:
        """Whether a caller may take it."""
        return bool(self._shared.state == _FREE)


class NativeIteration:
    """`struct p4r_iteration`.

    Args:
        library: the functions.
        slots: the address of the slots to run.
        number: the number of these slots.
        outgoing: their frames.
        transport: to the switch; stays open as long as this is used.
        lock: of its link, if callers may drive it.
    """

    def __init__(
        self,
        library: Library,
        slots: int,
        number: int,
        outgoing: FrameBuffer,
        transport: Transport,
        lock: LinkLock | None,
    ) -> None:
        self._call = library.call
        # What Python does in each iteration would have to win the lock back again and again.
        self._run = library.run if transport.link is not None else library.run_locked
        self._ops = TransportOps(library, transport, outgoing)
        self._backlog = np.zeros(_ROUNDS_OF_BACKLOG * number, np.int64)
        self._received = transport.received
        self._iteration = IterationStructure(
            slots=slots,
            ops=self._ops.structure,
            received=self._received.rows_address,
            received_lengths=self._received.lengths.ctypes.data,
            backlog=self._backlog.ctypes.data,
            backlog_room=len(self._backlog),
            wake_fd=transport.wake_fd,
            asked_at=math.inf,
            lock=None if lock is None else lock.address,
            most=len(self._received),
            # Within this machine frames come as fast as its cores allow, in batches by themselves.
            backoff=BackoffStructure(allowed=transport.link is not None and not transport.lossless),
        )
        self._address = ctypes.addressof(self._iteration)

    def run(self, others: Sequence[Any], quiet: float) -> int:
        """Run until there is work for Python. On a link the interpreter's lock is released.

        Args:
            others: iterations of jobs on the same link, which run with this one.
            quiet: seconds without a driving caller, while nothing is in flight, after which the
                thread listens on the link itself.

        Returns:
            The reasons for returning, of all jobs together: `ITERATION_WOKEN` and so on.
        """
        iterations = (self._address, *(other._address for other in others))
        array = (ctypes.c_void_p * len(iterations))(*iterations)
        return int(self._run(array, len(iterations), int(quiet * 1000)))

    def run_for_caller(self, stream: int, iterations: int, counted: bool) -> int:
        """Run a collective in the thread that waits for it (`p4r_iteration_call`).

        Returns:
            `ITERATION_DONE`, `ITERATION_REFUSED`, or the reason for returning.
        """
        return int(self._call(self._address, stream, iterations, counted))

    def take_events(self) -> int:
        """Return the work that callers have left to the progress thread since the last call."""
        events, self._iteration.events = int(self._iteration.events), 0
        return events

    def raise_problem(self) -> None:
        """Raise the error that has broken the transport."""
        self._ops.raise_problem()

    @property
    def asked_at(self) -> float:
        """When the first frame since the switch's last answer was sent; infinite if none was."""
        return float(self._iteration.asked_at)

    @asked_at.setter
    def asked_at(self, at: float) -> None:
        self._iteration.asked_at = at

    @property
    def asked(self) -> int:
        """How many frames were sent since the switch's last answer."""
        return int(self._iteration.asked)

    @asked.setter
    def asked(self, often: int) -> None:
        self._iteration.asked = often
