# SPDX-License-Identifier: Apache-2.0
"""Lab 5: four int8 lanes in a word."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from exercises.checks.frames import OVERFLOW, Frame, Lanes, signed
from exercises.checks.program import Switch
from exercises.checks.report import Check, WrongError

BOTH = (1, 2)
LOW, HIGH = -128, 127
NUMBERS = 16
SEED = 5


def checks(source: Path) -> list[Check]:
    """What has to hold."""

    def carry() -> None:
        switch = Switch(source)
        hint = (
            "the lanes were added as one word, so a carry went into the lane above: add each lane "
            "by itself"
        )
        add(switch, [1, 2, 3, 4] * 4, [-1, -1, -1, -1] * 4, hint)

    def any_numbers() -> None:
        switch, draw = Switch(source), random.Random(SEED)
        for _ in range(20):
            first = [draw.randint(LOW // 2, HIGH // 2) for _ in range(NUMBERS)]
            second = [draw.randint(LOW // 2, HIGH // 2) for _ in range(NUMBERS)]
            add(switch, first, second, "a lane is signed: (int<8>)x before it is made wider")

    def limits() -> None:
        switch = Switch(source)
        hint = "a sum of exactly -128 or 127 still fits"
        add(switch, [64] * NUMBERS, [63] * NUMBERS, hint)
        add(switch, [-64] * NUMBERS, [-64] * NUMBERS, hint)

    def beyond() -> None:
        switch = Switch(source)
        hint = (
            "add with more bits than 8, compare with the limits, take the nearer one, and set "
            "OVERFLOW in hdr.lab.flags"
        )
        for at in range(NUMBERS):
            for number in (100, -100):
                first = [0] * NUMBERS
                first[at] = number
                add(switch, first, first, hint)

    return [
        ("no carry goes from a lane to the next", carry),
        ("sums of any lanes that fit", any_numbers),
        ("the largest and smallest sums that fit", limits),
        ("a sum that does not fit is the nearest that does, and is told of", beyond),
    ]


def add(switch: Switch, first: Sequence[int], second: Sequence[int], hint: str) -> None:
    """Sum these int8 numbers, and compare."""
    switch.send(Frame(lanes=words(first)))
    got = switch.answer(Frame(rank=1, lanes=words(second)), BOTH, "as in lab 2", "the sum")
    sums = [a + b for a, b in zip(first, second, strict=True)]
    wanted = [min(max(each, LOW), HIGH) for each in sums]
    for at, (one, other) in enumerate(zip(numbers(got.lanes), wanted, strict=True)):
        if one != other:
            word, bits = "abcd"[at // 4], 24 - 8 * (at % 4)
            raise WrongError(
                f"{first[at]} + {second[at]} in hdr.lanes.{word}[{bits + 7}:{bits}] is {one}, "
                f"should be {other}",
                hint,
                switch.where("lanes", word),
            )
    flagged = bool(got.flags & OVERFLOW)
    if flagged != (sums != wanted):
        raise WrongError(
            f"OVERFLOW is {'set' if flagged else 'not set'}, although "
            f"{'all sums fit' if flagged else 'a sum does not fit'}",
            hint,
            switch.where("lab", "flags"),
        )


def words(values: Sequence[int]) -> Lanes:
    """16 int8 numbers as four words, the first one in the highest bits."""
    a, b, c, d = (
        int.from_bytes(bytes(value % 256 for value in values[at : at + 4]), "big")
        for at in range(0, NUMBERS, 4)
    )
    return a, b, c, d


def numbers(lanes: Lanes) -> list[int]:
    """The other way."""
    return [signed(byte, 8) for word in lanes for byte in word.to_bytes(4, "big")]
