# SPDX-License-Identifier: Apache-2.0
"""Gradient coding over a switch: exact sums whoever is late or lost, or an error with the group."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import p4reduce
import pytest
from late_ranks import wait_until_behind
from p4reduce.late import FractionalRepetition
from worker_system import DEADLINE, System, outcome

EMBEDDED = pytest.mark.parametrize("system", ["embedded"], indirect=True)
SIZE = 8
SINGLE = [(rank,) for rank in range(SIZE)]
PAIRS = [pair for pair in itertools.combinations(range(SIZE), 2) if pair[0] // 2 != pair[1] // 2]
GROUPS = [(first, first + 1) for first in range(0, SIZE, 2)]
TRIPLES = list(itertools.combinations(range(SIZE), 3))


def parts_of(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-(1 << 20), 1 << 20, (SIZE, 300), np.int32)


def train(
    comm: p4reduce.Communicator, copies: int, late: list[tuple[int, ...]], parts: np.ndarray
) -> list[bytes]:
    """A sum for each set of ranks that are late: they wait until it is over without them."""
    results = []
    with FractionalRepetition(comm, copies, timeout=DEADLINE) as coded:
        for number, ranks in enumerate(late):
            if comm.rank in ranks:
                wait_until_behind(coded)
            total = coded.sum(lambda part: parts[part])
            assert total.number == number
            assert total.included == (comm.rank in total.members)
            assert not set(total.members) & set(ranks)
            assert set(total.missing) >= set(ranks)
            assert [member // copies for member in total.members] == list(range(SIZE // copies))
            results.append(total.result.tobytes())
            comm.barrier()
    return results


@pytest.mark.parametrize(
    "faults",
    [0, pytest.param(3, marks=pytest.mark.long)],
    indirect=True,
    ids=["loss0", "loss3"],
)
def test_all_single_ranks_and_24_of_28_pairs(
    faults: int, system: System, rng: np.random.Generator
) -> None:
    parts = parts_of(rng)
    expected = parts.sum(0, dtype=np.int32).tobytes()
    late = SINGLE + PAIRS
    assert len(late) == 8 + 24
    for results in system.run(SIZE, lambda comm: train(comm, 2, late, parts)):
        assert results == [expected] * len(late)


@EMBEDDED
def test_all_triples_with_four_copies(system: System, rng: np.random.Generator) -> None:
    parts = parts_of(rng)
    expected = parts.sum(0, dtype=np.int32).tobytes()
    assert len(TRIPLES) == 56
    for results in system.run(SIZE, lambda comm: train(comm, 4, TRIPLES, parts)):
        assert results == [expected] * len(TRIPLES)


@EMBEDDED
@pytest.mark.parametrize("gone", GROUPS, ids=str)
def test_a_group_that_is_lost_is_named(gone: tuple[int, int], system: System) -> None:
    """The first loss is borne; with the second one, of the other rank of the group, it is over."""

    def work(comm: p4reduce.Communicator) -> Any:
        with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:
            sums = []
            for step in range(3):
                if (comm.rank == gone[0] and step == 1) or (comm.rank == gone[1] and step == 2):
                    coded.abandon()
                    return None
                sums.append(outcome(lambda: coded.sum(lambda part: np.full(9, part, np.int16))))
            return sums

    for rank, sums in enumerate(system.run(SIZE, work)):
        if rank in gone:
            continue
        assert all((total.result == sum(range(SIZE))).all() for total in sums[:2])
        # A rank of another group may be late as well: its group's other rank counts then.
        assert gone[0] in sums[1].missing
        assert gone[1] in sums[1].members
        assert isinstance(sums[2], p4reduce.WorkerLostError)
        assert sums[2].ranks == gone
        group = f"group {gone[0] // 2} is lost: ranks {gone[0]}, {gone[1]} are gone"
        assert str(sums[2]).startswith(group)


@EMBEDDED
def test_a_group_that_does_not_come_is_named(system: System) -> None:
    """At the deadline; the group is there, and does not call."""

    def work(comm: p4reduce.Communicator) -> Any:
        with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:
            coded.sum(lambda part: np.ones(1, np.int8))
            comm.barrier()
            if comm.rank < 2:
                result = outcome(lambda: coded.sum(lambda part: np.ones(1, np.int8), timeout=3.0))
                coded.abandon()
            else:
                result = None
            comm.barrier()
            coded.abandon()
            return result

    for error in system.run(4, work)[:2]:
        assert isinstance(error, (p4reduce.P4ReduceTimeoutError, p4reduce.WorkerLostError))
        if isinstance(error, p4reduce.P4ReduceTimeoutError):
            assert error.missing == (2, 3)
            assert "no rank of group 1 (ranks 2, 3, parts 2, 3) has called" in str(error)


def test_floats_have_the_same_bits_whoever_is_late(
    system: System, rng: np.random.Generator
) -> None:
    """As the ranks of a group compute the same bits, it does not matter which of them counts."""
    parts = rng.standard_normal((4, 3000)).astype(np.float32)

    def work(comm: p4reduce.Communicator) -> list[bytes]:
        results = []
        with FractionalRepetition(comm, groups=[[0, 3], [1, 2]], timeout=DEADLINE) as coded:
            assert coded.parts == ((0, 3) if comm.rank in (0, 3) else (1, 2))
            for late in range(-1, 4):
                if comm.rank == late:
                    wait_until_behind(coded)
                total = coded.sum(lambda part: parts[part], "mean")
                assert late not in total.members
                results.append(total.result.tobytes())
                comm.barrier()
        return results

    runs = system.run(4, work)
    assert len({bits for results in runs for bits in results}) == 1
    mean = np.frombuffer(runs[0][0], np.float32)
    assert np.allclose(mean, parts.mean(0), atol=1e-6)


@EMBEDDED
def test_who_is_late_computes_no_part_of_a_sum_that_is_over(system: System) -> None:
    """Not the second part where the sum is over after the first, and none of the next one."""

    def work(comm: p4reduce.Communicator) -> list[int]:
        computed: list[int] = []
        with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:

            def compute(part: int) -> np.ndarray:
                computed.append(part)
                if comm.rank == 1:
                    wait_until_behind(coded, 2)
                return np.full(3, part, np.int32)

            for _ in range(2):
                assert coded.sum(compute).result.tolist() == [6, 6, 6]
        return computed

    everything = system.run(4, work)
    assert everything[1] == [0]
    assert everything[0] == [0, 1, 0, 1]


@EMBEDDED
def test_parts_of_float16_are_added_in_float32(system: System) -> None:
    """Their sum is beyond float16, and their mean is not; a late rank has the dtype as well."""

    def work(comm: p4reduce.Communicator) -> np.ndarray:
        large = np.full(5, 40_000, np.float16)
        with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:
            if comm.rank:
                wait_until_behind(coded)
                with pytest.raises(ValueError, match=r"out has shape \(2, 5\)"):
                    coded.sum(lambda part: large, "mean", out=np.empty((2, 5), np.float16))
            else:
                coded.sum(lambda part: large, "mean")
            return coded.sum(lambda part: large, "mean").result

    for mean in system.run(2, work):
        assert mean.dtype == np.float16
        assert (mean == 40_000).all()


def test_bad_arguments(alone: p4reduce.Communicator) -> None:
    for wrong, kind, words in (
        ({"copies": 2}, ValueError, "copies=2: 1 to 1 are possible"),
        ({"copies": 1.5}, TypeError, "copies=1.5"),
        ({"groups": "leaves"}, ValueError, "'switches' is needed"),
        ({"groups": [[0, 1]]}, ValueError, "0 to 0 are possible"),
    ):
        with pytest.raises(kind, match=words):
            FractionalRepetition(alone, **({"copies": 1} | wrong))
    with FractionalRepetition(alone, 1, timeout=DEADLINE) as coded:
        with pytest.raises(TypeError, match="Python objects"):
            coded.sum(lambda part: np.array([object()]))
        assert coded.sum(lambda part: np.ones(2, np.float32)).result.tolist() == [1.0, 1.0]
