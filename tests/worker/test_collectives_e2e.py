# SPDX-License-Identifier: Apache-2.0
"""The other collectives through both switches: right, bit for bit, and no dearer than they have to
be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce.wire import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from worker_system import System

Array = npt.NDArray[Any]

BLOCK_BYTES = 1024
SLOTS = 32  # the controller's default
RECORD = np.dtype([("when", "<M8[us]"), ("what", "S3"), ("much", "<f4")])


def awkward(rng: np.random.Generator, dtype: npt.DTypeLike, nbytes: int) -> Array:
    """Any bytes at all, some blocks of them zero: among them are NaN of all kinds."""
    size = nbytes // np.dtype(dtype).itemsize
    data = rng.integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8)
    for start in range(0, len(data), BLOCK_BYTES):
        if rng.random() < 0.3:
            data[start : start + BLOCK_BYTES] = 0
    return data.view(dtype)


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_broadcast_is_bit_for_bit(system: System, rng: np.random.Generator, faults: int) -> None:
    world = 3
    kinds: list[Any] = [np.float32, np.float64, np.float16, np.int8, np.complex128, RECORD, ">u2"]
    sizes = [16, 1009, 1024, 1025 + 15, 40 * BLOCK_BYTES, 50 * BLOCK_BYTES + 39]
    arrays = [awkward(rng, kind, int(rng.choice(sizes))) for kind in kinds * 2]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324])
    arrays += [special, np.full((3, 700), -0.0, np.float32), np.array(True), np.empty((0, 3))]

    def work(comm: p4reduce.Communicator) -> list[Array]:
        handles = []
        for n, array in enumerate(arrays):
            root = n % world
            other = np.frombuffer(b"\1" * array.nbytes, array.dtype).reshape(array.shape).copy()
            mine = array.copy() if comm.rank == root else other
            in_place = mine if n % 2 else None
            handles.append(comm.broadcast_async(mine, root, out=in_place))
        return [handle.wait() for handle in handles]

    for received in system.run(world, work):
        for array, result in zip(arrays, received, strict=True):
            assert result.tobytes() == array.tobytes()
            assert (result.shape, result.dtype) == (array.shape, array.dtype)


def test_broadcast_is_sent_once(system: System, rng: np.random.Generator) -> None:
    blocks, zero = 120, 20
    array = rng.integers(1, 100, blocks * BLOCK_BYTES, np.uint8)
    array[50 * BLOCK_BYTES : (50 + zero) * BLOCK_BYTES] = 0

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        comm.broadcast(array if comm.rank == 2 else np.zeros_like(array), root=2)
        return comm.stats

    for rank, stats in enumerate(system.run(4, work)):
        sent = blocks - zero if rank == 2 else 0
        assert stats.blocks_sent == sent
        assert stats.blocks_received == blocks - zero  # the root gets them back
        bare = blocks - zero - sent + SLOTS
        expected = sent * PAYLOAD_FRAME_BYTES + bare * EMPTY_FRAME_BYTES
        assert stats.bytes_sent - stats.retransmissions * PAYLOAD_FRAME_BYTES == expected
