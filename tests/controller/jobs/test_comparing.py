# SPDX-License-Identifier: Apache-2.0
"""What is told of ranks that called different things."""

from __future__ import annotations

import contextlib

from jobs_world import World, leave, make_jobs, refused, running
from p4reduce_controller.jobs.comparing import (
    LONGEST_TEXT,
    MOST_CALLS,
    MOST_WAITS,
    Called,
    Comparison,
)
from p4reduce_controller.jobs.refusals import Cause


def called(text: str, *pieces: str) -> Called:
    return Called.of(text, pieces)


def test_the_first_place_at_which_ranks_differ_counts() -> None:
    comparison = Comparison(0.0)
    comparison.add(0, [(5, called("a")), (6, called("b")), (7, called("c"))])
    comparison.add(1, [(6, called("b")), (7, called("x")), (8, called("z"))])
    comparison.add(2, [(7, called("c"))])
    assert comparison.differing_calls() == [(7, called("c"), [0, 2]), (7, called("x"), [1])]


def test_pieces_count_as_well() -> None:
    comparison = Comparison(0.0)
    comparison.add(0, [(0, called("a", "v", "w"))])
    comparison.add(1, [(0, called("a", "v", "x"))])
    assert [ranks for _, _, ranks in comparison.differing_calls()] == [[0], [1]]


def test_ranks_that_told_the_same_do_not_differ() -> None:
    comparison = Comparison(0.0)
    assert comparison.differing_calls() == []
    comparison.add(0, [(0, called("a"))])
    comparison.add(1, [(0, called("a")), (1, called("b"))])
    assert comparison.differing_calls() == []


def test_what_a_rank_says_twice_counts_once() -> None:
    comparison = Comparison(0.0)
    comparison.add(0, [(0, called("a"))])
    comparison.add(0, [(0, called("b"))])
    comparison.add(1, [(0, called("a"))])
    assert comparison.differing_calls() == []


def test_ranks_that_left_are_silent_but_not_waited_for() -> None:
    jobs = make_jobs(World())
    job = running(jobs, size=4)
    comparison = Comparison(0.0)
    comparison.add(1, [])
    comparison.add(2, [])
    leave(jobs, job, 2)
    leave(jobs, job, 3)
    assert not comparison.complete(member.rank for member in job.active)
    assert comparison.silent(job.members) == [0, 3]
    comparison.add(0, [])
    assert comparison.complete(member.rank for member in job.active)
    assert comparison.silent(job.members) == [3]


def test_a_rank_waits_so_often_at_once() -> None:
    jobs = make_jobs(World())
    job = running(jobs)
    comparison = Comparison(0.0)
    with contextlib.ExitStack() as waiting:
        for _ in range(MOST_WAITS):
            waiting.enter_context(comparison.asked_by(0, str(job.members[0])))
        text = refused(
            Cause.EXHAUSTED, lambda: comparison.asked_by(0, str(job.members[0])).__enter__()
        )
        assert text.startswith("8 calls of rank 0 (host host0, pid 100) wait already")
        with comparison.asked_by(1, str(job.members[1])):
            pass
    with comparison.asked_by(0, str(job.members[0])):
        pass


def test_what_others_are_shown_is_bounded_and_printable() -> None:
    assert called("a\x1b[2Jb" + "c" * 1000, "d\n").text == ("a[2Jb" + "c" * 1000)[:LONGEST_TEXT]
    assert called("", "d\n").pieces == ("d",)
    comparison = Comparison(0.0)
    comparison.add(0, [(n, called("a")) for n in range(MOST_CALLS + 1)])
    comparison.add(1, [(MOST_CALLS, called("b"))])
    assert comparison.differing_calls() == []
