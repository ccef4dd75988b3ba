# SPDX-License-Identifier: Apache-2.0
"""Stacks of header unions (programs/union_stacks.p4, union_elements.p4).

BMv2 does not load the second, or ends at it.
"""

from __future__ import annotations

import pytest
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

NOTHING, COPY, COPY_ELEMENT, SET_OTHER, PUSH, PUSH_TWO, POP, POP_TWO = range(8)
COPY_IN_PARSER, COMPARE, REMOVE, PUSH_IN_EGRESS, LOCAL = range(8, 13)
OUT_OF_BOUNDS = 1
# A short header, a long one, and one with a varbit field of 16 bits.
S, L, V = "01 11", "02 22 33 44", "03 55 66 77"
END = "ee"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load("union_stacks")


def run(pipeline: Pipeline, what: int, rest: str) -> tuple[int, int, int, str]:
    """Failure, result, the last index, and all after the command."""
    ((_, out),) = pipeline.process(0, bytes((what, 0, 0, 0)) + bytes.fromhex(rest))
    assert out[0] == what
    return out[1], out[2], out[3], out[4:].hex(" ")


@pytest.mark.parametrize(
    ("what", "sent", "wanted"),
    [
        (NOTHING, (S, L, V), (S, L, V)),
        (COPY, (S, L, V), (S, L, V, S, L, V)),
        (COPY_IN_PARSER, (S, L, V), (S, L, V, S, L, V)),
        (COPY_IN_PARSER, (V,), (V, V)),
        (COPY_ELEMENT, (S, L, V), (V, L, V, L)),
        (COPY_ELEMENT, (V, S, L), (L, S, L, S)),
        (SET_OTHER, (S, S, S), ("ab cd ef 01", S, "07 08")),
        (SET_OTHER, (L, S, V), ("ab cd ef 01", S, "07 08")),
        # As BMv2 does it, what is shifted out comes back at the other end.
        (PUSH, (S, L, V), (V, S, L)),
        (PUSH, (S, L), (S, L)),
        (PUSH_IN_EGRESS, (S, L, V), (V, S, L)),
        (PUSH_TWO, (S, L, V), (V, L, S)),
        (POP, (S, L, V), (L, V, S)),
        (POP_TWO, (S, L, V), (V, L, S)),
        (REMOVE, (S, S, S), (S, S)),
        (REMOVE, (S, L, V), (S, L, V)),
        (REMOVE, (S, V, V), (S, V)),
        (LOCAL, (L, V), ("05 06", V)),
    ],
)
def test_stack_of_unions(
    pipeline: Pipeline, what: int, sent: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    found = run(pipeline, what, " ".join((*sent, END, "99")))
    assert found == (0, 0, len(sent) - 1, " ".join((*wanted, END, "99")))


def test_too_many_elements(pipeline: Pipeline) -> None:
    rest = " ".join((S, L, V, S, "99"))
    assert run(pipeline, NOTHING, rest) == (OUT_OF_BOUNDS, 0, 0, rest)


@pytest.mark.parametrize(
    ("sent", "result"),
    [
        # 1: the copy, of whose second element a short header is removed, is equal.
        # 2: the first two elements are equal. 4: the second ones of stack and copy are not.
        ((S, S, S), 2 | 4),
        ((L, L, S), 1 | 2),
        ((V, V, S), 1 | 2),
        ((L, V, S), 1),
        ((S, S, L), 2 | 4),
    ],
)
def test_comparison(pipeline: Pipeline, sent: tuple[str, ...], result: int) -> None:
    assert run(pipeline, COMPARE, " ".join((*sent, END)))[1] == result


def test_validity_of_a_union(pipeline: Pipeline) -> None:
    assert run(pipeline, NOTHING, f"{S} 09 01 02 03 04 {END}")[1] == 0x80


# -- What BMv2 does not load, or ends at -----------------------------------------------------------

ELEMENT, KEY, OWN, READ_AT, WRITE_AT, COPY_FROM = range(1, 7)


@pytest.mark.parametrize(
    ("what", "index", "rest", "result", "last", "wanted"),
    [
        (ELEMENT, 0, "01 a1 01 a2 02 a3 03 00 00 04", 1, 0xA3, None),
        (ELEMENT, 0, "00 a1", 0, 0xA1, None),
        (KEY, 0, "01 a1 01 a2 00 a3", 0, 0xA3, None),  # valid, but not by its varied header
        (KEY, 0, "02 a1 03 12 34 04", 0x11, 0xA1, None),
        (KEY, 0, "00 a1", 0x22, 0xA1, None),
        (OWN, 0, "01 a1 01 a2 00 a3", 3, 0xA3, "01 a1 01 a1 00 a3"),
        (OWN, 0, "01 a1 00 a2", 0, 0xA2, "01 a1"),
        (READ_AT, 1, "0a 11 0b 22 33 44", 0, 0, "0a 22 33 44 0b 22 33 44"),
        (READ_AT, 0, "0a 11 0b 22 33 44", 0, 0, None),
        (READ_AT, 3, "0a 11 0b 22 33 44", 0, 0, "0a 0b 22 33 44"),
        (WRITE_AT, 1, "0a 11 0b 22 33 44", 0, 0, "0a 11 0b 11"),
        (WRITE_AT, 3, "0a 11 0b 22 33 44", 0, 0, None),
        (COPY_FROM, 1, "0a 11 0b 22 33 44", 0, 0, "0b 22 33 44 0b 22 33 44"),
        (COPY_FROM, 2, "0a 11 0b 22 33 44", 0, 0, "0b 22 33 44"),
    ],
)
def test_beyond_bmv2(
    what: int, index: int, rest: str, result: int, last: int, wanted: str | None
) -> None:
    sent = bytes((what, index, 0, 0)) + bytes.fromhex(rest) + b"!"
    ((_, out),) = load("union_elements").process(0, sent)
    assert (out[2], out[3]) == (result, last)
    assert out[4:-1].hex(" ") == (rest if wanted is None else wanted)
