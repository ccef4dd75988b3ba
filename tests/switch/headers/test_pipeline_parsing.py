# SPDX-License-Identifier: Apache-2.0
"""Parsers: selects, errors, verify, advance, many paths; headers that go out as they came in."""

from __future__ import annotations

import random
import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import config, load, make

pytestmark = pytest.mark.usefixtures("engine")

NO_ERROR, TOO_SHORT, INVALID_ARGUMENT, FORBIDDEN, ODD = 0, 1, 3, 4, 5
FIRST, SECOND, THIRD = 1, 2, 4
SECOND_BYTES = bytes(range(1, 17))
THIRD_BYTES = b"\x80\x07ABCDEFGHI"
THIRD_AFTER = b"\x7f\xf7ABCDEFGHI"  # int<12> -2048 less 1 is 2047


@pytest.fixture
def pipeline() -> Pipeline:
    return load("parsing")


def first(kind: int, flags: int = 0, sub: int = 0, skip: int = 0) -> bytes:
    return struct.pack(">HH", kind << 12 | sub << 9 | flags, skip)


def check(pipeline: Pipeline, head: bytes, rest: bytes, error: int, valid: int, out: bytes) -> None:
    """Send head and rest; expect the report, the head with `skip` one larger, and `out`."""
    answer = pipeline.process(8, head + rest)
    report = struct.pack(">IBIH", error, valid, len(head + rest), 8)
    changed = head[:2] + (int.from_bytes(head[2:], "big") + 1 & 0xFFFF).to_bytes(2, "big")
    assert answer == [(3, report + changed + out)]


def test_select_on_several_fields_with_masks(pipeline: Pipeline) -> None:
    both = SECOND_BYTES + THIRD_BYTES
    seen = FIRST | SECOND
    check(pipeline, first(1, flags=0x1FE), both, NO_ERROR, seen, both)
    check(pipeline, first(1, 1), THIRD_BYTES, NO_ERROR, FIRST | THIRD, THIRD_AFTER)
    for flags in (5, 6, 7, 8):
        check(pipeline, first(2, flags), both, NO_ERROR, seen, both)
    for flags in (4, 9):
        check(pipeline, first(2, flags), both, NO_ERROR, FIRST, both)
    check(pipeline, first(5, 7), b"x", NO_ERROR, FIRST, b"x")
    check(pipeline, first(7), both, NO_ERROR, FIRST | SECOND | THIRD, SECOND_BYTES + THIRD_AFTER)


def test_no_case_fits_is_accepted_as_bmv2_does(pipeline: Pipeline) -> None:
    check(pipeline, first(15), b"rest", NO_ERROR, FIRST, b"rest")


def test_too_short_keeps_what_was_extracted_and_runs_ingress(pipeline: Pipeline) -> None:
    check(pipeline, first(1), SECOND_BYTES[:-1], TOO_SHORT, FIRST, SECOND_BYTES[:-1])
    short = SECOND_BYTES + THIRD_BYTES[:-1]
    check(pipeline, first(7), short, TOO_SHORT, FIRST | SECOND, short)
    for frame in (b"", b"abc"):
        report = struct.pack(">IBIH", TOO_SHORT, 0, len(frame), 8)
        assert pipeline.process(8, frame) == [(3, report + frame)]


def test_verify(pipeline: Pipeline) -> None:
    even, odd = b"\0\0\2" + SECOND_BYTES[3:], b"\0\0\3" + SECOND_BYTES[3:]
    check(pipeline, first(4, sub=7), even + THIRD_BYTES, FORBIDDEN, FIRST, even + THIRD_BYTES)
    seen = FIRST | SECOND
    check(pipeline, first(4), odd + THIRD_BYTES, ODD, seen, odd + THIRD_BYTES)
    check(pipeline, first(4), even + THIRD_BYTES, NO_ERROR, seen | THIRD, even + THIRD_AFTER)


def test_advance(pipeline: Pipeline) -> None:
    """Bytes that were skipped do not go out again."""
    check(pipeline, first(3, skip=24), b"xyz" + THIRD_BYTES, NO_ERROR, FIRST | THIRD, THIRD_AFTER)
    check(pipeline, first(3), THIRD_BYTES, NO_ERROR, FIRST | THIRD, THIRD_AFTER)
    check(pipeline, first(3, skip=12), b"xyz", INVALID_ARGUMENT, FIRST, b"xyz")
    check(pipeline, first(3, skip=32), b"xyz", TOO_SHORT, FIRST, b"xyz")


def test_many_paths() -> None:
    """Ten optional headers; the deparser emits them in reverse."""
    pipeline = load("many_paths")
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        present = generator.randrange(1024)
        values = [generator.randrange(1 << 16) for _ in range(present.bit_count())]
        sent = struct.pack(f">HH{len(values)}H", present, 5, *values)
        total = sum(values) & 0xFFFF
        turned = struct.pack(f">HH{len(values)}H", present, total, *reversed(values))
        assert pipeline.process(0, sent + b"end") == [(1, turned + b"end")]
        if values:  # the last header does not fit: it stays payload
            total = sum(values[:-1]) & 0xFFFF
            turned = struct.pack(f">HH{len(values) - 1}H", present, total, *values[-2::-1])
            assert pipeline.process(0, sent[:-1]) == [(1, turned + sent[-2:-1])]


def test_a_parser_that_takes_nothing_in_its_loop_ends() -> None:
    """BMv2 would hang: here the loop ends with an error, and the packet is what it was."""
    text = config("many_paths").decode()
    looping = text.replace('"next_state": "maybe9"', '"next_state": "maybe1"')
    assert looping != text
    pipeline = make(looping)
    frame = struct.pack(">HH", 0, 0) + b"x"
    assert pipeline.process(0, frame) == [(1, frame)]


# -- Headers that nobody changes -------------------------------------------------------------------


def test_unchanged_headers_go_out_as_they_came() -> None:
    pipeline = load("passive")
    ethernet = bytes(range(12))
    tag = b"\xb1\x23\x99\x99"
    body = b"0123456789" + b"\0\xff\xff" + b"abcdefghijklmnop"
    changed = b"0123456789" + b"\1\0\0" + b"abcdefghijklmnop"
    untagged = ethernet + b"\x99\x99"
    # The tag is parsed and never emitted; the body goes out before the Ethernet header.
    sent = ethernet + b"\x81\x00" + tag + body + b"payload"
    assert pipeline.process(4, sent) == [(5, changed + untagged + b"payload")]
    assert pipeline.process(5, untagged + body) == [(4, changed + untagged)]
    plain = ethernet + b"\x08\x00whatever"
    assert pipeline.process(4, plain) == [(5, plain)]
