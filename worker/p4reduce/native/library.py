# SPDX-License-Identifier: Apache-2.0
"""The functions of csrc/worker/worker.h, if there is machine code here."""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import POINTER, c_double, c_float, c_int64, c_uint32, c_uint64, c_void_p

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import runtime

_ABI = 1
_log = logging.getLogger("p4reduce")


class CodecStructure(ctypes.Structure):
    """`struct p4r_codec`."""

    _fields_ = (
        ("numbers", c_uint32),
        ("lane_bytes", c_uint32),
        ("inexact", c_uint32),
        ("unused", c_uint32),
        ("key", c_uint64),
        ("limit", c_double),
        ("divisor", c_double),
        ("scales", POINTER(c_double)),
        ("scales32", POINTER(c_float)),
        ("factors", POINTER(c_double)),
        ("factors32", POINTER(c_float)),
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

    _fields_ = (("pieces", POINTER(PieceStructure)), ("places", c_void_p), ("count", c_uint64))


class StreamStructure(ctypes.Structure):
    """`struct p4r_stream`."""

    _fields_ = (
        ("codec", CodecStructure),
        ("source", BlocksStructure),
        ("target", BlocksStructure),
        ("next_nonzero", c_void_p),
        ("exponents", c_void_p),
        ("count", c_int64),
        ("stripes", c_int64),
        ("sequence", c_int64),
        ("tag", c_uint32),
        ("format", c_uint32),
    )


class Library:
    """The functions, which keep the interpreter's lock: they never wait.

    To give the lock away would mean to win it back from whatever else computes in this process.
    `measure_freely` does so, for large tensors in the caller's own thread.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        locked = ctypes.PyDLL(library._name)
        array = c_void_p
        self.encode = locked.p4r_encode
        self.encode.argtypes = (*(array,) * 7, c_uint64)
        self.encode.restype = None
        self.decode = locked.p4r_decode
        self.decode.argtypes = (*(array,) * 6, c_uint64, c_uint32)
        self.decode.restype = None
        self.measure = locked.p4r_measure
        self.measure_freely = library.p4r_measure
        for measure in (self.measure, self.measure_freely):
            measure.argtypes = (c_uint32, c_uint32, array, c_uint64, c_uint64, array, array)
            measure.restype = c_int64


@functools.cache
def _load() -> Library | None:
    try:
        library = runtime()
        if library.p4r_worker_abi() != _ABI:
            raise NativeUnavailableError("the library is of another version than the package")
        return Library(library)
    except NativeUnavailableError as reason:
        _log.info("the worker computes with numpy: %s", reason)
        return None


def native_library() -> Library | None:
    """Return the functions, or None where there is no machine code or it is turned off."""
    return _load()
