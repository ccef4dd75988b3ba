# SPDX-License-Identifier: Apache-2.0
"""Sparse elements through both switches: the union is agreed on, and its values are summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce import SparseElements, SparseRows
from worker_system import NO_OPERATION, System

Array = npt.NDArray[Any]


def elements(
    rng: np.random.Generator, size: int, count: int, dtype: type, largest: int = 15
) -> SparseElements:
    """At random places; the values are not zero."""
    values = rng.integers(1, largest, count) * rng.choice([-1, 1], count)
    scale = 1 if np.dtype(dtype).kind == "i" else rng.random(count)
    return SparseElements(
        rng.choice(size, count, replace=False), (values * scale).astype(dtype), size
    )


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_sums_are_numpys(system: System, rng: np.random.Generator, world: int, faults: int) -> None:
    cases = []
    for dtype in (np.int8, np.int16, np.int32, np.float16, np.float32, np.float64):
        size = int(rng.integers(1, 60_000))
        share = rng.choice([0.0, 0.001, 0.02, 0.9])
        counts = [int(size * share * rng.random()) for _ in range(world)]
        cases.append([elements(rng, size, count, dtype) for count in counts])

    def work(comm: p4reduce.Communicator) -> list[tuple[SparseElements, Array]]:
        handles = [comm.allreduce_sparse_async(case[comm.rank]) for case in cases]
        return [
            (handle.wait(), comm.allreduce_sparse(case[comm.rank], dense=True))
            for handle, case in zip(handles, cases, strict=True)
        ]

    results = system.run(world, work)
    for n, case in enumerate(cases):
        wide = np.stack([array.to_dense() for array in case]).astype(np.float64)
        wanted, dtype = wide.sum(axis=0), case[0].values.dtype
        off = 0.0
        if dtype.kind == "f":
            rounding = np.finfo(dtype).eps * np.abs(wanted).max()
            off = p4reduce.error_bound(np.abs(wide).max(), world) + rounding
        for result in results:
            sparse, dense = result[n]
            assert (np.abs(dense.astype(np.float64) - wanted) <= off).all()
            assert sparse.to_dense().tobytes() == dense.tobytes()
            assert np.array_equal(sparse.indices, np.flatnonzero(dense))
            assert dense.tobytes() == results[0][n][1].tobytes()


def test_rows_and_scipy(system: System, rng: np.random.Generator) -> None:
    """What else can be agreed on comes back as what it was, and means are means."""
    scipy = pytest.importorskip("scipy.sparse")
    flat = rng.integers(1, 9, (3, 5000)) * (rng.random((3, 5000)) < 0.01)
    flat = flat.astype(np.float32)
    rows = np.zeros((3, 400, 3), np.float32)
    rows[:, [5, 77, 200]] = rng.random((3, 3, 3))

    def work(comm: p4reduce.Communicator) -> list[Array]:
        mine, tall = flat[comm.rank], rows[comm.rank]
        some = np.flatnonzero(tall.any(axis=1))
        found: list[Array] = []
        for vector in (
            scipy.coo_array(mine),
            scipy.csr_matrix(mine),
            scipy.csc_array(mine[:, None]),
        ):
            total = comm.allreduce_sparse(vector, "mean")
            assert (type(total), total.shape) == (type(vector), vector.shape)
            found.append(total.toarray().reshape(-1))
        square = scipy.csr_array(mine.reshape(50, 100))
        found.append(comm.allreduce_sparse(square, "mean", agree=True).toarray().reshape(-1))
        found.append(
            comm.allreduce_sparse(SparseRows(some, tall[some], tall.shape), agree=True).to_dense()
        )
        by_blocks = SparseElements(np.flatnonzero(mine), mine[mine != 0], 5000)
        if comm.rank == 1:  # the same collective as of dense arrays
            found.append(comm.allreduce(mine))
        else:
            found.append(comm.allreduce_sparse(by_blocks, agree=False, dense=True))
        return found

    for result in system.run(3, work):
        for mean in result[:4]:
            assert np.allclose(mean, flat.mean(axis=0), atol=1e-6)
        assert np.allclose(result[4], rows.sum(axis=0), atol=1e-6)
        assert np.array_equal(result[5], flat.sum(axis=0))


def test_few_elements_take_few_bytes(system: System, rng: np.random.Generator) -> None:
    """0.1 % of 2^18 at random places, 8 ranks: by blocks that is nearly the dense array."""
    size, world = 1 << 18, 8
    given = [elements(rng, size, size // 1000, np.float32) for _ in range(world)]

    def work(comm: p4reduce.Communicator) -> tuple[int, int, float]:
        before = comm.stats
        total = comm.allreduce_sparse(given[comm.rank])
        after = comm.stats
        repeated = after.retransmissions - before.retransmissions
        sent = after.bytes_sent - before.bytes_sent - repeated * 1102
        assert after.collectives - before.collectives == 1
        return sent, after.blocks_received - before.blocks_received, len(total.indices) / size

    for sent, blocks, fill in system.run(world, work):
        assert sent < 0.03 * size * 4
        assert blocks * 1024 < 0.02 * size * 4
        assert fill == pytest.approx(1 - (1 - 0.001) ** world, rel=0.05)


def test_few_rows_are_agreed_on_in_one_frame(system: System, rng: np.random.Generator) -> None:
    """A third of 2,400 rows on each of 3 ranks, half of them the same: codes would take two."""
    world, width, own = 3, 40, np.arange(0, 2400, 3)
    rows = [np.sort(np.where(own % 2, own, own + rank)) for rank in range(world)]
    values = [rng.integers(1, 9, (len(some), width)).astype(np.float32) for some in rows]
    given = [SparseRows(*one, (2400, width)) for one in zip(rows, values, strict=True)]
    wanted = np.sum([array.to_dense() for array in given], axis=0)
    union = np.flatnonzero(wanted.any(axis=1))

    def work(comm: p4reduce.Communicator) -> int:
        before = comm.stats
        total = comm.allreduce_sparse(given[comm.rank], agree=True)
        assert total.indices.tolist() == union.tolist()
        assert np.array_equal(total.to_dense(), wanted)
        return comm.stats.blocks_announced - before.blocks_announced

    assert set(system.run(world, work)) == {2 + -(-len(union) * width // 256)}


def test_what_is_wrong_on_one_rank_all_hear(system: System) -> None:
    """And nothing is broken: the next call is fine."""
    fine = SparseElements([3], np.ones(1, np.float32), 100)
    wrong = [
        (SparseElements([100], np.ones(1, np.float32), 100), {}, "there are 100 elements"),
        (SparseElements([7], np.full(1, np.nan, np.float32), 100), {}, "index 7 is nan"),
        (SparseElements([7], np.full(1, 1j), 100), {}, "complex128 cannot be reduced"),
        (SparseElements([7, 8], np.ones(1, np.float32), 100), {}, "there are 2 indices"),
        (fine, {"op": NO_OPERATION}, f"op='{NO_OPERATION}'"),
        (fine, {"precision": "int2"}, "precision='int2'"),
        (fine, {"dense": 3}, "dense=3"),
    ]

    def work(comm: p4reduce.Communicator) -> list[str]:
        said = []
        for array, options, message in wrong:
            bad = comm.rank == 1
            kind = (TypeError, ValueError) if bad else p4reduce.ConfigurationError
            with pytest.raises(kind) as caught:
                comm.allreduce_sparse(array if bad else fine, **(options if bad else {}))
            assert message in str(caught.value)
            assert bad or str(caught.value).startswith("nothing was summed: rank 1 gave ")
            total = comm.allreduce_sparse(fine)
            assert total.values.tolist() == [3.0]
            said.append(str(caught.value))
        return said

    assert len(set(map(tuple, system.run(3, work)))) == 2


@pytest.mark.parametrize(
    "other",
    [
        SparseElements([3], np.ones(1, np.float32), 101),
        SparseElements([3], np.ones(1, np.float32), (10, 10)),
        SparseElements([3], np.ones(1, np.float64), 100),
        SparseElements([3], np.ones(1, np.int32), 100),
    ],
)
def test_ranks_that_differ_are_named(system: System, other: SparseElements) -> None:
    fine = SparseElements([3], np.ones(1, np.float32), 100)

    def work(comm: p4reduce.Communicator) -> str:
        with pytest.raises(p4reduce.MismatchError, match="rank 2") as caught:
            comm.allreduce_sparse(other if comm.rank == 2 else fine)
        assert caught.value.ranks == (2,)
        return str(caught.value)

    system.run(3, work)


def test_an_overflow_is_named(system: System) -> None:
    full = SparseElements([5, 70], np.array([1, 100], np.int8), 20_000)

    def work(comm: p4reduce.Communicator) -> SparseElements:
        with pytest.raises(p4reduce.LaneOverflowError, match="elements 0 to 1 of 'the union'"):
            comm.allreduce_sparse(full)
        return comm.allreduce_sparse(SparseElements([5], np.ones(1, np.int8), 20_000))

    for total in system.run(2, work):
        assert (total.indices.tolist(), total.values.tolist()) == ([5], [2])
