# SPDX-License-Identifier: Apache-2.0
"""Attempts come until a time is up, with pauses that may grow."""

from __future__ import annotations

import itertools
import math

import pytest
from p4reduce_common.polling import Backoff, attempts, holds_within, retry


def test_a_first_attempt_has_all_the_time_and_the_last_one_none() -> None:
    left = list(attempts(0.05, 0.01))
    assert left[0] == 0.05
    assert left[-1] == 0.0
    assert left == sorted(left, reverse=True)


def test_without_time_there_is_one_attempt() -> None:
    assert list(attempts(0.0, 1.0)) == [0.0]
    assert list(attempts(-1.0, 1.0)) == [0.0]


def test_a_pause_is_no_longer_than_what_is_left() -> None:
    assert len(list(attempts(0.05, 3600.0))) == 2


def test_nobody_looks_again_once_it_holds() -> None:
    looks = itertools.count(1)
    assert holds_within(60.0, lambda: next(looks) == 3, 0.001)
    assert next(looks) == 4
    assert not holds_within(0.01, lambda: False, 0.001)


def test_pauses_grow_to_the_longest_and_begin_anew_for_each_who_asks() -> None:
    for _ in range(2):
        assert list(itertools.islice(Backoff(1.0, 5.0), 5)) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert list(itertools.islice(Backoff(1.0, 9.0, 3.0), 4)) == [1.0, 3.0, 9.0, 9.0]


def test_attempts_with_growing_pauses_become_rare() -> None:
    left = list(attempts(0.05, Backoff(0.001, 3600.0)))
    assert len(left) <= 7
    assert left[-1] == 0.0


def test_an_attempt_is_made_again_after_an_error_that_may_be_gone() -> None:
    number = itertools.count(1)

    def attempt(left: float) -> int:
        if (tried := next(number)) < 3:
            raise ConnectionRefusedError
        return tried

    assert retry(attempt, ConnectionRefusedError, math.inf, 0.001) == 3


def test_other_errors_end_the_attempts_at_once() -> None:
    number = itertools.count(1)

    def attempt(left: float) -> None:
        raise OSError(next(number))

    with pytest.raises(OSError, match="1"):
        retry(attempt, ConnectionRefusedError, math.inf, 0.001)
    with pytest.raises(OSError, match="2"):
        retry(attempt, OSError, math.inf, 0.001, lambda error: error.errno == 0)


def test_without_time_for_a_pause_the_error_is_raised() -> None:
    given = list[float]()

    def attempt(left: float) -> None:
        given.append(left)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        retry(attempt, TimeoutError, 0.0, 0.5)
    assert given == [0.5]
    with pytest.raises(TimeoutError):
        retry(attempt, TimeoutError, 0.2, 0.01)
    assert min(given) >= 0.01
