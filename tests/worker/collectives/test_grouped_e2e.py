# SPDX-License-Identifier: Apache-2.0
"""Many arrays in few streams: the bits of one all-reduce each, and errors that name the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce.tensors.fusion import ArrayGroup
from p4reduce.wire.calls import Operation
from worker_system import System, outcome

Array = npt.NDArray[Any]

BLOCK = 256


def model(rng: np.random.Generator) -> list[Array]:
    """Arrays of many sizes, and of magnitudes far apart."""
    shapes: list[Any] = [(3, 5, 17), (1,), (), (0, 4), (300,), (40, 256), (2000,), (256,), (7,)]
    return [
        (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 20)).astype(np.float32)
        for shape in shapes
    ]


@pytest.mark.long
@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_fusion_changes_no_bit(system: System, rng: np.random.Generator, faults: int) -> None:
    ranks = [model(rng) for _ in range(3)]
    counts = [rng.integers(-(2**29), 2**29, 301, np.int32) for _ in range(3)]

    def work(comm: p4reduce.Communicator) -> None:
        arrays = [*ranks[comm.rank], counts[comm.rank], ranks[comm.rank][5].T]
        names = [f"layer {n}" for n in range(len(arrays))]
        wanted = [comm.allreduce(array) for array in arrays]
        for threshold in (4096,) if faults else (0, 4096, 16384, 1 << 20):
            got = comm.grouped_allreduce(arrays, names=names, fusion_threshold=threshold)
            for array, result in zip(wanted, got, strict=True):
                assert (result.shape, result.dtype) == (array.shape, array.dtype)
                assert result.tobytes() == array.tobytes()

        wanted = [comm.allreduce(array, p4reduce.MEAN) for array in ranks[comm.rank]]
        mine = [np.array(array) for array in ranks[comm.rank]]
        handle = comm.grouped_allreduce_async(mine, p4reduce.MEAN, outs=mine)
        got = handle.wait()
        assert all(one is other for one, other in zip(mine, got, strict=True))
        assert [one.tobytes() for one in mine] == [one.tobytes() for one in wanted]

    system.run(3, work)


def test_small_arrays_share_a_stream(system: System) -> None:
    arrays = [np.full(100 + n, n + 1, np.float32) for n in range(50)]

    def work(comm: p4reduce.Communicator) -> p4reduce.Statistics:
        comm.grouped_allreduce(arrays)
        assert comm.grouped_allreduce([]) == []
        return comm.stats

    for stats in system.run(2, work):
        assert stats.collectives == 2
        assert stats.blocks_sent == 50
        assert stats.frames_sent - stats.retransmissions == 50 + 32 + 1


def test_overflow_names_the_array(system: System) -> None:
    arrays = [np.full(300, 5, np.int32), np.full(600, 5, np.int32)]
    arrays[1][299] = 2**30

    def work(comm: p4reduce.Communicator) -> Any:
        error = outcome(lambda: comm.grouped_allreduce(arrays, names=["bias", "weight"]))
        return error, comm.grouped_allreduce(arrays[:1])[0]

    for error, after in system.run(2, work):
        assert isinstance(error, p4reduce.LaneOverflowError)
        assert "elements 256 to 511 of 'weight'" in str(error)
        assert "'bias' to 'weight'" in str(error)
        assert (after == 10).all()


ONES = np.ones(300, np.float32)


def test_ranks_that_group_differently_get_a_mismatch(system: System) -> None:
    """test_plans.py has more of what differs."""

    def work(comm: p4reduce.Communicator) -> Any:
        names = ["a", "bc"[comm.rank]]
        return outcome(lambda: comm.grouped_allreduce([ONES, ONES], names=names))

    for error in system.run(2, work):
        assert isinstance(error, p4reduce.MismatchError), error
        assert "'a' to '" in str(error)


WRONG: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
    ([ONES, ONES], {"names": ["a"]}, ValueError, "1 names for 2 arrays"),
    ([ONES, ONES], {"outs": [ONES]}, ValueError, "1 outs for 2 arrays"),
    ([ONES], {"outs": [ONES[:2]]}, ValueError, r"\(2,\)"),
    ([ONES, [1.0]], {}, TypeError, "list"),
    ([ONES], {"fusion_threshold": -1}, ValueError, "fusion_threshold=-1"),
    ([np.ones(3), np.full(3, 1e300)], {"fusion_threshold": 0}, OverflowError, "1e.300"),
]


def test_wrong_arguments_leave_the_ranks_in_step(alone: p4reduce.Communicator) -> None:
    for arrays, options, error, text in WRONG:
        with pytest.raises(error, match=text):
            alone.grouped_allreduce(arrays, **options)
    assert np.array_equal(alone.grouped_allreduce([ONES])[0], ONES)
    assert alone.stats.collectives == 1


@pytest.mark.parametrize("threshold", [0, 1024, 5000, 10_000, 1 << 20])
def test_streams_are_as_large_as_the_threshold_allows(
    rng: np.random.Generator, threshold: int
) -> None:
    sizes = rng.integers(0, 1500, 60)
    sizes[[0, 1, 30]] = 0
    kinds = rng.choice([np.float32, np.float64], 60)
    arrays = [np.zeros(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    streams, _ = ArrayGroup(Operation.SUM, 4, threshold).plan(arrays, None, None)
    names = [name for stream in streams for name, _ in stream.call.pieces]
    assert sorted(names, key=lambda name: int(name.split()[1])) == [f"array {n}" for n in range(60)]
    last: dict[str, int] = {}
    for stream in streams:
        size = len(stream.source) * BLOCK * stream.source.dtype.itemsize
        assert size <= threshold or len(stream.call.pieces) == 1
        if len(stream.call.pieces) > 1 or size < threshold:
            # What began it did not fit into the one before.
            blocks = -(-stream.call.pieces[0][1] // BLOCK)
            begun_by = blocks * BLOCK * stream.source.dtype.itemsize
            if stream.call.dtype in last:
                assert last[stream.call.dtype] + begun_by > threshold
            last[stream.call.dtype] = size
