# SPDX-License-Identifier: Apache-2.0
"""How the loop in C reaches the switch: by a link, or by a Python transport's methods."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

import numpy as np

from p4reduce.machine_code import (
    CONSTANTS,
    TRANSPORT_DROP,
    TRANSPORT_LOOK,
    TRANSPORT_SEND,
    TRANSPORT_WAIT,
    Library,
    TransportOpsStructure,
)
from p4reduce.transport.base import Transport
from p4reduce.wire.format import FRAME_STRIDE
from p4reduce.wire.frames import FrameBuffer

_READY, _WOKEN = CONSTANTS["P4R_LINK_READY"], CONSTANTS["P4R_LINK_WOKEN"]
_FOR_ROOM = CONSTANTS["P4R_LINK_FOR_ROOM"]
_INT64 = ctypes.POINTER(ctypes.c_int64)


class TransportOps:
    """`struct p4r_transport_ops` of one job.

    Attributes:
        structure: for C, valid as long as this object and the transport exist.

    Args:
        library: the functions.
        transport: to the switch.
        outgoing: the job's frames.
    """

    def __init__(self, library: Library, transport: Transport, outgoing: FrameBuffer) -> None:
        self._transport = transport
        self._problems: list[BaseException] = []
        if transport.link is not None:
            # It may be closed: a broken port's thread goes on with its engines, and no new link.
            self.structure = library.link_transport_ops(transport.link.address)
        else:
            self.structure = _by_python(transport, outgoing, self._problems)

    def raise_problem(self) -> None:
        """Raise the error that has broken the transport."""
        if self._problems:
            raise self._problems[0]
        self._transport.receive()  # a link that is broken says so at each call


def _by_python(
    transport: Transport, outgoing: FrameBuffer, problems: list[BaseException]
) -> ctypes.Structure:
    """Return calls of a transport's methods; what these raise is appended to `problems`."""
    received = transport.received
    starts = received.address + np.arange(len(received), dtype=np.uint64) * np.uint64(FRAME_STRIDE)

    def guarded(call: Callable[..., int]) -> Callable[..., int]:
        def run(*arguments: int) -> int:
            try:
                return call(*arguments)
            except BaseException as problem:  # nothing can be raised through C
                problems.append(problem)
                return -errno.EIO

        return run

    @guarded
    def send(_link: int, _base: int, _stride: int, _lengths: int, rows: int, count: int) -> int:
        numbers = np.ctypeslib.as_array(ctypes.cast(rows, _INT64), (count,))
        return transport.send(outgoing, numbers.copy())

    @guarded
    def look(_link: int, *arguments: int) -> int:
        *_, frames, _most = arguments
        count = transport.receive()
        ctypes.memmove(frames, starts.ctypes.data, count * starts.itemsize)
        return count

    @guarded
    def wait(_link: int, _wake_fd: int, milliseconds: int, how: int) -> int:
        woken = transport.wait(milliseconds / 1000, writable=bool(how & _FOR_ROOM))
        return _WOKEN if woken else _READY

    return TransportOpsStructure(
        None, TRANSPORT_SEND(send), TRANSPORT_LOOK(look), TRANSPORT_DROP(), TRANSPORT_WAIT(wait)
    )
