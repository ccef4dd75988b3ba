# SPDX-License-Identifier: Apache-2.0
"""lookahead (programs/peeking.p4)."""

from __future__ import annotations

import struct

import pytest
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")


@pytest.mark.parametrize(
    ("sent", "seen", "too_short", "header_y", "part"),
    [
        (b"", 0, 1, 0, 0),
        (b"\x10", 0, 0, 0, 0),
        (b"\x1f", 0, 0, 0, 0),
        (b"\x21\x22\x33", 0, 1, 0, 0),
        (b"\x21\x22\x33\x44\xab", 0x21, 1, 0x3344, 0),
        (b"\x21\x22\x33\x44\xab\xcd", 0x21, 0, 0x3344, 0xABC),
        (b"\x30\1\2\3\4\5\6", 0, 1, 0, 0),
        (b"\x30\1\2\3\4\5\6\7\x08", 0, 0, 0x0607, 0),
        (b"\x40", 0, 0, 0, 0),
    ],
)
def test_lookahead(sent: bytes, seen: int, too_short: int, header_y: int, part: int) -> None:
    ((_, out),) = load("peeking").process(0, sent)
    assert struct.unpack_from(">BHHH", out) == (seen, too_short, header_y, part)
    assert out[7:] == sent
