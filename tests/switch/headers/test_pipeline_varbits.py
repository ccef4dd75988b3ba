# SPDX-License-Identifier: Apache-2.0
"""Headers with a varbit field (programs/varbits.p4)."""

from __future__ import annotations

import struct

import pytest
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

SHORT, HEADER_TOO_SHORT, INVALID_ARGUMENT = 1, 2, 3
PLAIN, SET_X, REMOVE, SET_X_IN_EGRESS, REMOVE_IN_EGRESS, ADD = 0, 1, 2, 3, 4, 9


def run(what: int, bits: int, rest: bytes) -> tuple[int, int, bytes]:
    """Parser error, packet_length in egress, and all after the command."""
    ((port, out),) = load("varbits").process(0, struct.pack(">BBHI", what, bits, 0, 0) + rest)
    assert (port, out[:2]) == (1, bytes((what, bits)))
    return (*struct.unpack_from(">HI", out, 2), out[8:])


@pytest.mark.parametrize("count", [0, 1, 7, 8])
@pytest.mark.parametrize(
    ("what", "x", "removed"),
    [(PLAIN, b"x", 0), (SET_X, b"\xaa", 0), (SET_X_IN_EGRESS, b"\xcc", 0), (REMOVE, b"", 1)],
)
def test_kept_changed_and_removed(count: int, what: int, x: bytes, removed: int) -> None:
    data = b"12345678"[:count]
    length = 8 + 1 + count + 1 + 4 - removed * (1 + count)
    wanted = (b"" if removed else x + data) + b"yrest"
    assert run(what, 8 * count, b"x" + data + b"yrest") == (0, length, wanted)


def test_removed_in_egress() -> None:
    assert run(REMOVE_IN_EGRESS, 16, b"xabyrest") == (0, 16, b"yrest")


def test_made_valid_without_data() -> None:
    assert run(ADD, 16, b"rest") == (0, 13, b"\xbb\0"[:1] + b"rest")


@pytest.mark.parametrize(
    ("bits", "rest", "error"),
    [
        (16, b"xa", SHORT),
        (0, b"", SHORT),
        (64, b"x12345678", SHORT),  # of the header after it
        (72, b"x123456789y", HEADER_TOO_SHORT),
        (72, b"x12345678", SHORT),
        (9, b"xabcdef", INVALID_ARGUMENT),
    ],
)
def test_errors(bits: int, rest: bytes, error: int) -> None:
    assert run(PLAIN, bits, rest) == (error, 8 + len(rest), rest)
