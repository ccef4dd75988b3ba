# SPDX-License-Identifier: Apache-2.0
"""The worker's functions in C, if there is machine code here.

What they do is said in native/p4reduce_native/csrc/worker/worker.h. A rank cannot do without,
unless it is the reference worker. Where there is neither compiler nor compiled library, exponents
and lanes are found as that one does it, number by number.
"""

from __future__ import annotations

import ctypes
import functools

from p4reduce_native.c_header import CHeader, field_types
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import engine, keeping_lock

_HEADER = CHeader("worker/iteration.h")
CONSTANTS = _HEADER.constants
"""Those of the engine's headers, by their names in C."""

PieceStructure = _HEADER.structure("p4r_piece")
BlocksStructure = _HEADER.structure("p4r_blocks")
CodecStructure = _HEADER.structure("p4r_codec")
TraceStructure = _HEADER.structure("p4r_trace")
ProgressStructure = _HEADER.structure("p4r_progress")
StreamStructure = _HEADER.structure("p4r_stream")
SlotsStructure = _HEADER.structure("p4r_slots")
BackoffStructure = _HEADER.structure("p4r_receive_backoff")
TransportOpsStructure = _HEADER.structure("p4r_transport_ops")
IterationStructure = _HEADER.structure("p4r_iteration")
LinkLockStructure = _HEADER.structure("p4r_link_lock")

COUNTED = tuple(field_types(_HEADER.structure("p4r_counts")))
"""The fields of `struct p4r_counts`, named as in `statistics.Counts`."""

VISIT = _HEADER.callback("p4r_visit")

_TRANSPORT_OPS = field_types(TransportOpsStructure)
TRANSPORT_SEND, TRANSPORT_LOOK = _TRANSPORT_OPS["send_rows"], _TRANSPORT_OPS["look"]
TRANSPORT_DROP, TRANSPORT_WAIT = _TRANSPORT_OPS["drop"], _TRANSPORT_OPS["wait"]
TRANSPORT_UNBIND = _TRANSPORT_OPS["unbind"]

ITERATION_OVERSLEPT = CONSTANTS["P4R_ITERATION_OVERSLEPT"]
ITERATION_BROKEN = CONSTANTS["P4R_ITERATION_BROKEN"]
ITERATION_PAUSED = CONSTANTS["P4R_ITERATION_PAUSED"]
ITERATION_DONE = CONSTANTS["P4R_ITERATION_DONE"]
"""Bits. Plain numbers: flags of an enumeration cost microseconds before Python 3.12."""


class Library:
    """The functions. They never wait, so they keep the interpreter's lock.

    After releasing the lock, a thread competes for it with all others. Only `measure_freely`, for
    large tensors in the caller's thread, and `run` and `call`, which wait, release it. `run_locked`
    waits in Python, which releases it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        locked, free = _HEADER.functions(keeping_lock(library)), _HEADER.functions(library)
        self.encode = locked.p4r_encode
        self.withhold = locked.p4r_block_withhold
        self.decode = locked.p4r_decode
        self.submit = locked.p4r_submit
        self.receive = locked.p4r_receive
        self.expire = locked.p4r_expire
        self.next_due = locked.p4r_next_due
        self.release_frames = locked.p4r_release
        self.sent = locked.p4r_sent
        self.stop = locked.p4r_stop
        self.expire_timers = locked.p4r_expire_timers
        self.take_handed = locked.p4r_take_handed
        self.resume = locked.p4r_resume
        self.measure, self.measure_freely = locked.p4r_measure, free.p4r_measure
        self.look_ahead = locked.p4r_look_ahead
        self.run, self.run_locked = free.p4r_iteration_run, locked.p4r_iteration_run
        self.call = free.p4r_iteration_call
        self._library = library

    def link_transport_ops(self, link: int) -> ctypes.Structure:
        """Return the functions of a `struct p4r_link`, which exist on Linux only."""
        library = self._library
        return TransportOpsStructure(
            link,
            ctypes.cast(library.p4r_link_send_rows, TRANSPORT_SEND),
            ctypes.cast(library.p4r_link_look, TRANSPORT_LOOK),
            ctypes.cast(library.p4r_link_drop, TRANSPORT_DROP),
            ctypes.cast(library.p4r_link_wait, TRANSPORT_WAIT),
            ctypes.cast(library.p4r_link_unbind, TRANSPORT_UNBIND),
        )


@functools.cache
def _load() -> Library | NativeUnavailableError:
    try:
        _HEADER.check_unchanged()
        return Library(engine())
    except NativeUnavailableError as reason:
        return reason


def engine_library() -> Library:
    """Return the functions, for callers that need them.

    Raises:
        NativeUnavailableError: machine code is not available; says why.
    """
    found = _load()
    if isinstance(found, Library):
        return found
    raise found


@functools.cache
def native_library() -> Library | None:
    """Return the functions, or None without machine code."""
    found = _load()
    return found if isinstance(found, Library) else None
