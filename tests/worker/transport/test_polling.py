# SPDX-License-Identifier: Apache-2.0
"""Attempts come until a time is up, and one of them at its end."""

from __future__ import annotations

import itertools

from p4reduce_common.polling import attempts, holds_within


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
