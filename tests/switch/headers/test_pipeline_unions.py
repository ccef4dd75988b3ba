# SPDX-License-Identifier: Apache-2.0
"""Header unions (programs/unions.p4): the last header to become valid is the only one."""

from __future__ import annotations

import pytest
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

A, B = b"\x01\x02", b"\x03\x04\x05"
SET_A, SET_B, INVALIDATE_A, COPY, COPY_AND_SET_A = 1, 2, 3, 4, 5
EQUAL, UNEQUAL = 0x40, 0x80


@pytest.mark.parametrize(
    ("kind", "what", "sent", "valid", "wanted"),
    [
        (0, 0, b"", 0, b""),
        (1, 0, A, 0x10, A),
        (2, 0, B, 0x20, B),
        (3, 0, A + B, 0x20, B),
        (0, SET_A, b"", 0x10, b"\xaa\xbb"),
        (2, SET_A, B, 0x10, b"\xaa\xbb"),
        (1, SET_A, A, 0x10, b"\xaa\xbb"),
        (1, SET_B, A, 0x20, b"\xcc\xcc\xcc"),
        (1, INVALIDATE_A, A, 0, b""),
        (2, INVALIDATE_A, B, 0x20, B),
        (1, COPY, A, 0x10, A + A),
        (2, COPY, B, 0x20, B + B),
        (0, COPY, b"", 0, b""),
        (1, COPY_AND_SET_A, A, 0x10, A + A),
        (2, COPY_AND_SET_A, B, 0x10, b"\x01\x02" + B),
    ],
)
def test_union(kind: int, what: int, sent: bytes, valid: int, wanted: bytes) -> None:
    ((_, out),) = load("unions").process(0, bytes((kind, what)) + sent + b"tail")
    half = len(wanted) // 2  # where a copy was made, it is the second half
    equal = EQUAL if wanted[:half] == wanted[half:] else UNEQUAL
    assert out == bytes((kind | valid | equal, what)) + wanted + b"tail"
