# SPDX-License-Identifier: Apache-2.0
"""Headers that the parser assigns (programs/header_copies.p4, union_copies.p4)."""

from __future__ import annotations

import pytest
from pipeline_programs import load
from test_pipeline_stacks import labels
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

PLAIN, KEEP_LAST, APPEND, REPEAT_LAST, CHOOSE, KEEP_NONE = range(6)
CPU_PORT = 255


def run(what: int, rest: bytes) -> tuple[bool, bytes]:
    """Whether the parser left the stack, and all after the command."""
    ((port, out),) = load("header_copies").process(0, bytes((what, 0)) + rest + b"!")
    assert (port, out[0]) == (CPU_PORT, what)
    return out[1] == 1, out[2:]


def kept(value: int, more: int) -> bytes:
    """What the program shows of the header that it kept."""
    return (value << 4 | 7 << 1 | more).to_bytes(2, "big")


@pytest.mark.parametrize("values", [(5,), (5, 6), (5, 6, 7)])
def test_the_last_of_a_stack(values: tuple[int, ...]) -> None:
    stack = labels(*values)
    assert run(KEEP_LAST, stack) == (False, stack + kept(values[-1], 0) + b"!")


def test_the_last_of_an_empty_stack() -> None:
    assert run(KEEP_NONE, b"abc") == (True, b"abc!")


def test_the_next_of_a_stack() -> None:
    assert run(APPEND, labels(1, 2) + b"xy") == (False, labels(1, 2) + b"xy!")
    assert run(APPEND, labels(1) + b"xy") == (False, labels(1) + b"xy!")


def test_the_next_of_a_full_stack() -> None:
    """Parsing stops before the statement: the header that was to be moved is still there."""
    assert run(APPEND, labels(1, 2, 3) + b"xy") == (True, labels(1, 2, 3) + b"xy!")


def test_next_from_last() -> None:
    assert run(REPEAT_LAST, labels(1, 2)) == (False, labels(1, 2) + labels(2) + b"!")
    assert run(REPEAT_LAST, labels(1)) == (False, labels(1) + labels(1) + b"!")
    assert run(REPEAT_LAST, labels(1, 2, 3)) == (True, labels(1, 2, 3) + b"!")


def test_by_a_condition() -> None:
    assert run(CHOOSE, labels(1, 2)) == (False, labels(1, 2) + kept(1, 1) + b"!")
    assert run(CHOOSE, labels(5, 2)) == (False, labels(5, 2) + kept(2, 0) + b"!")
    # The element is not there, and so neither is its copy.
    assert run(CHOOSE, labels(5)) == (False, labels(5) + b"!")


@pytest.mark.parametrize(
    ("frame", "wanted"),
    [
        (bytes((PLAIN, 0)) + labels(1, 2), bytes((PLAIN, 0)) + labels(1, 2)),
        (bytes((CHOOSE, 0)) + labels(1, 2), bytes((CHOOSE, 0)) + labels(1, 2) + kept(1, 1)),
    ],
)
def test_what_bmv2_does_too(start: Start, frame: bytes, wanted: bytes) -> None:
    """Of a copy of `last` or `next` it ends."""
    assert exchange(start("header_copies"), frame) == wanted


@pytest.mark.parametrize(
    ("frame", "wanted"),
    [
        (b"\1\0A", b"\1\0AAA!"),  # the union, its copy, and its header `one`
        (b"\2\0AB", b"\2\0ABAB!"),
        (b"\0\0", b"\0\1!"),
    ],
)
def test_the_last_union_of_a_stack(frame: bytes, wanted: bytes) -> None:
    assert load("union_copies").process(0, frame + b"!") == [(1, wanted)]
