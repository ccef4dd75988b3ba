# SPDX-License-Identifier: Apache-2.0
"""Sparse arrays through both switches: the same sums as of dense ones, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce import SparseBlocks, SparseRows
from worker_system import System

Array = npt.NDArray[Any]

BLOCK = 256


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_sums_are_those_of_dense_arrays(
    system: System, rng: np.random.Generator, dtype: type, faults: int
) -> None:
    """Of rows that repeat and overlap, of blocks, and with a rank that has the array dense."""
    world = 3
    cases = []
    for width in (7, 64, BLOCK, 700):
        rows = int(rng.integers(1, 60_000 // width))
        density = rng.choice([0.0, 0.01, 0.3])
        given = [int(density * rows * rng.random()) for _ in range(world)]
        arrays = [
            SparseRows(
                rng.integers(0, rows, k),
                (rng.standard_normal((k, width)) * 1e6).astype(dtype),
                (rows, width),
            )
            for k in given
        ]
        cases.append(arrays)
    blocks = [np.sort(rng.choice(90, 20, replace=False)) for _ in range(world)]
    values = [(rng.standard_normal((20, BLOCK)) * 1e6).astype(dtype) for _ in range(world)]

    def work(comm: p4reduce.Communicator) -> list[tuple[Any, Array]]:
        results: list[tuple[Any, Array]] = []
        for n, case in enumerate(cases):
            mine = case[comm.rank]
            wanted = comm.allreduce(mine.to_dense())
            if comm.rank == n % world:
                assert comm.allreduce(mine.to_dense()).tobytes() == wanted.tobytes()
            else:
                results.append((comm.allreduce_sparse(mine), wanted))
        some = SparseBlocks(blocks[comm.rank], values[comm.rank], 90 * BLOCK)
        handle = comm.allreduce_sparse_async(some)
        results.append((handle.wait(), comm.allreduce_sparse(some, dense=True)))
        return results

    for results in system.run(world, work):
        for sparse, dense in results:
            assert sparse.to_dense().tobytes() == dense.tobytes()
            numbers = sparse.indices if isinstance(sparse, SparseRows) else sparse.numbers
            width = dense.size // len(dense) if dense.ndim > 1 else BLOCK
            assert np.array_equal(numbers, np.flatnonzero(dense.reshape(-1, width).any(axis=1)))


def test_allreduce_takes_sparse_arrays_too(system: System, rng: np.random.Generator) -> None:
    """As they are and asynchronously; the result is of the same kind, or dense in `out`."""
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.zeros((3, 500, 64), np.float32)
    dense[:, rng.choice(500, 20, replace=False)] = rng.standard_normal((20, 64))

    def work(comm: p4reduce.Communicator) -> tuple[Array, SparseRows, SparseBlocks, Any, Array]:
        mine = dense[comm.rank]
        rows = np.flatnonzero(mine.any(axis=1))
        as_rows = SparseRows(rows, mine[rows], mine.shape)
        as_blocks = SparseBlocks(rows, mine[rows], mine.size)
        into = np.full(mine.shape, np.nan, np.float32)
        assert comm.allreduce(as_rows, out=into) is into
        found = (
            comm.allreduce(as_rows),
            comm.allreduce_async(as_blocks).wait(),
            comm.allreduce(sparse.csr_matrix(mine)),
        )
        return comm.allreduce(mine), *found, into

    for wanted, as_rows, as_blocks, matrix, into in system.run(3, work):
        assert np.array_equal(as_rows.to_dense(), wanted)
        assert np.array_equal(as_blocks.to_dense(), wanted.ravel())
        assert matrix.format == "csr"
        assert np.array_equal(matrix.toarray(), wanted)
        assert np.array_equal(into, wanted)


def test_scipy_matrices_and_means(system: System, rng: np.random.Generator) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = rng.standard_normal((3, 300, 200)) * (rng.random((3, 300, 200)) < 0.01)

    def work(comm: p4reduce.Communicator) -> tuple[Any, Array]:
        mine = sparse.csr_array(dense[comm.rank])
        return comm.allreduce_sparse(mine, p4reduce.MEAN), comm.allreduce(
            dense[comm.rank], p4reduce.MEAN
        )

    for result, mean in system.run(3, work):
        assert result.format == "csr"
        assert np.array_equal(result.toarray(), mean)


def test_a_nan_makes_its_block_nan(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        values = np.full((1, 2), [1, np.nan if comm.rank else 1], np.float32)
        return comm.allreduce_sparse(SparseRows([200], values, (300, 2)))

    for result in system.run(2, work):
        assert result.indices.tolist() == list(range(BLOCK // 2, 2 * BLOCK // 2))
        assert np.isnan(result.values).all()


def test_only_blocks_with_something_are_sent(system: System) -> None:
    count = 4000
    own = [np.arange(rank, 400, 10) * 7 for rank in range(3)]

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        values = np.ones((len(own[comm.rank]), BLOCK), np.float32)
        comm.allreduce_sparse(SparseBlocks(own[comm.rank], values, count * BLOCK))
        return comm.stats

    for rank, stats in enumerate(system.run(3, work)):
        assert stats.blocks_sent == len(own[rank])
        assert stats.blocks_received >= sum(map(len, own))  # halves count each
        assert stats.frames_sent - stats.retransmissions == sum(map(len, own)) + 32
