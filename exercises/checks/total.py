# SPDX-License-Identifier: Apache-2.0
"""Lab 2: sum the lanes of two ranks."""

from __future__ import annotations

import random
from pathlib import Path

from exercises.checks.frames import SLOTS, Frame, Lanes, summed
from exercises.checks.program import Switch
from exercises.checks.report import Check

BOTH = (1, 2)
FIRST, SECOND = (1, 2, 3, 4), (10, 20, 30, 40)
SEED = 2


def checks(source: Path) -> list[Check]:
    """What has to hold."""

    def one_waits() -> None:
        Switch(source).quiet(
            Frame(lanes=FIRST),
            "rank 1 has sent nothing so far",
            "the first frame of a slot is kept and dropped: mark_to_drop(sm)",
        )

    def two_sum() -> None:
        pair(Switch(source), 0, FIRST, SECOND)

    def other_order() -> None:
        switch = Switch(source)
        switch.send(Frame(rank=1, lanes=SECOND))
        got = switch.answer(Frame(rank=0, lanes=FIRST), BOTH, "either rank may be first", "the sum")
        switch.expect(got.lanes, summed(FIRST, SECOND), "rank 1 was first", "add in either order")

    def again() -> None:
        switch = Switch(source)
        pair(switch, 3, FIRST, SECOND)
        switch.quiet(
            Frame(slot=3, lanes=FIRST),
            "it is the first of a new sum",
            "after the sum the slot must be as at the beginning: set heard to 0",
        )
        got = switch.answer(
            Frame(rank=1, slot=3, lanes=FIRST), BOTH, "the slot is used again", "the second sum"
        )
        switch.expect(
            got.lanes,
            summed(FIRST, FIRST),
            "the second sum of slot 3",
            "the first frame must replace what the slot held, not add to it",
        )

    def slots() -> None:
        switch, draw = Switch(source), random.Random(SEED)
        mine = {slot: lanes(draw) for slot in range(SLOTS)}
        yours = {slot: lanes(draw) for slot in range(SLOTS)}
        for slot, own in mine.items():
            switch.quiet(
                Frame(slot=slot, lanes=own),
                "only rank 0 has used this slot",
                "use hdr.lab.slot as the index of each register",
            )
        for slot, own in yours.items():
            got = switch.answer(
                Frame(rank=1, slot=slot, lanes=own), BOTH, "slots are apart", "the sum"
            )
            wanted = summed(mine[slot], own)
            switch.expect(got.lanes, wanted, f"slot {slot}", "sums are modulo 2^32, as + is in P4")

    def beyond() -> None:
        switch = Switch(source)
        for rank in (0, 1):
            switch.quiet(
                Frame(rank=rank, slot=SLOTS, lanes=FIRST),
                f"there are slots 0 to {SLOTS - 1}",
                "a register's index beyond its size reads 0: look at hdr.lab.slot first, and drop",
            )

    return [
        ("one rank alone gets nothing", one_waits),
        ("two ranks get their sum, both of them", two_sum),
        ("either may be first", other_order),
        ("a slot can be used again", again),
        ("slots do not mix, and sums wrap", slots),
        ("a slot that is not there is refused", beyond),
    ]


def pair(switch: Switch, slot: int, first: Lanes, second: Lanes) -> None:
    """One sum."""
    switch.send(Frame(slot=slot, lanes=first))
    hint = "the second frame goes to both ranks: sm.mcast_grp = RANKS"
    got = switch.answer(Frame(rank=1, slot=slot, lanes=second), BOTH, hint, "the sum")
    hint = "add what the slot's registers hold to the lanes of the frame, then send it"
    switch.expect(got.lanes, summed(first, second), "the sum of both ranks", hint)


def lanes(draw: random.Random) -> Lanes:
    """Any."""
    a, b, c, d = (draw.getrandbits(32) for _ in range(4))
    return a, b, c, d
