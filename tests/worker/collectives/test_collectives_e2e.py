# SPDX-License-Identifier: Apache-2.0
"""The other collectives through both switches: right, bit for bit, and no dearer than they have to
be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from worker_system import System, outcome

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
        assert stats.frames_sent - stats.retransmissions == sent + bare
        once = sent * PAYLOAD_FRAME_BYTES + bare * EMPTY_FRAME_BYTES
        assert stats.bytes_sent <= once + stats.retransmissions * PAYLOAD_FRAME_BYTES


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_reduce_is_for_the_root(system: System, rng: np.random.Generator, faults: int) -> None:
    arrays = [rng.integers(-(2**29), 2**29, (90, 211), np.int32) for _ in range(3)]
    floats = [rng.standard_normal(4 * SLOTS * 256 + 3).astype(np.float32) for _ in range(3)]

    def work(comm: p4reduce.Communicator) -> tuple[Array | None, ...]:
        mine = floats[comm.rank].copy()
        return (
            comm.reduce(arrays[comm.rank], root=1),
            comm.reduce(mine, p4reduce.MEAN, root=2, out=mine),
            comm.allreduce(floats[comm.rank], p4reduce.MEAN),
        )

    for rank, (total, mean, wanted) in enumerate(system.run(3, work)):
        assert (total is not None, mean is not None) == (rank == 1, rank == 2)
        if total is not None:
            assert np.array_equal(total, sum(arrays))
        if mean is not None and wanted is not None:
            assert mean.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_allgather_joins_what_differs_in_length(
    system: System, rng: np.random.Generator, faults: int
) -> None:
    world = 3
    cases = [
        [
            awkward(rng, dtype, rows * 5 * np.dtype(dtype).itemsize).reshape(rows, 5)
            for rows in lengths
        ]
        for dtype, lengths in (
            (np.float32, (1, 700, 52)),
            (np.int8, (0, 205, 3)),
            (RECORD, (40, 0, 0)),
            (np.complex64, (0, 0, 0)),
            (bool, (1030, 1, 900)),
        )
    ]

    def work(comm: p4reduce.Communicator) -> list[Array]:
        results = [comm.allgather(case[comm.rank]) for case in cases]
        # In place, and told the lengths.
        counts = [len(part) for part in cases[0]]
        whole = np.full((sum(counts), 5), np.nan, np.float32)
        part = whole[sum(counts[: comm.rank]) :][: counts[comm.rank]]
        part[:] = cases[0][comm.rank]
        handle = comm.allgather_async(part, counts, out=whole)
        results.append(comm.allgather(np.float32(comm.rank)))
        results.append(handle.wait())
        assert results[-1] is whole
        return results

    wanted = [np.concatenate(case) for case in cases]
    wanted += [np.arange(world, dtype=np.float32), wanted[0]]
    for results in system.run(world, work):
        for result, right in zip(results, wanted, strict=True):
            assert (result.shape, result.dtype) == (right.shape, right.dtype)
            assert result.tobytes() == right.tobytes()


def test_allgather_sends_each_part_once(system: System, rng: np.random.Generator) -> None:
    blocks = [0, 40, 64]  # per rank

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        mine = rng.integers(1, 9, blocks[comm.rank] * BLOCK_BYTES - 5 * comm.rank, np.int8)
        counts = [count * BLOCK_BYTES - 5 * rank for rank, count in enumerate(blocks)]
        comm.allgather(mine, counts=counts)
        return comm.stats

    for rank, stats in enumerate(system.run(3, work)):
        assert (stats.blocks_sent, stats.blocks_received) == (blocks[rank], sum(blocks))


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_reduce_scatter_gives_each_rank_its_rows(
    system: System, rng: np.random.Generator, faults: int
) -> None:
    arrays = [rng.integers(-(2**29), 2**29, (47, 301), np.int32) for _ in range(3)]
    floats = [rng.standard_normal(2002).astype(np.float64) for _ in range(3)]
    counts = [0, 2000, 2]

    def work(comm: p4reduce.Communicator) -> tuple[Array, Array]:
        out = np.full(counts[comm.rank], np.nan)
        means = comm.reduce_scatter(floats[comm.rank], p4reduce.MEAN, counts=counts, out=out)
        assert means is out
        return comm.reduce_scatter(arrays[comm.rank]), means

    results = system.run(3, work)
    assert [len(rows) for rows, _ in results] == [16, 16, 15]
    assert np.array_equal(np.concatenate([rows for rows, _ in results]), sum(arrays))
    assert [len(rows) for _, rows in results] == counts
    means = np.concatenate([rows for _, rows in results])
    assert np.allclose(means, np.mean(floats, axis=0), rtol=0, atol=4 * 2.0**-28)


def test_narrow_lanes_are_for_all_that_reduce(system: System, rng: np.random.Generator) -> None:
    floats = rng.uniform(-1, 1, (2, 8 * 1024)).astype(np.float32)
    small = rng.integers(-60, 60, (2, 8 * 1024)).astype(np.int8)
    kept = [0, 3, 7]
    sparse = [p4reduce.SparseRows(kept, one.reshape(8, -1)[kept], (8, 1024)) for one in floats]
    total, exact = floats.sum(axis=0), small.sum(axis=0)
    of_sparse = sparse[0].to_dense() + sparse[1].to_dense()

    def work(comm: p4reduce.Communicator) -> list[tuple[Array, Array, int]]:
        rank = comm.rank
        options: dict[str, Any] = {"precision": "int8", "seed": 4}
        calls: list[tuple[Callable[[], Any], Array]] = [
            (lambda: comm.reduce(floats[rank], **options), total),
            (lambda: comm.reduce_scatter(floats[rank], **options), np.split(total, 2)[rank]),
            (lambda: comm.grouped_allreduce([floats[rank], small[rank]], **options)[0], total),
            (lambda: comm.allreduce_sparse(sparse[rank], dense=True, **options), of_sparse),
            (lambda: comm.reduce_scatter(small[rank]), np.split(exact, 2)[rank]),
        ]
        seen = []
        for call, wanted in calls:
            before = comm.stats.blocks_sent
            result = call()
            sent = comm.stats.blocks_sent - before
            seen.append((wanted if result is None else result, wanted, sent))
        return seen

    bound = p4reduce.error_bound(1.0, 2, "int8")
    for seen in system.run(2, work):
        assert [sent for _, _, sent in seen] == [8, 8, 16, 3, 8]
        for result, wanted, _ in seen[:-1]:
            assert np.abs(result - wanted).max() <= bound
        assert np.array_equal(seen[-1][0], seen[-1][1])


# -- Ranks that do not agree, and wrong arguments -------------------------------------------------

ONES = np.ones((6, 500), np.float32)

Call = Callable[[p4reduce.Communicator], Any]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            lambda comm: comm.broadcast(ONES), lambda comm: comm.broadcast(ONES, 1), id="root"
        ),
        pytest.param(
            lambda comm: comm.allreduce(ONES), lambda comm: comm.reduce(ONES), id="collective"
        ),
        pytest.param(
            lambda comm: comm.allgather(ONES), lambda comm: comm.allgather(ONES.T), id="rows"
        ),
    ],
)
def test_different_calls_are_a_mismatch_on_all_ranks(
    system: System, one: Call, other: Call
) -> None:
    """test_plans.py has more of what differs."""
    errors = system.run(2, lambda comm: outcome(lambda: (one, other)[comm.rank](comm)))
    for error in errors:
        assert isinstance(error, p4reduce.MismatchError), error


WRONG: list[tuple[Call, type[Exception], str]] = [
    (lambda comm: comm.broadcast(ONES, 1), ValueError, "root=1.*0 to 0"),
    (lambda comm: comm.broadcast(ONES, -1), ValueError, "root=-1"),
    (lambda comm: comm.reduce(ONES, root="0"), TypeError, "root='0'"),
    (lambda comm: comm.broadcast([1.0]), TypeError, "list"),
    (lambda comm: comm.broadcast(np.array([None])), TypeError, "object"),
    (lambda comm: comm.broadcast(ONES, out=ONES[:3]), ValueError, r"\(3, 500\)"),
    (lambda comm: comm.reduce(ONES.astype(np.int64)), TypeError, "int64"),
    (lambda comm: comm.reduce_scatter(np.float32(1)), ValueError, "without dimensions"),
    (lambda comm: comm.reduce_scatter(ONES, counts=[5]), ValueError, "5 rows.*has 6"),
    (lambda comm: comm.reduce_scatter(ONES, counts=[3, 3]), ValueError, "1 numbers"),
    (lambda comm: comm.reduce_scatter(ONES, counts=[-6]), ValueError, "-6"),
    (lambda comm: comm.reduce_scatter(ONES, counts=6), TypeError, "counts=6"),
    (lambda comm: comm.reduce_scatter(ONES, out=ONES), ValueError, "overlaps"),
    (lambda comm: comm.allgather(ONES, counts=[7]), ValueError, "7.*6 rows"),
    (lambda comm: comm.allgather(ONES, counts=[6], out=ONES[:5]), ValueError, r"\(5, 500\)"),
    (lambda comm: comm.allgather(ONES[1:], counts=[5], out=ONES[:5]), ValueError, "own part"),
]


def test_wrong_arguments_are_named_and_break_nothing(alone: p4reduce.Communicator) -> None:
    for call, error, text in WRONG:
        with pytest.raises(error, match=text):
            call(alone)
    assert np.array_equal(alone.broadcast(ONES), ONES)
    assert alone.stats.collectives == 1
