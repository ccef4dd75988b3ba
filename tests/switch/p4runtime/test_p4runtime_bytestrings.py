# SPDX-License-Identifier: Apache-2.0
"""Byte strings: the tables of examples in P4Runtime 1.4.1, "Bytestrings", and what follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4reduce_switch.errors import P4RuntimeError
from p4reduce_switch.p4runtime.bytestrings import decode, encode


@pytest.mark.parametrize(
    ("width", "data", "value", "canonical"),
    [
        (8, b"\x63", 99, True),
        (16, b"\x00\x63", 99, False),
        (16, b"\x63", 99, True),
        (16, b"\x30\x64", 12388, True),
        (16, b"\x00\x30\x64", 12388, False),
        (12, b"\x00\x63", 99, False),
        (12, b"\x63", 99, True),
        (12, b"\x00\x00\x63", 99, False),
        (1, b"\x00", 0, True),
    ],
)
def test_valid_examples(width: int, data: bytes, value: int, canonical: bool) -> None:
    assert decode(data, width, "here") == value
    assert (encode(value) == data) == canonical


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_invalid_examples(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError):
        decode(data, width, "here")


def test_the_message_tells_value_and_limit() -> None:
    with pytest.raises(
        P4RuntimeError, match=r"0x1063 takes 13 bits, but only 12 are allowed .at most 0xfff"
    ):
        decode(b"\x10\x63", 12, "here")


@given(st.integers(1, 2100).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, 2**w - 1))))
def test_round_trip(case: tuple[int, int]) -> None:
    width, value = case
    data = encode(value)
    assert decode(data, width, "here") == value
    assert decode(b"\x00\x00" + data, width, "here") == value
    assert len(data) == 1 or data[0] != 0
    if value.bit_length() == width:
        with pytest.raises(P4RuntimeError):
            decode(data, width - 1, "here")
