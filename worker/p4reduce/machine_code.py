# SPDX-License-Identifier: Apache-2.0
"""The worker's functions in C, if there is machine code here.

What they do is said in native/p4reduce_native/csrc/worker/worker.h. A rank cannot do without,
unless it is the reference worker. Where there is neither compiler nor compiled library, exponents
and lanes are found as that one does it, number by number.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from ctypes import (
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import engine


class CodecStructure(ctypes.Structure):
    """`struct p4r_codec`."""

    _fields_ = (
        ("numbers", c_uint32),
        ("lane_bits", c_uint32),
        ("inexact", c_uint32),
        ("unused", c_uint32),
        ("key", c_uint64),
        ("limit", c_double),
        ("divisor", c_double),
        ("scales", c_void_p),
        ("scales32", c_void_p),
        ("factors", c_void_p),
        ("factors32", c_void_p),
    )


class PieceStructure(ctypes.Structure):
    """`struct p4r_piece`."""

    _fields_ = (
        ("first", c_int64),
        ("full", c_int64),
        ("tail_bytes", c_int64),
        ("base", c_void_p),
    )


class BlocksStructure(ctypes.Structure):
    """`struct p4r_blocks`."""

    _fields_ = (("pieces", c_void_p), ("places", c_void_p), ("count", c_uint64))


_CLASSES = 8  # P4R_CLASSES
MOST_STATUSES, MOST_REPEATS = 16, 256
"""P4R_STATUSES_MOST, P4R_REPEATS_MOST"""


class HeardStructure(ctypes.Structure):
    """An entry of `struct p4r_trace`."""

    _fields_ = (("at", c_double), ("heard", c_uint64))


class RepeatStructure(ctypes.Structure):
    """`struct p4r_repeat`."""

    _fields_ = (("at", c_double), ("frames", c_int64))


class TraceStructure(ctypes.Structure):
    """`struct p4r_trace`."""

    _fields_ = (
        ("opened", c_double),
        ("all_there", c_double),
        ("last_answer", c_double),
        ("last_made", c_double),
        ("repeated", c_uint64),
        ("status_count", c_uint32),
        ("repeat_count", c_uint32),
        ("statuses", HeardStructure * MOST_STATUSES),
        ("repeats", RepeatStructure * MOST_REPEATS),
    )


class StreamStructure(ctypes.Structure):
    """`struct p4r_stream`."""

    _fields_ = (
        ("codec", CodecStructure),
        ("source", BlocksStructure),
        ("target", BlocksStructure),
        ("residual", BlocksStructure),
        ("next_nonzero", c_void_p),
        ("exponents", c_void_p),
        ("count", c_int64),
        ("stripes", c_int64),
        ("sequence", c_int64),
        ("first", c_int64),
        ("offset", c_int64),
        ("slots", c_int64),
        ("before", c_int64),
        ("left", c_void_p),
        ("deadline", c_double),
        ("tag", c_uint32),
        ("format", c_uint32),
        ("trace", c_void_p),
        ("reads", c_uint32),
        ("writes", c_uint32),
    )


COUNTED = (
    "frames_sent",
    "bytes_sent",
    "frames_received",
    "bytes_received",
    "retransmissions",
    "spurious",
    "padded",
    "duplicates",
    "stale",
    "statuses",
    "invalid",
    "collectives",
    "blocks",
    "blocks_announced",
    "blocks_sent",
    "empty_sent",
    "blocks_received",
    "overflows",
)
"""The fields of `struct p4r_counts`, named as in `statistics.Counts`."""


class TimeoutStructure(ctypes.Structure):
    """`struct p4r_timeout`."""

    _fields_ = tuple(
        (name, c_double)
        for name in (
            "seconds",
            "floor",
            "least_ceiling",
            "ceiling",
            "smoothed",
            "variation",
            "longest",
            "window_ends",
            "answered_up_to",
            "answered_at",
        )
    )


class CountsStructure(ctypes.Structure):
    """`struct p4r_counts`."""

    _fields_ = tuple((name, c_int64) for name in COUNTED)


VISIT = ctypes.CFUNCTYPE(None, c_int64, c_uint32, c_void_p, c_uint32, c_void_p)
"""`p4r_visit`"""


class SlotsStructure(ctypes.Structure):
    """`struct p4r_slots`."""

    _fields_ = (
        *((name, c_uint32) for name in ("slots", "job", "levels", "deferral")),
        *((name, c_uint32) for name in ("rank", "asks_for_all", "tries_a_doubling", "classes")),
        ("starts", c_uint32 * _CLASSES),
        ("stretch", c_double),
        *((name, c_uint64) for name in ("everybody", "own_bit")),
        *((name, c_uint64 * 6) for name in ("wanted", "mask")),
        ("visit", VISIT),
        *((name, c_void_p) for name in ("live", "streams", "over")),
        *((name, c_uint32) for name in ("live_count", "over_count", "room", "trouble")),
        *(
            (name, c_void_p)
            for name in (
                "expected",
                "block",
                "announced",
                "row",
                "owner",
                "next_round",
                "exponent",
                "parts",
                "heard",
                "level",
                "outgoing",
                "lengths",
                "kept",
                "left",
                "tries",
                "order",
                "sent_at",
                "due",
                "opening",
                "waiting",
                "round_trips",
            )
        ),
        ("timeout", TimeoutStructure),
        ("opening_timeout", TimeoutStructure),
        *((name, c_double) for name in ("latest", "silence", "heard_switch_at")),
        *((name, c_int64) for name in ("window", "growth", "settling", "results", "troubled")),
        *((name, c_int64) for name in ("floor", "round_trip_count")),
        *((name, c_uint32) for name in ("backed_off", "some_open", "holds_back", "queued_count")),
        ("counts", CountsStructure),
        *(
            (name, c_int64)
            for name in ("trouble_slot", "trouble_level", "trouble_sequence", "next_sequence")
        ),
        ("trouble_bits", c_uint64),
        *(
            (name, c_void_p)
            for name in (
                "queued",
                "completed",
                "how",
                "next",
                "sorted",
                "samples",
                "numbers",
                "visited",
                "visiting",
            )
        ),
    )


class BackoffStructure(ctypes.Structure):
    """`struct p4r_receive_backoff`."""

    _fields_ = (
        ("allowed", c_uint32),
        ("counted", c_uint32),
        *((name, c_double) for name in ("counted_at", "apart", "received_at")),
    )


LINK_READY, LINK_WOKEN = 1, 2
"""P4R_LINK_READY, P4R_LINK_WOKEN"""

ITERATION_WOKEN, ITERATION_EVENTS, ITERATION_OVERSLEPT, ITERATION_BROKEN = 1, 2, 8, 16
ITERATION_PAUSED, ITERATION_DONE, ITERATION_REFUSED = 32, 64, 128
"""P4R_TURN_…, as bits. Plain numbers: flags of an enumeration cost microseconds before Python
3.12."""

TRANSPORT_SEND = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_int)
TRANSPORT_LOOK = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_void_p, c_void_p, c_int
)
TRANSPORT_DROP = ctypes.CFUNCTYPE(None, c_void_p, c_int)
TRANSPORT_WAIT = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)


class TransportOpsStructure(ctypes.Structure):
    """`struct p4r_transport_ops`."""

    _fields_ = (
        ("link", c_void_p),
        ("send_rows", TRANSPORT_SEND),
        ("look", TRANSPORT_LOOK),
        ("drop", TRANSPORT_DROP),
        ("wait", TRANSPORT_WAIT),
    )


class IterationStructure(ctypes.Structure):
    """`struct p4r_iteration`."""

    _fields_ = (
        ("slots", c_void_p),
        ("ops", TransportOpsStructure),
        *((name, c_void_p) for name in ("received", "received_lengths", "backlog")),
        ("asked_at", c_double),
        ("left_at", c_double),
        ("asked", c_int64),
        ("backlog_count", c_uint32),
        ("backlog_room", c_uint32),
        ("wake_fd", c_int32),
        ("error", c_int32),
        ("lock", c_void_p),
        ("events", c_uint32),
        ("most", c_uint32),
        ("backoff", BackoffStructure),
    )


class LinkLockStructure(ctypes.Structure):
    """`struct p4r_link_lock`."""

    _fields_ = (
        *((name, c_uint32) for name in ("state", "iterations", "calls")),
        ("fd", c_int32),
        ("unfinished", c_void_p),
    )


class Library:
    """The functions. They never wait, so they keep the interpreter's lock.

    After releasing the lock, a thread competes for it with all others. Only `measure_freely`, for
    large tensors in the caller's thread, and `run` and `call`, which wait, release it. `run_locked`
    waits in Python, which releases it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        locked = ctypes.PyDLL(library._name)
        array = c_void_p
        self.encode = locked.p4r_encode
        self.encode.argtypes = (*(array,) * 8, c_uint64)
        self.encode.restype = None
        self.withhold = locked.p4r_block_withhold
        self.withhold.argtypes = (*(array,) * 3, c_int64)
        self.withhold.restype = None
        self.decode = locked.p4r_decode
        self.decode.argtypes = (*(array,) * 6, c_uint64, c_uint32)
        self.decode.restype = None
        self.submit = locked.p4r_submit
        self.submit.argtypes = (array, array, c_double)
        self.submit.restype = None
        self.receive = locked.p4r_receive
        self.receive.argtypes = (array, array, array, c_uint32, c_double)
        self.receive.restype = None
        self.expire = locked.p4r_expire
        self.expire.argtypes = (array, c_double)
        self.expire.restype = None
        self.next_due = locked.p4r_next_due
        self.next_due.argtypes = (array, ctypes.POINTER(c_uint32))
        self.next_due.restype = c_double
        self.release_frames = locked.p4r_release
        self.release_frames.argtypes = (array, array)
        self.release_frames.restype = c_uint32
        self.sent = locked.p4r_sent
        self.sent.argtypes = (array, array, c_uint64, c_double)
        self.sent.restype = None
        self.stop = locked.p4r_stop
        self.stop.argtypes = (array,)
        self.stop.restype = None
        self.expire_timers = locked.p4r_expire_timers
        self.expire_timers.argtypes = (array, c_int32, c_double)
        self.expire_timers.restype = None
        self.take_handed = locked.p4r_take_handed
        self.take_handed.argtypes = (array, array, c_uint32, c_double)
        self.take_handed.restype = None
        self.resume = locked.p4r_resume
        self.resume.argtypes = (array, c_double)
        self.resume.restype = None
        self.measure = locked.p4r_measure
        self.measure_freely = library.p4r_measure
        self.look_ahead = locked.p4r_look_ahead
        self.look_ahead.argtypes = (array, c_uint64, c_uint64, array)
        self.look_ahead.restype = c_uint64
        for measure in (self.measure, self.measure_freely):
            measure.argtypes = (c_uint32, c_uint32, array, c_uint64, c_uint64, *(array,) * 3)
            measure.restype = c_int64
        self.run, self.run_locked = library.p4r_iteration_run, locked.p4r_iteration_run
        for run in (self.run, self.run_locked):
            run.argtypes = (array, c_uint32, c_int32)
            run.restype = c_uint32
        self.call = library.p4r_iteration_call
        self.call.argtypes = (array, array, c_uint32, c_uint32)
        self.call.restype = c_uint32
        self._library = library

    def link_transport_ops(self, link: int) -> TransportOpsStructure:
        """Return the functions of a `struct p4r_link`, which exist on Linux only."""
        library = self._library
        return TransportOpsStructure(
            link,
            ctypes.cast(library.p4r_link_send_rows, TRANSPORT_SEND),
            ctypes.cast(library.p4r_link_look, TRANSPORT_LOOK),
            ctypes.cast(library.p4r_link_drop, TRANSPORT_DROP),
            ctypes.cast(library.p4r_link_wait, TRANSPORT_WAIT),
        )


