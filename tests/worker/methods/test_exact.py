# SPDX-License-Identifier: Apache-2.0
"""Sums that are exact, and meetings that end on all ranks alike."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.methods.exact import Fixed, sum_floats, sum_integers
from p4reduce.methods.meeting import meet
from worker_system import System


def test_integers_of_62_bits_are_summed_exactly(system: System, rng: np.random.Generator) -> None:
    limit = 2**62 // 4
    parts = rng.integers(-limit, limit, (4, 7, 50))
    parts[:, 0, :3] = [[limit], [limit], [limit], [limit]]
    parts[:, 0, 3] = -limit
    sums = system.run(4, lambda comm: sum_integers(comm, parts[comm.rank], "integers"))
    wanted = np.array(parts.astype(object).sum(axis=0), np.int64)
    assert all((one == wanted).all() and one.dtype == np.int64 for one in sums)


def test_limbs_of_small_numbers_that_are_zeros_are_not_sent(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> int:
        before = comm.stats.blocks_announced
        sum_integers(comm, np.full(256 * 10, 1000 + comm.rank), "counts")
        return comm.stats.blocks_announced - before

    assert system.run(2, work) == [10, 10]


def test_floats_are_off_by_less_than_float64_itself(
    system: System, rng: np.random.Generator
) -> None:
    parts = rng.standard_normal((4, 300)) * np.exp(rng.standard_normal((4, 300)) * 5)
    sums = system.run(4, lambda comm: sum_floats(comm, parts[comm.rank], "floats"))
    exact = [sum(map(Fraction, column)) for column in parts.T.tolist()]
    bound = Fraction(float(np.abs(parts).max())) * Fraction(1, 2**52)
    assert all(
        abs(Fraction(float(got)) - want) <= bound for got, want in zip(sums[0], exact, strict=True)
    )
    assert all((one == sums[0]).all() for one in sums)


def test_sums_over_samples_have_the_same_bits_for_any_number_of_ranks(
    system: System, rng: np.random.Generator
) -> None:
    samples = rng.standard_normal((100, 5)) * [1e-9, 1, 1e9, 0, 3]

    def total(ranks: int) -> Any:
        parts = np.array_split(samples, ranks)

        def work(comm: p4reduce.Communicator) -> Any:
            fixed = Fixed(comm, parts[comm.rank], len(samples), "samples")
            mine = fixed.integers.sum(axis=0)
            return fixed.floats(sum_integers(comm, mine, "sums")).tobytes()

        (result,) = set(system.run(ranks, work))
        return result

    assert total(1) == total(4) == total(8)
    np.testing.assert_allclose(np.frombuffer(total(1)), samples.sum(axis=0), rtol=1e-9)


def test_what_is_wrong_on_one_rank_is_told_by_all(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> str:
        problem = "no samples" if comm.rank == 2 else None
        with pytest.raises(ValueError, match="rank 2") as raised:
            meet(comm, "a method", problem, {"samples": comm.rank})
        comm.barrier()  # which is still possible
        return str(raised.value)

    assert set(system.run(3, work)) == {"a method: rank 2: no samples"}


def test_what_has_to_be_the_same_is_compared(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> str:
        with pytest.raises(ValueError, match="need the same") as raised:
            meet(comm, "a method", None, {"features": 5 - comm.rank // 2}, same=("features",))
        return str(raised.value)

    text = "a method: rank 0 has features = 5, rank 2 has 4; all ranks need the same"
    assert set(system.run(4, work)) == {text}


def test_numbers_that_differ_in_the_last_digit_are_told_apart(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> str:
        settings = {"rate": 1 / 3 if comm.rank else 0.3333333333}
        with pytest.raises(ValueError, match="need the same") as raised:
            meet(comm, "a method", None, {}, settings=settings)
        return str(raised.value)

    text = "rank 0 has rate = 0.3333333333, rank 1 has 0.3333333333333333; all ranks need the same"
    assert set(system.run(2, work)) == {f"a method: {text}"}
