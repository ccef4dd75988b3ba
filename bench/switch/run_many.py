# SPDX-License-Identifier: Apache-2.0
"""Many frames through a compiled program, without ports (`run_many.c`)."""

from __future__ import annotations

import ctypes
import functools
import time
from pathlib import Path
from typing import Any

from p4reduce_native.compile import compile_shared
from p4reduce_native.library import CSRC
from p4reduce_switch.native_pipeline import NativePipeline


@functools.cache
def _library() -> Any:
    path = compile_shared("run_many", [Path(__file__).with_suffix(".c")], include=[CSRC])
    library = ctypes.CDLL(str(path))
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    library.bench_run_many.restype = u64
    text = ctypes.c_char_p
    library.bench_run_many.argtypes = (pointer, pointer, pointer, u32, text, text, u32, u64)
    return library


def run_many(pipeline: NativePipeline, ports: bytes, frames: bytes, length: int) -> int:
    """Run frames of a length in bytes, and return the number of copies, which are dropped.

    `ports` has the ingress port of each, as 32 bits in the processor's byte order.
    """
    if length < 1 or len(frames) % length or len(ports) != 4 * (len(frames) // length):
        raise ValueError(f"{len(frames)} bytes are not {len(ports) // 4} frames of {length}")
    entry = pipeline.native
    assert entry is not None
    given = (len(ports) // 4, ports, frames, length, time.monotonic_ns())
    copies: int = _library().bench_run_many(entry.process, entry.release, entry.state, *given)
    pipeline.serve_events()
    return copies
