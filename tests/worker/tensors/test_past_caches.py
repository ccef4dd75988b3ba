# SPDX-License-Identifier: Apache-2.0
"""Sums of large tensors are written past the caches: the same bytes, wherever an output lies."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.communicator import Communicator
from p4reduce.machine_code import BlocksStructure, CodecStructure, PieceStructure, native_library
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import engine
from worker_system import running_system

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no machine code here")

ENGINE = CHeader("worker/iteration.h")
PARTS = ENGINE.enumerations["p4r_part"]
FIRST, SECOND, WHOLE = (PARTS[f"P4R_{part}"] for part in ("FIRST", "SECOND", "WHOLE"))
LANES = 256
LINE = 64  # bytes
UNTOUCHED = 0xA5


def decoded(count: int, offset: int, part: int, past_caches: bool) -> npt.NDArray[np.uint8]:
    """Memory with `count` integers of a block at an offset in it, after sums have come."""
    memory = np.full(4 * LANES + 4 * LINE, UNTOUCHED, np.uint8)
    first_line = -memory.ctypes.data % LINE
    lanes = np.arange(1, LANES + 1, dtype=">i4")
    piece = PieceStructure(
        0, count // LANES, 4 * (count % LANES), memory.ctypes.data + first_line + offset
    )
    blocks = BlocksStructure(ctypes.addressof(piece), None, 1)
    codec = CodecStructure(numbers=0, lane_bits=32, limit=-1)
    ENGINE.functions(engine()).p4r_block_decode(
        ctypes.byref(codec), ctypes.byref(blocks), 0, 0, lanes.ctypes.data, part, past_caches
    )
    return memory[first_line : first_line + offset + 4 * LANES + LINE]


@pytest.mark.parametrize("part", [FIRST, SECOND, WHOLE])
@pytest.mark.parametrize("offset", [0, 1, 4, 16, 63])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 127, 128, 129, 255, 256])
def test_the_bytes_of_normal_writes(count: int, offset: int, part: int) -> None:
    found = decoded(count, offset, part, past_caches=True)
    np.testing.assert_array_equal(found, decoded(count, offset, part, past_caches=False))
    first = LANES // 2 if part == SECOND else 0
    last = LANES // 2 if part == FIRST else LANES
    begin, there = offset + 4 * first, max(0, min(count, last) - first)
    assert (found[:begin] == UNTOUCHED).all()
    assert (found[begin + 4 * there :] == UNTOUCHED).all()
    numbers = found[begin : begin + 4 * there].copy().view(np.int32)
    np.testing.assert_array_equal(numbers, np.arange(1, there + 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16])
def test_a_large_output_anywhere(dtype: type[np.generic]) -> None:
    """It has an odd length, and lies where no line of a cache begins."""
    length = (3 << 20) // np.dtype(dtype).itemsize + 1

    def work(comm: Communicator) -> npt.NDArray[np.generic]:
        memory = np.zeros(length + 2, dtype)
        numbers = (np.arange(length) % 100).astype(dtype)
        comm.allreduce(numbers, out=memory[1:-1])
        return memory

    wanted = np.concatenate([[0], 2 * (np.arange(length) % 100), [0]])
    with running_system(lambda place: EmbeddedSwitch(place, 2), ports=2) as system:
        for found in system.run(2, work):
            np.testing.assert_allclose(found, wanted, rtol=1e-3 if dtype is np.float16 else 1e-6)
