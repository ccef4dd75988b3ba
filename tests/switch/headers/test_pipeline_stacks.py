# SPDX-License-Identifier: Apache-2.0
"""Header stacks (programs/stacks.p4)."""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

PLAIN, WRITE_CONSTANT, PUSH_ONE, PUSH_TWO, POP_ONE, POP_TWO, READ_AT, WRITE_AT = range(8)
COPY_FROM, HASH_AT, SWAP, COPY_STACK, PUSH_IN_EGRESS, POP_IN_EGRESS = range(8, 14)
COPY_AND_CHANGE, COPY_IN_PARSER = 14, 15
NO_LABELS = 0xFF
STACK_OUT_OF_BOUNDS, TOO_SHORT = 1, 2


@pytest.fixture
def pipeline() -> Pipeline:
    return load("stacks")


def labels(*values: int) -> bytes:
    """A stack as it is on the wire: the last label has no more-bit."""
    last = len(values) - 1
    return b"".join(
        (value << 4 | (index < last)).to_bytes(2, "big") for index, value in enumerate(values)
    )


def run(
    pipeline: Pipeline, what: int, stack: bytes, index: int = 0, tail: bytes = b"!"
) -> tuple[int, int, bytes]:
    """Parser error, trace, and all after the command."""
    ((port, out),) = pipeline.process(0, struct.pack(">BBHI", what, index, 0, 0) + stack + tail)
    assert (port, out[:2]) == (1, bytes((what, index)))
    failure, trace = struct.unpack_from(">HI", out, 2)
    return failure, trace, out[8:]


@pytest.mark.parametrize("values", [(5,), (5, 6), (5, 6, 7)])
def test_next_and_last(pipeline: Pipeline, values: tuple[int, ...]) -> None:
    stack = labels(*values)
    trace = values[-1] << 8 | (len(values) - 1)
    assert run(pipeline, PLAIN, stack) == (0, trace, stack + b"!")


def test_more_than_there_is_room_for(pipeline: Pipeline) -> None:
    stack = labels(1, 2, 3, 4)
    assert run(pipeline, PLAIN, stack) == (STACK_OUT_OF_BOUNDS, 0, stack + b"!")


def test_short_frame_keeps_what_was_taken(pipeline: Pipeline) -> None:
    stack = labels(1, 2, 3)[:3]
    assert run(pipeline, WRITE_CONSTANT, stack, tail=b"") == (TOO_SHORT, 0, stack)


def test_last_index_of_an_empty_stack(pipeline: Pipeline) -> None:
    assert run(pipeline, NO_LABELS, b"ab") == (0, 0xFFFFFFFF, b"ab!")


def marked(*values: tuple[int, int]) -> bytes:
    return b"".join((value << 4 | more).to_bytes(2, "big") for value, more in values) + b"!"


def test_constant_index(pipeline: Pipeline) -> None:
    assert run(pipeline, WRITE_CONSTANT, labels(1, 2, 3))[2] == marked((1, 1), (0xABC, 1), (3, 0))


def test_push(pipeline: Pipeline) -> None:
    # The new element is made valid by the program, as P4_16 wants it.
    assert run(pipeline, PUSH_ONE, labels(1, 2))[2] == marked((5, 0), (1, 1), (2, 0))
    # What does not fit falls out at the end.
    assert run(pipeline, PUSH_ONE, labels(1, 2, 3))[2] == marked((5, 0), (1, 1), (2, 1))
    # Pushed elements that stay invalid do not go out.
    assert run(pipeline, PUSH_TWO, labels(1, 2, 3))[2] == marked((1, 1))


def test_pop(pipeline: Pipeline) -> None:
    assert run(pipeline, POP_ONE, labels(1, 2, 3))[2] == marked((2, 1), (3, 0))
    assert run(pipeline, POP_TWO, labels(1, 2, 3))[2] == marked((3, 0))
    assert run(pipeline, POP_TWO, labels(1))[2] == b"!"


def test_in_egress(pipeline: Pipeline) -> None:
    assert run(pipeline, PUSH_IN_EGRESS, labels(1, 2, 3))[2] == marked((1, 1), (2, 1))
    assert run(pipeline, POP_IN_EGRESS, labels(1, 2, 3))[2] == marked((2, 1), (3, 0))


def test_index_at_run_time(pipeline: Pipeline) -> None:
    for index, value in enumerate((7, 8, 9)):
        assert run(pipeline, READ_AT, labels(7, 8, 9), index)[1] == value
    assert run(pipeline, WRITE_AT, labels(7, 8, 9), 2)[2] == marked((7, 1), (8, 1), (0xFED, 0))
    # Out of bounds: nothing is read or written.
    assert run(pipeline, READ_AT, labels(7, 8, 9), 3)[1] == 0
    assert run(pipeline, WRITE_AT, labels(7, 8, 9), 3)[2] == labels(7, 8, 9) + b"!"


def test_swap_of_elements(pipeline: Pipeline) -> None:
    assert run(pipeline, SWAP, labels(1, 2, 3))[2] == marked((3, 0), (2, 1), (1, 1))


def test_in_tables(pipeline: Pipeline) -> None:
    assert run(pipeline, PLAIN, labels(0x111, 2))[2] == marked((0x111, 1), (0xAAA, 0))
    assert run(pipeline, PLAIN, labels(0x222, 2, 3))[2] == marked((0x222, 1), (2, 1))


@pytest.mark.parametrize("what", [COPY_FROM, COPY_IN_PARSER])
def test_copy_from_a_run_time_index(pipeline: Pipeline, what: int) -> None:
    stack = labels(7, 8, 9)
    assert run(pipeline, what, stack, 1)[2] == stack + marked((8, 1))
    # A copy of an element that is not there is invalid.
    assert run(pipeline, what, stack, 3)[2] == stack + b"!"
    assert run(pipeline, what, labels(7), 2)[2] == labels(7) + b"!"


def test_hash_into_a_run_time_index(pipeline: Pipeline) -> None:
    # crc16 of a byte 2 is 0xC181.
    assert run(pipeline, HASH_AT, labels(7, 8, 9), 2)[2] == marked((7, 1), (8, 1), (0x181, 0))


def test_copies_and_comparison_of_stacks(pipeline: Pipeline) -> None:
    stack = labels(7, 8, 9)
    assert run(pipeline, COPY_STACK, stack) == (0, 1, stack + stack + b"!")
    changed = marked((7, 1), (7, 1), (9, 0))
    assert run(pipeline, COPY_AND_CHANGE, stack) == (0, 2, stack + changed)