SHARED: Mapping[str, type[ctypes.Structure]] = {
    "p4r_codec": CodecStructure,
    "p4r_piece": PieceStructure,
    "p4r_blocks": BlocksStructure,
    "p4r_trace_heard": HeardStructure,
    "p4r_repeat": RepeatStructure,
    "p4r_trace": TraceStructure,
    "p4r_stream": StreamStructure,
    "p4r_timeout": TimeoutStructure,
    "p4r_counts": CountsStructure,
    "p4r_slots": SlotsStructure,
    "p4r_receive_backoff": BackoffStructure,
    "p4r_transport_ops": TransportOpsStructure,
    "p4r_iteration": IterationStructure,
    "p4r_link_lock": LinkLockStructure,
}
"""All structures that both sides see, by their names in C."""


class _LayoutStructure(ctypes.Structure):
    """`struct p4r_layout`."""

    _fields_ = (("name", c_char_p), ("offset", c_uint32), ("size", c_uint32))


def layouts_here() -> dict[str, tuple[int, int]]:
    """Return offset and size of each field of `SHARED`, and each structure's size, in bytes."""
    layouts = {}
    for name, structure in SHARED.items():
        layouts[name] = 0, ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            at = getattr(structure, field)
            layouts[f"{name}.{field}"] = at.offset, at.size
    return layouts


def layouts_there(library: ctypes.CDLL) -> dict[str, tuple[int, int]]:
    """Return the same as the library was compiled with."""
    table = library.p4r_worker_layouts
    table.restype = ctypes.POINTER(_LayoutStructure)
    layouts = {}
    for one in table():
        if one.name is None:
            break
        layouts[one.name.decode()] = one.offset, one.size
    return layouts


def check_layouts(library: ctypes.CDLL) -> None:
    """Compare both.

    Raises:
        NativeUnavailableError: they differ; the message names the first difference.
    """
    here, there = layouts_here(), layouts_there(library)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise NativeUnavailableError(
                f"the library and the package have different versions: {name} is at "
                f"{_said(there.get(name))} in the library, and at {_said(here.get(name))} here"
            )


def _said(place: tuple[int, int] | None) -> str:
    return "no place" if place is None else f"byte {place[0]} ({place[1]} bytes)"


@functools.cache
def _load() -> Library | NativeUnavailableError:
    try:
        return Library(_checked(engine()))
    except NativeUnavailableError as reason:
        return reason


def _checked(library: ctypes.CDLL) -> ctypes.CDLL:
    check_layouts(library)
    return library


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
