# SPDX-License-Identifier: Apache-2.0
"""Varbit fields as values (programs/varbit_fields.p4)."""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.hashes import ALGORITHMS, csum16
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

SWAP, COPY, COMPARE, ADD_AGAIN, ADD, HASH, SET_AROUND, COPY_IN_EGRESS = range(1, 9)
ASSIGN_IN_PARSER, TWICE, WRAPPED, STACK, STACK_COPY_IN_PARSER, STACK_COPY = range(9, 15)
PUSH, POP, ONLY, ONLY_SWAP, CHECKED, CHECKED_CHANGED, UNION_A, UNION_B = range(15, 23)
COPY_UNION, REMOVE_IN_EGRESS = 23, 24
SHORT, TOO_LONG, INVALID, OUT_OF_BOUNDS, CHECKSUM = range(1, 6)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load("varbit_fields")


def run(
    pipeline: Pipeline, what: int, first: int, second: int, rest: str, index: int = 0
) -> tuple[int, int, int, int, str]:
    """Failure, result, hash and packet_length in egress, and all after the command."""
    sent = bytes((what, first, second, index)) + bytes(8) + bytes.fromhex(rest)
    ((port, out),) = pipeline.process(0, sent)
    assert (port, out[:4]) == (1, sent[:4])
    return (*struct.unpack_from(">BBHI", out, 4), out[12:].hex(" "))


# `one` with v = 0x1234, and `two` with v = 0x567890; an `a` before it, a `b` and a `c` after it.
ONE, TWO = "a1 23 4b cc", "d5 67 89 0e ff"


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        (0, f"{ONE} {TWO}"),
        (SWAP, "a5 67 89 0b cc d1 23 4e ff"),
        (COPY, f"{ONE} {ONE}"),
        (ADD_AGAIN, f"00 00 00 77 {TWO}"),  # as long as it was, as in BMv2
        (SET_AROUND, f"a1 23 4b cc {TWO}"),
        (COPY_IN_EGRESS, f"a5 67 89 0b cc {TWO}"),
        (ASSIGN_IN_PARSER, f"{ONE} d1 23 4e ff"),
        (REMOVE_IN_EGRESS, ONE),
    ],
)
def test_inside_of_headers(pipeline: Pipeline, what: int, wanted: str) -> None:
    assert run(pipeline, what, 16, 24, f"{ONE} {TWO} 99") == (0, 0, 0, 22, f"{wanted} 99")


