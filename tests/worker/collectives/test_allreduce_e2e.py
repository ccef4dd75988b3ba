# SPDX-License-Identifier: Apache-2.0
"""All-reduce through both switches: right results, whatever happens to the frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.figures import worker_statistics
from p4reduce.tensors.quantise import headroom
from p4reduce.wire.calls import Operation
from worker_system import System, at_once

Array = npt.NDArray[Any]

SLOTS = 32
BLOCK = 256
# One element, around one block, around half the window and around the window, in elements.
SIZES = [
    1,
    255,
    256,
    257,
    (SLOTS // 2 - 1) * BLOCK,
    SLOTS // 2 * BLOCK,
    (SLOTS // 2 + 1) * BLOCK,
    (SLOTS - 1) * BLOCK,
    (SLOTS + 1) * BLOCK,
    2 * SLOTS * BLOCK + 7,
]
# Pairs of world size and faults: each of 1 to 8, and each rate, here and among the floats.
WORLDS = [(1, 10), (2, 0), (2, 10), (3, 1), (4, 0), (4, 10), (5, 1), (6, 1), (7, 0), (8, 1)]


def inputs(rng: np.random.Generator, world: int, size: int, dtype: type) -> list[Array]:
    if dtype is np.int32:
        limit = (2**31 - 1) // world
        return [rng.integers(-limit, limit, size, np.int32) for _ in range(world)]
    spread = 2 if dtype is np.float16 else 20
    return [
        (rng.standard_normal(size) * np.exp2(rng.uniform(-spread, spread))).astype(dtype)
        for _ in range(world)
    ]


def check_sum(arrays: list[Array], results: list[Array], op: Operation = p4reduce.SUM) -> None:
    """Assert that a result is within the bound of `tensors.quantise`, and the same everywhere."""
    first = results[0]
    for result in results:
        assert result.tobytes() == first.tobytes()
        assert (result.shape, result.dtype) == (arrays[0].shape, arrays[0].dtype)
    if first.dtype == np.int32:
        exact = np.sum([array.astype(np.int64) for array in arrays], axis=0)
        assert np.array_equal(first, exact)
        return
    world = len(arrays)
    wide = [array.astype(np.float64).ravel() for array in arrays]
    exact = np.sum(wide, axis=0)
    largest = np.max(np.abs(wide), axis=0)
    starts = np.arange(0, len(exact), BLOCK)
    block_largest = np.maximum.reduceat(largest, starts)
    exponents = np.frexp(np.maximum(block_largest, 2.0**-126))[1]
    bound = world * np.exp2(exponents - headroom(world))
    if op is p4reduce.MEAN:
        exact, bound = exact / world, bound / world
    bound = np.repeat(bound, BLOCK)[: len(exact)]
    # And half a unit in the last place of the output's dtype (of the values as computed).
    rounding = np.maximum(
        (np.abs(exact) + bound) * np.finfo(first.dtype).eps / 2,
        np.finfo(first.dtype).smallest_subnormal,
    )
    if op is p4reduce.MEAN and first.dtype != np.float64:  # the sum is a float32 before that
        rounding = rounding + (np.abs(exact) + bound) * np.finfo(np.float32).eps / 2
    error = np.abs(first.ravel().astype(np.float64) - exact)
    assert (error <= bound + 1.01 * rounding).all(), f"worst {np.max(error / bound):g} bounds"


def allreduce_all(system: System, ranks: list[list[Array]], **options: Any) -> list[list[Array]]:
    """Each rank reduces its list of arrays one after the other; results by array, then rank."""
    results = system.run(
        len(ranks), lambda comm: [comm.allreduce(array, **options) for array in ranks[comm.rank]]
    )
    return [list(of_all) for of_all in zip(*results, strict=True)]


@pytest.mark.parametrize(("world", "faults"), WORLDS, indirect=["faults"])
def test_int32_is_exact(system: System, rng: np.random.Generator, world: int, faults: int) -> None:
    cases = [inputs(rng, world, size, np.int32) for size in SIZES]
    ranks = [[case[rank] for case in cases] for rank in range(world)]
    for case, results in zip(cases, allreduce_all(system, ranks), strict=True):
        check_sum(case, results)


@pytest.mark.parametrize(
    ("world", "faults", "dtype", "op"),
    [
        (1, 0, np.float64, p4reduce.MEAN),
        (2, 1, np.float16, p4reduce.SUM),
        (3, 10, np.float32, p4reduce.MEAN),
        (4, 1, np.float32, p4reduce.SUM),
        (4, 10, np.float16, p4reduce.MEAN),
        (5, 10, np.float64, p4reduce.MEAN),
        (6, 0, np.float32, p4reduce.SUM),
        (7, 1, np.float64, p4reduce.SUM),
        (8, 0, np.float16, p4reduce.SUM),
    ],
    indirect=["faults"],
)
def test_floats_are_within_the_bound(
    system: System,
    rng: np.random.Generator,
    world: int,
    faults: int,
    dtype: type,
    op: Operation,
) -> None:
    cases = [inputs(rng, world, size, dtype) for size in SIZES]
    ranks = [[case[rank] for case in cases] for rank in range(world)]
    for case, results in zip(cases, allreduce_all(system, ranks, op=op), strict=True):
        check_sum(case, results, op)


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "faults", "dtype"),
    [(4, 0, np.float32), (2, 1, np.int32), (2, 10, np.int32), (8, 0, np.float32)],
    indirect=["faults"],
)
def test_several_megabytes(
    system: System, rng: np.random.Generator, world: int, faults: int, dtype: type
) -> None:
    arrays = inputs(rng, world, 800_001, dtype)
    results = allreduce_all(system, [[array] for array in arrays])[0]
    check_sum(arrays, results)


@pytest.mark.parametrize("faults", [0, 1], indirect=True)
def test_several_in_flight_of_mixed_dtypes(
    system: System, rng: np.random.Generator, faults: int
) -> None:
    world = 3
    kinds = [np.float32, np.int32, np.float64, np.float16]
    sizes = [40_000, 1, 300, 9_000, 0, 5_000, 256, 17_000]
    cases = [inputs(rng, world, size, kinds[n % 4]) for n, size in enumerate(sizes)]

    def work(comm: p4reduce.Communicator) -> list[Array]:
        handles = [
            comm.allreduce_async(case[comm.rank], name=f"tensor {n}")
            for n, case in enumerate(cases)
        ]
        results = [handle.wait() for handle in reversed(handles)]
        assert all(handle.done() for handle in handles)
        return results[::-1]

    results = system.run(world, work)
    for n, case in enumerate(cases):
        if len(case[0]):
            check_sum(case, [of_rank[n] for of_rank in results])


@pytest.mark.parametrize("faults", [0, 10], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32])
def test_in_place(system: System, rng: np.random.Generator, faults: int, dtype: type) -> None:
    arrays = inputs(rng, 2, 11_111, dtype)

    def work(comm: p4reduce.Communicator) -> Array:
        mine = arrays[comm.rank].copy()
        result = comm.allreduce(mine, out=mine)
        assert result is mine
        return mine

    check_sum(arrays, system.run(2, work))


def test_input_is_left_alone_and_shape_kept(system: System, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((7, 3, 61)).astype(np.float32) for _ in range(2)]
    copies = [array.copy() for array in arrays]
    outs = [np.full_like(array, np.nan) for array in arrays]
    results = system.run(2, lambda comm: comm.allreduce(arrays[comm.rank], out=outs[comm.rank]))
    check_sum(arrays, results)
    for rank in range(2):
        assert results[rank] is outs[rank]
        assert np.array_equal(arrays[rank], copies[rank])


def test_non_contiguous_input_is_copied(system: System, rng: np.random.Generator) -> None:
    bases = [rng.standard_normal((40, 50)).astype(np.float32) for _ in range(2)]
    arrays = [base.T[::2] for base in bases]
    results = system.run(2, lambda comm: comm.allreduce(arrays[comm.rank]))
    check_sum([np.ascontiguousarray(array) for array in arrays], results)


def test_scalars_and_empty_arrays(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> tuple[Array, Array, Array]:
        comm.barrier()
        return (
            comm.allreduce(np.array(1.5, np.float32)),
            comm.allreduce(np.empty((3, 0), np.float64)),
            comm.allreduce(np.float32(2)),  # what indexing an array gives
        )

    for scalar, empty, number in system.run(3, work):
        assert scalar.shape == ()
        assert scalar == 4.5
        assert empty.shape == (3, 0)
        assert number == 6


@pytest.mark.parametrize("faults", [0, 10], indirect=True)
@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_of_zeros_stay_at_home(
    system: System, rng: np.random.Generator, faults: int, in_place: bool
) -> None:
    world, blocks = 3, 200
    sent = rng.random((world, blocks)) < 0.2
    arrays = [
        (rng.standard_normal((blocks, BLOCK)) * sent[rank][:, None]).astype(np.float32)
        for rank in range(world)
    ]
    # Zeros that have a sign are zeros as well, and none is left in the result.
    arrays[0][~sent[0]] = -0.0

    def work(comm: p4reduce.Communicator) -> tuple[Array, int, int]:
        mine = arrays[comm.rank].copy()
        result = comm.allreduce(mine, out=mine if in_place else None)
        stats = comm.stats
        return result, stats.blocks_sent, stats.blocks_received

    results = system.run(world, work)
    check_sum([array.ravel() for array in arrays], [result.ravel() for result, _, _ in results])
    for rank, (result, blocks_sent, blocks_received) in enumerate(results):
        assert blocks_sent == sent[rank].sum()
        if not faults:
            assert blocks_received == sent.any(axis=0).sum()
        nobody = result[~sent.any(axis=0)]
        assert not nobody.any()
        assert not np.signbit(nobody).any()


@pytest.mark.parametrize("faults", [10], indirect=True)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_any_density_and_overlap(
    system: System, rng: np.random.Generator, faults: int, dtype: type
) -> None:
    world = 4
    cases = []
    for _ in range(4):
        size = int(rng.integers(1, 200 * BLOCK))
        blocks = -(-size // BLOCK)
        density, shared = 0.01 ** rng.random(), rng.random()
        print(f"{size} elements, density {density:.3f}, {shared:.3f} of the blocks shared")
        common = rng.random(blocks) < density * shared
        masks = common | (rng.random((world, blocks)) < density * (1 - shared))
        kept = np.repeat(masks, BLOCK, axis=1)[:, :size]
        dense = inputs(rng, world, size, dtype)
        cases.append([array * mask for array, mask in zip(dense, kept, strict=True)])
    ranks = [[case[rank] for case in cases] for rank in range(world)]
    for case, results in zip(cases, allreduce_all(system, ranks), strict=True):
        check_sum(case, results)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_and_infinity_make_their_block_nan_everywhere(
    system: System, dtype: type, value: float
) -> None:
    arrays = [np.ones(5 * BLOCK + 10, dtype) for _ in range(2)]
    arrays[1][2 * BLOCK + 3] = value
    arrays[0][5 * BLOCK + 9] = value

    wanted = np.full(5 * BLOCK + 10, 2, dtype)
    wanted[2 * BLOCK : 3 * BLOCK] = np.nan
    wanted[5 * BLOCK :] = np.nan
    for result in system.run(2, lambda comm: comm.allreduce(arrays[comm.rank])):
        assert np.array_equal(result, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float32, 1e38),
        (np.float32, np.finfo(np.float32).smallest_subnormal),
        (np.float32, np.finfo(np.float32).tiny),
        (np.float64, 3.4e38),
        (np.float64, 1e-300),
        (np.float16, np.finfo(np.float16).smallest_subnormal),
    ],
)
def test_the_ends_of_the_exponents(system: System, dtype: type, value: float) -> None:
    arrays = [np.array([value, 0, -value / 2], dtype) for _ in range(2)]
    results = system.run(2, lambda comm: comm.allreduce(arrays[comm.rank]))
    check_sum(arrays, results)


def test_a_sum_beyond_the_dtype_is_infinite(system: System) -> None:
    arrays = [np.array([60_000, 1], np.float16) for _ in range(2)]
    for result in system.run(2, lambda comm: comm.allreduce(arrays[comm.rank])):
        assert result.tolist() == [np.inf, 2]


def test_results_do_not_depend_on_the_run(system: System, rng: np.random.Generator) -> None:
    arrays = inputs(rng, 4, 20_000, np.float32)
    once = system.run(4, lambda comm: comm.allreduce(arrays[comm.rank]))
    again = system.run(4, lambda comm: comm.allreduce(arrays[comm.rank]))
    assert once[0].tobytes() == again[3].tobytes()


def test_few_slots_do(system: System, rng: np.random.Generator) -> None:
    arrays = inputs(rng, 2, 10_000, np.int32)
    results = system.run(2, lambda comm: comm.allreduce(arrays[comm.rank]), slots=1)
    check_sum(arrays, results)


def test_two_jobs_at_once_do_not_meet(system: System, rng: np.random.Generator) -> None:
    jobs = [inputs(rng, 4, 60_000, np.int32) for _ in range(2)]

    def job(number: int) -> list[Array]:
        return system.run(
            4, lambda comm: comm.allreduce(jobs[number][comm.rank]), first_port=1 + 4 * number
        )

    results = at_once([lambda: job(0), lambda: job(1)])
    for arrays, of_ranks in zip(jobs, results, strict=True):
        check_sum(arrays, of_ranks)


def test_statistics_of_zero_skipping(system: System, rng: np.random.Generator) -> None:
    """What each rank sends adds up to what all announced, and the controller is told the same."""
    world, blocks = 3, 400
    sent = rng.random((world, blocks)) < 0.1
    arrays = [np.repeat(mine, BLOCK).astype(np.int32) for mine in sent]

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        comm.allreduce(arrays[comm.rank])
        return comm.stats

    union = int(sent.any(axis=0).sum())
    all_stats = system.run(world, work)
    job = list(system.control.call(system.control.stub.ListJobs, pb.ListJobsRequest()).jobs)[-1]
    request = pb.GetStatisticsRequest(job=job.name)
    told = system.control.call(system.control.stub.GetStatistics, request).ranks
    for rank, stats in enumerate(all_stats):
        assert told[rank].worker == worker_statistics(stats)
        # What arrived at the switch: nothing else but for what timers sent again.
        assert 0 <= told[rank].payload_up - stats.blocks_sent <= stats.retransmissions
        assert 0 <= told[rank].empty_up - stats.empty_sent <= stats.retransmissions
        assert (stats.blocks, stats.blocks_announced) == (blocks, union)
        assert (stats.blocks_skipped, stats.union_density) == (blocks - union, union / blocks)
        assert stats.blocks_sent == sent[rank].sum()
        assert stats.blocks_sent + stats.empty_sent == union + SLOTS
        message = worker_statistics(stats)
        assert (message.blocks, message.blocks_announced) == (blocks, union)
        assert (message.blocks_sent, message.empty_sent) == (stats.blocks_sent, stats.empty_sent)
        assert message.bytes_received == stats.bytes_received


def test_statistics_add_up(system: System, rng: np.random.Generator) -> None:
    blocks = 100
    arrays = [rng.standard_normal(blocks * BLOCK).astype(np.float32) for _ in range(2)]

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        comm.allreduce(arrays[comm.rank])
        return comm.stats

    for stats in system.run(2, work):
        assert stats.collectives == 1
        assert stats.blocks_sent == stats.blocks_received == blocks
        assert stats.blocks == stats.blocks_announced == blocks
        assert (stats.empty_sent, stats.blocks_skipped, stats.union_density) == (SLOTS, 0, 1.0)
        once = stats.frames_sent - stats.retransmissions
        assert once == blocks + SLOTS  # and a round to open each stripe
        repeated = stats.bytes_sent - blocks * 1102 - SLOTS * 78
        assert 78 * stats.retransmissions <= repeated <= 1102 * stats.retransmissions
        assert 0 < stats.round_trip_p50 <= stats.round_trip_p90 <= stats.round_trip_p99
        assert (stats.invalid, stats.dropped) == (0, 0)
