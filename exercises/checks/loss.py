# SPDX-License-Identifier: Apache-2.0
"""Lab 3: lost frames, repeated frames, and the shadow copy."""

from __future__ import annotations

from pathlib import Path

from exercises.checks.frames import Frame, Lanes, summed
from exercises.checks.program import Switch
from exercises.checks.report import Check, WrongError

BOTH = (1, 2)
ROUND = {1: ((1, 2, 3, 4), (10, 20, 30, 40)), 2: ((5, 5, 5, 5), (6, 6, 6, 6))}
ROUND[3] = ((7, 0, 0, 0), (0, 7, 0, 0))


def frame(round_: int, rank: int) -> Frame:
    """What a rank sends in a round."""
    return Frame(rank=rank, round=round_, lanes=ROUND[round_][rank])


def total(round_: int) -> Lanes:
    """A round's sum."""
    return summed(*ROUND[round_])


def checks(source: Path) -> list[Check]:
    """What has to hold."""

    def plain() -> None:
        switch = Switch(source)
        for round_ in (1, 2, 3):
            finish(switch, round_)

    def contribution_lost() -> None:
        switch = Switch(source)
        switch.send(frame(1, 0))
        switch.quiet(
            frame(1, 0),
            "rank 1 was not heard so far; rank 0 only repeats, as its answer has not come",
            "a rank whose bit is set in heard must not count a second time",
        )
        got = switch.answer(frame(1, 1), BOTH, "both were heard now", "the sum")
        switch.expect(
            got.lanes,
            total(1),
            "rank 0 sent its lanes twice",
            "look at the rank's bit in heard before you add",
        )

    def result_lost() -> None:
        switch = Switch(source)
        finish(switch, 1)
        got = switch.answer(
            frame(1, 1),
            (2,),
            "rank 1 has lost the result and asks again: send it the sum, by its own port alone",
            "the sum of round 1",
        )
        hint = "the answer is what the registers hold, not the lanes of the frame that asks"
        switch.expect(got.lanes, total(1), "round 1 once more", hint)

    def shadow() -> None:
        switch = Switch(source)
        finish(switch, 1)
        switch.quiet(
            frame(2, 0), "rank 0 is in round 2 already, alone", "a new round begins with one rank"
        )
        hint = (
            "one copy of a slot is not enough: rank 0 has its result, began round 2 and wrote over "
            "the sum of round 1, which rank 1 still needs. Keep two copies, for even and odd rounds"
        )
        got = switch.answer(frame(1, 1), (2,), hint, "the sum of round 1 for rank 1")
        switch.expect(got.lanes, total(1), "round 1, asked for while round 2 was open", hint)
        got = switch.answer(frame(2, 1), BOTH, "round 2 goes on", "the sum of round 2")
        switch.expect(got.lanes, total(2), "round 2", "the question about round 1 changes nothing")

    def late() -> None:
        switch = Switch(source)
        finish(switch, 1)
        finish(switch, 2)
        switch.send(frame(3, 0))
        hint = (
            "the network delivered a frame of round 1 late. Rounds 1 and 3 have the same copy, so "
            "a bit of the round cannot tell them apart: keep the whole round beside the copy"
        )
        switch.quiet(frame(1, 1), "it is of round 1, and round 3 is open", hint)
        got = switch.answer(frame(3, 1), BOTH, "round 3 goes on", "the sum of round 3")
        switch.expect(got.lanes, total(3), "round 3 after a late frame of round 1", hint)

    return [
        ("without loss, three rounds in a row", plain),
        ("a lost contribution: what is repeated counts once", contribution_lost),
        ("a lost result is sent again", result_lost),
        ("a lost result is sent again although the other rank has gone on", shadow),
        ("a late frame of an old round is nothing", late),
    ]


def finish(switch: Switch, round_: int) -> None:
    """A round without loss."""
    if out := switch.send(frame(round_, 0)):
        raise WrongError(
            f"frame {switch.sent}: rank 0 is the first in round {round_}, and a frame came out at "
            f"{', '.join(f'port {port}' for port in out)}",
            "rounds begin with 1; a copy that holds an older round is free",
            switch.where("egress"),
        )
    got = switch.answer(frame(round_, 1), BOTH, "the last rank completes it", "the sum")
    switch.expect(
        got.lanes, total(round_), f"round {round_}", "the first rank stores, the last adds"
    )
