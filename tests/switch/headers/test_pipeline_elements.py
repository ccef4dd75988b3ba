# SPDX-License-Identifier: Apache-2.0
"""Elements of a header stack at a run-time index, and signed keys (programs/elements.p4).

BMv2 loads none of it, or ends at it.
"""

from __future__ import annotations

import pytest
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

WRITE_IN_PARSER, ENABLE_IN_PARSER, VERIFY_IN_PARSER, SELECT = 1, 2, 3, 4
INVALIDATE, COMPARE, KEY, KEY_VALIDITY, COPY_TO, COPY_BOTH = range(10, 16)
REGISTER_READ, RANDOM, SIGNED_KEY, SIGNED_ELEMENT_KEY, METER = range(16, 21)
FIRST, SECOND = b"\x05\x01", b"\x06\x80"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load("elements")


def run(
    pipeline: Pipeline, what: int, index: int, other: int = 0, items: bytes = FIRST + SECOND
) -> tuple[int, bytes]:
    """What is in `result` at the end, and all after the command; there are two of three items."""
    ((_, out),) = pipeline.process(0, bytes((what, index, other, 0)) + items + b"!")
    assert out[:3] == bytes((what, index, other))
    return out[3], out[4:-1]


@pytest.mark.parametrize(
    ("what", "index", "result", "items"),
    [
        (WRITE_IN_PARSER, 1, 0, FIRST + b"\x77\x80"),
        (WRITE_IN_PARSER, 3, 0, FIRST + SECOND),
        (ENABLE_IN_PARSER, 2, 0, FIRST + SECOND + b"\0\0"),
        (ENABLE_IN_PARSER, 3, 0, FIRST + SECOND),
        (VERIFY_IN_PARSER, 1, 0, FIRST + SECOND),
        (VERIFY_IN_PARSER, 2, 0xEE, FIRST + SECOND),
        (SELECT, 0, 0, FIRST + SECOND),
        (SELECT, 1, 0, FIRST + b"\x07\x80"),
        (SELECT, 3, 0, FIRST + SECOND),
        (INVALIDATE, 0, 0, SECOND),
        (INVALIDATE, 1, 0, FIRST),
        (INVALIDATE, 2, 0, FIRST + SECOND),
        (INVALIDATE, 255, 0, FIRST + SECOND),
        (COMPARE, 0, 1, FIRST + SECOND),
        (COMPARE, 1, 0, FIRST + SECOND),
        (COMPARE, 2, 0, FIRST + SECOND),
        (COMPARE, 3, 0, FIRST + SECOND),
        (KEY, 0, 0x15, FIRST + SECOND),
        (KEY, 1, 0, FIRST),
        (KEY, 2, 0x10, FIRST + SECOND),  # the fields of an invalid header are zero in keys
        (KEY, 3, 0x10, FIRST + SECOND),
        (KEY_VALIDITY, 1, 1, FIRST + SECOND),
        (KEY_VALIDITY, 2, 2, FIRST + SECOND),
        (KEY_VALIDITY, 3, 2, FIRST + SECOND),
        (COPY_TO, 1, 0, FIRST + FIRST),
        (COPY_TO, 2, 0, FIRST + SECOND + FIRST),
        (COPY_TO, 3, 0, FIRST + SECOND),
        (REGISTER_READ, 1, 0, FIRST + b"\x42\x80"),
        (REGISTER_READ, 3, 0, FIRST + SECOND),
        (RANDOM, 0, 0, b"\x33\x01" + SECOND),
        (RANDOM, 3, 0, FIRST + SECOND),
        (METER, 1, 0, FIRST + b"\0\x80"),  # without rates it is green
        (METER, 3, 0, FIRST + SECOND),
        (SIGNED_KEY, 0xFD, 3, FIRST + SECOND),
        (SIGNED_KEY, 3, 4, FIRST + SECOND),
        (SIGNED_KEY, 5, 9, FIRST + SECOND),
        (SIGNED_ELEMENT_KEY, 0, 9, FIRST + SECOND),
        (SIGNED_ELEMENT_KEY, 1, 3, FIRST + SECOND),
        (SIGNED_ELEMENT_KEY, 2, 4, FIRST + SECOND),
        (SIGNED_ELEMENT_KEY, 3, 4, FIRST + SECOND),
    ],
)
def test_element(pipeline: Pipeline, what: int, index: int, result: int, items: bytes) -> None:
    assert run(pipeline, what, index) == (result, items)


@pytest.mark.parametrize(
    ("index", "other", "items"),
    [
        (0, 1, SECOND + SECOND),
        (2, 0, FIRST + SECOND + FIRST),
        (0, 0, FIRST + SECOND),
        (0, 2, SECOND),  # a copy of an invalid element is invalid
        (0, 3, SECOND),  # as is one of an element that is not there
        (3, 0, FIRST + SECOND),
    ],
)
def test_copy_from_one_to_another(pipeline: Pipeline, index: int, other: int, items: bytes) -> None:
    assert run(pipeline, COPY_BOTH, index, other) == (0, items)