@pytest.mark.parametrize("first", range(0, 72, 8))
def test_every_length(pipeline: Pipeline, first: int) -> None:
    digits = "123456789abcdef0"[: first // 4]
    one = bytes.fromhex(f"7{digits}8cc").hex(" ")
    two = bytes.fromhex("5abcd1dd").hex(" ")
    swapped = bytes.fromhex(f"7abcd8cc5{digits}1dd").hex(" ")
    assert run(pipeline, 0, first, 24 - 8, f"{one} {two}")[4] == f"{one} {two}"
    assert run(pipeline, SWAP, first, 24 - 8, f"{one} 5a bc d1 dd")[4] == swapped


@pytest.mark.parametrize(
    ("first", "second", "rest", "result"),
    [
        (8, 8, "a1 2b cc a1 2b cc", 1 | 4),
        (8, 8, "a1 2b cc b1 2b cc", 2 | 4),
        (8, 8, "a1 2b cc a1 3b cc", 2 | 8),
        (8, 16, "a1 2b cc a0 01 2b cc", 1 | 4),  # by their numbers, as in BMv2
        (0, 8, "ab cc a0 0b cc", 1 | 4),
    ],
)
def test_comparison(pipeline: Pipeline, first: int, second: int, rest: str, result: int) -> None:
    assert run(pipeline, COMPARE, first, second, rest)[1] == result


def test_made_valid_without_bits(pipeline: Pipeline) -> None:
    # `checked` of 4 bytes, `copies[1]` of 2, and nothing of `only`
    wanted = f"{ONE} {TWO} 55 {csum16(bytes((0x55, 0))):04x} 00 09 00"
    wanted = bytes.fromhex(wanted).hex(" ")
    assert run(pipeline, ADD, 16, 24, f"{ONE} {TWO}") == (0, 0, 0, 21 + 4 + 2, wanted)


def test_hash_of_as_many_bits_as_there_are(pipeline: Pipeline) -> None:
    hashed = ALGORITHMS["crc16"](bytes.fromhex("a1 23 45 67 89 0f f0"))
    assert run(pipeline, HASH, 16, 24, f"{ONE} {TWO}")[2] == hashed


@pytest.mark.parametrize(
    ("what", "first", "second", "rest", "failure"),
    [
        (0, 72, 8, "00" * 60, TOO_LONG),
        (0, 9, 8, "00" * 60, INVALID),
        (0, 64, 8, "00" * 9, SHORT),
        (WRAPPED, 8, 0, "00" * 60, INVALID),  # of 2^32 - 8 bits: more than BMv2's int holds
        (WRAPPED, 16, 0, "00" * 60, 0),
        (TWICE, 32, 40, "00" * 60, TOO_LONG),  # the first length is counted too, as in BMv2
        (TWICE, 16, 16, "00" * 9, SHORT),
        (ONLY, 160, 168, "00" * 60, TOO_LONG),
        (ONLY, 0, 0, "", 0),
        (STACK, 8, 0, f"00 00 48 {'00' * 11}", TOO_LONG),
        (STACK, 8, 0, "00 00 07 00 00", INVALID),
    ],
)
def test_errors(
    pipeline: Pipeline, what: int, first: int, second: int, rest: str, failure: int
) -> None:
    sent = bytes.fromhex(rest).hex(" ")
    assert run(pipeline, what, first, second, rest)[::4] == (failure, sent)


def test_the_second_of_two_extractions_goes_out(pipeline: Pipeline) -> None:
    assert run(pipeline, TWICE, 16, 24, f"{ONE} {TWO} 99 99")[4] == f"{TWO} 99 99"


@pytest.mark.parametrize(
    ("what", "wanted", "result"),
    [
        (STACK, "{a} {b}", 0),
        (STACK_COPY_IN_PARSER, "{a} {b} {a} {b}", 0),
        (STACK_COPY, "{a} {b} a5 6b 08 {b}", 0),
        (PUSH, "{a}", 0),
        (POP, "{b}", 0),
    ],
)
def test_stacks(pipeline: Pipeline, what: int, wanted: str, result: int) -> None:
    a, b = "a1 23 4b 08", "c5 6d ee"
    found = run(pipeline, what, 16, 0, f"{a} {b} 99")
    assert found[1::3] == (result, f"{wanted.format(a=a, b=b)} 99")


def test_too_many_elements(pipeline: Pipeline) -> None:
    a, b = "a1 23 4b 08", "c5 6d ee"
    assert run(pipeline, STACK, 16, 0, f"{a} {b} 99 99", index=7)[0] == OUT_OF_BOUNDS


def test_the_only_field(pipeline: Pipeline) -> None:
    one, other = "11 22 33", "44 55 66 77 88 " * 4
    sent = f"{one} {other.strip()}"
    assert run(pipeline, ONLY, 24, 160, f"{sent} 99")[4] == f"{sent} 99"
    assert run(pipeline, ONLY_SWAP, 24, 160, f"{sent} 99")[4] == f"{other}{one} 99"


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30, 31])
def test_checksum_with_options(pipeline: Pipeline, count: int) -> None:
    options = bytes(range(100, 100 + count))

    def header(n: int, wrong: int = 0) -> str:
        total = csum16(bytes((n, *options, 0x42))) ^ wrong
        return (struct.pack(">BH", n, total) + options + b"\x42").hex(" ")

    for what, n, wrong, failure in (
        (CHECKED, 7, 0, 0),
        (CHECKED_CHANGED, 8, 0, 0),
        (CHECKED, 7, 4, CHECKSUM),
    ):
        found = run(pipeline, what, 8 * count, 0, f"{header(7, wrong)} 99")
        assert found[::4] == (failure, f"{header(n)} 99")


def test_unions(pipeline: Pipeline) -> None:
    a, b = "a1 23 4b cc", "01 02 77 88 03 04 80"
    assert run(pipeline, UNION_A, 16, 16, f"{b} {a} 99")[4] == f"{a} 99"
    assert run(pipeline, UNION_B, 16, 16, f"{a} {b} 99")[4] == f"{b} 99"
    changed = b[:-2] + "7f"
    assert run(pipeline, COPY_UNION, 16, 16, f"{a} {b} 99")[1::3] == (3, f"{b} {changed} 99")
