# SPDX-License-Identifier: Apache-2.0
"""Lab 4: blocks of zeros stay at home."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from exercises.checks.frames import NONE, PAYLOAD, Frame, Lanes, signed, summed
from exercises.checks.program import Switch
from exercises.checks.report import Check, WrongError

BOTH = (1, 2)
ZERO = (0, 0, 0, 0)
JUNK = (99, 98, 97, 96)
BLOCKS = 16
SEED = 4

Blocks = Mapping[int, Lanes]
"""A rank's blocks that are not zero."""


def checks(source: Path) -> list[Check]:
    """What has to hold."""

    def least() -> None:
        for first, second in ((5, 9), (9, 5), (7, 7)):
            expect_next(Switch(source), first, second, min(first, second))

    def none() -> None:
        expect_next(Switch(source), NONE, 3, 3)
        expect_next(Switch(source), 3, NONE, 3)
        expect_next(Switch(source), NONE, NONE, NONE)

    def without_lanes() -> None:
        for payload in (0, 1):
            switch = Switch(source)
            frames = [
                Frame(rank=rank, flags=PAYLOAD, lanes=(1, 2, 3, 4))
                if rank == payload
                else Frame(rank=rank, flags=0, lanes=JUNK)
                for rank in (0, 1)
            ]
            switch.send(frames[0])
            got = switch.answer(frames[1], BOTH, "both answer in each round", "the sum")
            hint = "a frame without PAYLOAD has no lanes: what stands there must not be added"
            switch.expect(got.lanes, (1, 2, 3, 4), f"only rank {payload} has this block", hint)

    def stream() -> None:
        draw = random.Random(SEED)
        mine, yours = (
            {block: _lanes(draw) for block in sorted(draw.sample(range(BLOCKS), 4))}
            for _ in range(2)
        )
        total = reduce(Switch(source), mine, yours)
        for block in range(BLOCKS):
            wanted = summed(mine.get(block, ZERO), yours.get(block, ZERO))
            if total.get(block, ZERO) != wanted:
                raise WrongError(
                    f"block {block} of the sum is {[signed(x) for x in total.get(block, ZERO)]}, "
                    f"should be {[signed(x) for x in wanted]}",
                    "a block is missed if the result names a next one that lies behind it",
                )
        if len(total) > len(mine.keys() | yours.keys()):
            raise WrongError(
                f"{len(total)} blocks were sent; {len(mine.keys() | yours.keys())} are not zero",
                "the next block is one that a rank has",
            )

    return [
        ("the next block is the nearer one of both ranks", least),
        ("no block at all is further than any", none),
        ("what has no lanes counts as zeros", without_lanes),
        (f"two ranks sum {BLOCKS} blocks, and send those that are not zero", stream),
    ]


def expect_next(switch: Switch, first: int, second: int, wanted: int) -> None:
    """A round in which the ranks name their next blocks."""
    switch.send(Frame(next=first))
    got = switch.answer(Frame(rank=1, next=second), BOTH, "both answer in each round", "the sum")
    if got.next != wanted:
        raise WrongError(
            f"rank 0 has block {_name(first)} next and rank 1 {_name(second)}: the result says "
            f"{_name(got.next)}, should say {_name(wanted)}",
            "keep the first rank's next block in a register, and send the smaller one",
            switch.where("lab", "next"),
        )


def reduce(switch: Switch, mine: Blocks, yours: Blocks) -> dict[int, Lanes]:
    """Sum sparse blocks as ranks do: round by round, from each result to the block it names."""
    total: dict[int, Lanes] = {}
    block, round_ = NONE, 0
    while True:
        round_ += 1
        answers: dict[int, list[Frame]] = {}
        for rank, own in enumerate((mine, yours)):
            behind = [at for at in own if block == NONE or at > block]
            here = own.get(block)
            answers = switch.send(
                Frame(
                    rank=rank,
                    flags=0 if here is None else PAYLOAD,
                    round=round_,
                    block=block,
                    next=min(behind, default=NONE),
                    lanes=here or JUNK,
                )
            )
        if sorted(answers) != list(BOTH):
            raise WrongError(
                f"round {round_} (block {_name(block)}) has no result",
                "each round ends with a frame to both ranks",
            )
        got = answers[1][0]
        if block != NONE:
            total[block] = got.lanes
        if got.next == NONE:
            return total
        if got.next >= BLOCKS or (block != NONE and got.next <= block):
            raise WrongError(
                f"after block {_name(block)} the result names block {got.next}",
                "the next block lies behind the present one",
                switch.where("lab", "next"),
            )
        block = got.next


def _name(block: int) -> str:
    return "none" if block == NONE else str(block)


def _lanes(draw: random.Random) -> Lanes:
    a, b, c, d = (draw.randrange(1, 1000) for _ in range(4))
    return a, b, c, d
