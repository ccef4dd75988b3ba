# SPDX-License-Identifier: Apache-2.0
"""Header unions (programs/unions.p4): the last header to become valid is the only one."""

from __future__ import annotations

import json

import pytest
from p4reduce_switch.loader import LoadError
from p4reduce_switch.loader import load as load_program
from pipeline_programs import config, load

A, B = b"\x01\x02", b"\x03\x04\x05"
SET_A, SET_B, INVALIDATE_A = 1, 2, 3


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
    ],
)
def test_union(kind: int, what: int, sent: bytes, valid: int, wanted: bytes) -> None:
    ((_, out),) = load("unions").process(0, bytes((kind, what)) + sent + b"tail")
    assert out == bytes((kind | valid, what)) + wanted + b"tail"


def test_unions_of_stacks_are_refused_by_name() -> None:
    root = json.loads(config("unions"))
    root["header_union_stacks"] = [{"name": "us"}]
    with pytest.raises(LoadError, match="stack of header unions 'us' is not supported"):
        load_program(json.dumps(root))
