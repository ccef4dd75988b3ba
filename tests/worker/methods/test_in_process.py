# SPDX-License-Identifier: Apache-2.0
"""Ranks in one process: sums, groups, and what ends them."""

from __future__ import annotations

import numpy as np
import pytest
from p4reduce.methods import in_process
from p4reduce.methods.in_process import InProcess, LostError, outcomes_of, run


def test_sums_and_groups() -> None:
    def work(comm: InProcess) -> tuple[float, float]:
        half = comm.split(comm.rank % 2, key=-comm.rank)
        assert half is not None
        assert half.size == 3
        mine = np.array([2.0**comm.rank])
        return comm.allreduce(mine)[0], half.allreduce(mine)[0]

    assert run(6, work) == [(63, 21), (63, 42)] * 3


def test_integers_are_exact_and_overflow_is_told_to_all() -> None:
    assert run(3, lambda comm: comm.allreduce(np.array([40], np.int8))[0]) == [120] * 3
    errors = outcomes_of(4, lambda comm: comm.allreduce(np.array([40], np.int8)))
    assert isinstance(errors[3], OverflowError)
    assert all(isinstance(error, LostError) for error in errors[:3])


def test_a_rank_that_ends_ends_the_others_wait() -> None:
    def work(comm: InProcess) -> None:
        if comm.rank == 1:
            raise KeyError("gone")
        comm.allreduce(np.zeros(3))

    errors = outcomes_of(3, work)
    assert [type(error) for error in errors] == [LostError, KeyError, LostError]
    with pytest.raises(KeyError):
        run(3, work)


def test_ranks_that_differ_in_what_they_sum_do_not_hang() -> None:
    errors = outcomes_of(2, lambda comm: comm.allreduce(np.zeros(3 + comm.rank)))
    assert all(isinstance(error, LostError) for error in errors)


def test_what_is_sent_is_counted() -> None:
    traffic = in_process.InProcessTraffic()
    run(4, lambda comm: comm.allreduce(np.full(5, float(comm.rank > 1))), traffic)
    assert (traffic.calls, traffic.uploads, traffic.elements) == (1, 2, 5)
    assert traffic.patterns == {(4, 2): 1}
