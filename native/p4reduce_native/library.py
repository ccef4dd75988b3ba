# SPDX-License-Identifier: Apache-2.0
"""The runtime library: all of `csrc/` except the parts of compiled P4 programs."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.frame_lanes import FRAME_LANES, SUMS_WORDS

CSRC = Path(__file__).parent / "csrc"
_PROGRAM_PARTS = "p4"  # belongs to compiled programs, which are libraries of their own


def runtime_sources() -> list[Path]:
    """Return the source files of the runtime library."""
    return [
        path
        for path in sorted(CSRC.rglob("*.c"))
        if path.relative_to(CSRC).parts[0] != _PROGRAM_PARTS
    ]


def engine_sources(csrc: Path = CSRC) -> list[Path]:
    """Return the source files of the worker's engine, which does not need Linux."""
    return sorted((csrc / "worker").glob("*.c"))


@functools.cache
def engine() -> ctypes.CDLL:
    """Return the library that a worker needs: on Linux the runtime library, elsewhere its portable
    part.

    Raises:
        NativeUnavailableError: it is not available; says how to get it.
    """
    if sys.platform == "linux":
        return runtime()
    return load(
        compile_shared("engine", engine_sources(), include=[CSRC], flags=_size(), anywhere=True)
    )


@functools.cache
def runtime() -> ctypes.CDLL:
    """Return the runtime library, one per process. Its calls release the interpreter lock.

    Raises:
        NativeUnavailableError: it is not available; says how to get it.
    """
    return load(compile_shared("runtime", runtime_sources(), include=[CSRC], flags=_size()))


def _size() -> tuple[str, ...]:
    """What frames are, where they are not as csrc/worker/header.h has them."""
    size = () if FRAME_LANES == 256 else (f"-DP4R_PAYLOAD_BYTES={4 * FRAME_LANES}",)
    return (*size, "-DP4R_SUMS_WORDS") if SUMS_WORDS else size


def load(path: Path) -> ctypes.CDLL:
    """Load a compiled file.

    Raises:
        NativeUnavailableError: the system's loader refuses it.
    """
    try:
        return ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        raise NativeUnavailableError(f"cannot load {path}: {error}") from None


def keeping_lock(library: ctypes.CDLL) -> ctypes.PyDLL:
    """The same library, whose calls keep the interpreter lock: of functions that never wait."""
    return ctypes.PyDLL(library._name, handle=library._handle)
