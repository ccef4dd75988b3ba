# SPDX-License-Identifier: Apache-2.0
"""The six lessons: what is in them, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from p4reduce_controller.fabric.outcome import FrameOutcome

from p4reduce_lab.lesson.ranks import Array
from p4reduce_lab.lesson.world import LessonWorld

BLOCK = 256  # int32 numbers


@dataclass(frozen=True)
class Scene:
    """A step of a lesson.

    Attributes:
        text: shown before it.
        command: to type.
        outcome: what the switch makes of the frame; None: the step is about no frame to it.
    """

    text: str
    command: str
    outcome: FrameOutcome | None = None


@dataclass(frozen=True)
class Lesson:
    """A lesson.

    Attributes:
        name, title: for the list.
        begin: makes the world.
        about: its subject, shown before the first step.
        scenes: the steps.
        ending: what was to be seen.
        results: what each rank has at the end: the first number, or None after an error.
    """

    name: str
    title: str
    begin: Callable[[], LessonWorld]
    about: str
    scenes: tuple[Scene, ...]
    ending: str
    results: Mapping[int, int | None]


def _two(numbers: int = 4) -> LessonWorld:
    return LessonWorld([np.arange(1, numbers + 1, dtype=np.int32), 10 * _ints(numbers)])


def _ints(numbers: int) -> Array:
    return np.arange(1, numbers + 1, dtype=np.int32)


def _sparse() -> LessonWorld:
    mine, yours = np.zeros(4 * BLOCK, np.int32), np.zeros(4 * BLOCK, np.int32)
    mine[3 * BLOCK :] = 5
    yours[BLOCK : 2 * BLOCK] = 7
    yours[0] = 0
    return LessonWorld([mine, yours])


def _narrow() -> LessonWorld:
    return LessonWorld([np.array([100, 1, 2, 3], np.int8), np.array([100, 1, 2, 3], np.int8)])


SUM = Lesson(
    "sum",
    "a sum",
    _two,
    "Two ranks sum four numbers: rank 0 has 1 2 3 4, rank 1 has 10 20 30 40. A slot is a place in "
    "the switch's registers where one block of a tensor is summed; this job has one. A round is "
    "one use of it: a frame from each rank, and a result for all. Every frame waits until you let "
    "it go.",
    (
        Scene(
            "A slot begins with a round about no block. Each rank says which block of its tensor "
            "is the first that is not all zeros: here block 0. Look at a header by `show 1`. After "
            "each frame you see both copies of the slot; a star marks the one that has changed.",
            "let 1",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "The switch has stored that rank 0 was heard, and dropped the frame. Rank 1 is the "
            "last one: its frame becomes the result, and goes to both ranks.",
            "let 2",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene("A result is the licence to send the slot's next round.", "let 3"),
        Scene("The same for rank 1.", "let 4"),
        Scene(
            "Round 1 has lanes: the four numbers, and zeros to fill the block. Odd rounds use the "
            "slot's other copy. The switch stores the lanes in the registers sums0 to sums3.",
            "let 5",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "Rank 1's lanes are added to those in the registers, within the time of one frame.",
            "let 6",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene("The result brings the sum. There is no next block, so rank 0 is done.", "let 7"),
        Scene("And rank 1.", "let 8"),
    ),
    "Each rank has sent its numbers once and received the sum once, whatever the number of ranks.",
    {0: 11, 1: 11},
)

LOST_CONTRIBUTION = Lesson(
    "lost-contribution",
    "a lost contribution",
    _two,
    "The network may lose any frame. Here it loses what rank 1 sends first.",
    (
        Scene("Rank 0 is heard.", "let 1", FrameOutcome.ROUND_OPENED),
        Scene("Rank 1's frame is lost. Nobody notices.", "drop 2"),
        Scene("Rank 0 waits too long for the result. Its timer runs out: it repeats.", "repeat 0"),
        Scene(
            "The switch has heard rank 0 in this round: its bit is not set in missing_ranks. So "
            "nothing is added a second time. It answers with a STATUS, which names who was heard.",
            "let 3",
            FrameOutcome.STATUS_SENT,
        ),
        Scene("Rank 0 learns that it is not to blame, and waits.", "let 4"),
        Scene("Rank 1's timer runs out as well.", "repeat 1"),
        Scene(
            "To the switch this is rank 1's first frame of the round. It completes it.",
            "let 5",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene(
            "All the rest goes as in lesson 1: let every frame go. RETRANSMISSION stands on the "
            "next frames as well: they come late by a timer, so no rank measures a time by them.",
            "go",
        ),
    ),
    "A repeated frame is either the first that the switch hears, or changes nothing. A rank need "
    "not know which.",
    {0: 11, 1: 11},
)

LOST_RESULT = Lesson(
    "lost-result",
    "a lost result, and why a slot has two copies",
    lambda: _two(2 * BLOCK),
    "Two workers, called ranks, have 512 numbers each. The switch adds them up block by block, 256 "
    "numbers at a time. A slot is a place in the switch that sums one "
    "block at a time. A round is one use of it: each rank sends a frame, and after the last one "
    "the switch sends the result to all. Every slot has two copies, and rounds take turns: even "
    "rounds use copy 0, odd rounds copy 1. Why are there two?",
    (
        Scene(
            "Round 0 has no numbers. In it the ranks agree on the first block to sum. Rank 0 says "
            "that its first block that is not all zeros is block 0.",
            "let 1",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "Rank 1 says the same. It is the last one, so the switch sends the result to both.",
            "let 2",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene("Rank 0 gets the result, and sends its numbers of block 0 in round 1.", "let 3"),
        Scene("So does rank 1.", "let 4"),
        Scene(
            "Round 1 uses copy 1. The switch stores rank 0's numbers in it: see sums0.",
            "let 5",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "It adds rank 1's. Now copy 1 holds the sum of block 0, which begins with 11 22 33 44, "
            "and a result for each rank is on its way.",
            "let 6",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene(
            "The result for rank 1 is lost. Nobody notices. From now on only the switch can give "
            "rank 1 this sum.",
            "drop 8",
        ),
        Scene(
            "Rank 0 gets its result. It knows nothing of the loss, and sends block 1 in round 2.",
            "let 7",
        ),
        Scene(
            "Think first: if the slot had one copy, what would this frame do to the sum "
            "11 22 33 44? Then let it go.",
            "let 9",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "Round 2 has gone to copy 0, and copy 1 still holds 11 22 33 44. In one copy rank 0's "
            "numbers of block 1 would have replaced that sum, and rank 1 could never get it. Rank "
            "1 has no answer. Its timer runs out, and it repeats its frame of round 1.",
            "repeat 1",
        ),
        Scene(
            "The switch finds round 1 in copy 1: complete, with rank 1 heard. So it adds nothing, "
            "and sends the sum again, to rank 1 alone.",
            "let 10",
            FrameOutcome.RESULT_REPEATED,
        ),
        Scene(
            "Rank 1 has the sum of block 0 at last, and sends block 1. The frame is new and has "
            "RETRANSMISSION: rank 1 is late by its timer, so this round's time is no measure.",
            "let 11",
        ),
        Scene("Its frame completes round 2, in copy 0.", "let 12", FrameOutcome.ROUND_COMPLETED),
        Scene("Let the rest go: both ranks get the second block's sum as well.", "go"),
    ),
    "One copy is not enough. A rank that has its result begins the next round at once, and would "
    "overwrite the sum that another rank still needs. Two copies are enough. Copy 1 is used again "
    "in round 3. That round begins only when round 2 is complete, which takes a frame of round 2 "
    "from every rank. A rank sends that frame only when it has the result of round 1. Try it: "
    "`restart`, take the first eight steps, then `go`, `repeat 0`, `go` and `slots`. Rank 0 stays "
    "in round 2, and copy 1 keeps its sum for rank 1.",
    {0: 11, 1: 11},
)

LATE_DUPLICATE = Lesson(
    "late-duplicate",
    "a late duplicate from a round before",
    lambda: _two(2 * BLOCK),
    "Networks also deliver frames twice, and late. The tensor has two blocks, so the slot has "
    "three rounds; rounds 0 and 2 use the same copy.",
    (
        Scene("The network makes a copy of rank 0's first frame, and keeps it.", "dup 1"),
        Scene("Round 0, in copy 0.", "let 1", FrameOutcome.ROUND_OPENED),
        Scene("Rank 1 completes it.", "let 2", FrameOutcome.ROUND_COMPLETED),
        Scene("Rank 0 gets the result.", "let 4"),
        Scene("And rank 1.", "let 5"),
        Scene("Rank 0's frame of round 1 is copied as well.", "dup 6"),
        Scene("Round 1, in copy 1, sums block 0.", "let 6", FrameOutcome.ROUND_OPENED),
        Scene("Rank 1 completes it.", "let 7", FrameOutcome.ROUND_COMPLETED),
        Scene("Rank 0 gets the sum, and sends block 1 in round 2.", "let 9"),
        Scene("And rank 1.", "let 10"),
        Scene("Rank 0 opens round 2, in copy 0.", "let 11", FrameOutcome.ROUND_OPENED),
        Scene(
            "Now the copy from round 1 arrives. Copy 1 still holds round 1, complete, with rank 0 "
            "heard: the switch takes it for a question, and repeats the result.",
            "let 8",
            FrameOutcome.RESULT_REPEATED,
        ),
        Scene("Rank 0 is in round 2 and ignores it.", "let 13"),
        Scene(
            "And the copy from round 0. Copy 0 is about round 2 now. Rank 0's bit and the round's "
            "last bit say nothing here: only the whole round number shows that this is old.",
            "let 3",
            FrameOutcome.STALE,
        ),
        Scene("Let the rest go: the sums are right.", "go"),
    ),
    "The switch keeps the round beside each copy, so a late frame is never added to another round.",
    {0: 11, 1: 11},
)

ZEROS = Lesson(
    "zeros",
    "zeros that stay at home",
    _sparse,
    "Four blocks of 256 numbers. Rank 0 has block 3 alone (fives), rank 1 block 1 alone (sevens). "
    "Watch which blocks travel.",
    (
        Scene(
            "Rank 0 says that its first block that is not zero is 3.",
            "let 1",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene(
            "Rank 1 says 1. The switch keeps the smaller one, and announces it.",
            "let 2",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene("So all continue with block 1. Nobody sends block 0.", "let 3"),
        Scene("Rank 1 continues with block 1 too.", "let 4"),
        Scene(
            "Rank 0's block 1 is all zeros. It takes part in the round by a frame without lanes: "
            "78 bytes in place of 1,102.",
            "let 5",
            FrameOutcome.ROUND_OPENED,
        ),
        Scene("Rank 1 has lanes.", "let 6", FrameOutcome.ROUND_COMPLETED),
        Scene(
            "The result says that block 3 is next: block 2 is skipped. In that round rank 1's "
            "frame comes last, without lanes. The sum does not fit into it, so the switch sends "
            "it in two halves.",
            "go",
        ),
    ),
    "Two of four blocks have travelled: those that some rank has. The others were never sent.",
    {0: 0, 1: 0},
)

OVERFLOW = Lesson(
    "overflow",
    "an int8 overflow",
    _narrow,
    "Lanes of 8 bits hold -128 to 127. Both ranks have 100 as their first number.",
    (
        Scene("The first round, about no block.", "let 1", FrameOutcome.ROUND_OPENED),
        Scene("Rank 1 completes it.", "let 2", FrameOutcome.ROUND_COMPLETED),
        Scene("Rank 0 gets the result, and sends its numbers.", "let 3"),
        Scene("And rank 1.", "let 4"),
        Scene("Rank 0's lanes are stored as they are.", "let 5", FrameOutcome.ROUND_OPENED),
        Scene(
            "100 + 100 does not fit. The switch sees it in the lanes' top bits: the operands have "
            "one sign, and the sum the other. It sets OVERFLOW in the result.",
            "let 6",
            FrameOutcome.ROUND_COMPLETED,
        ),
        Scene("The rank does not return a wrong sum. Its call ends with an error.", "let 7"),
        Scene("On every rank the same.", "let 8"),
    ),
    "An overflow is never silent, and all ranks get the error in the same call.",
    {0: None, 1: None},
)

LESSONS = (SUM, LOST_CONTRIBUTION, LOST_RESULT, LATE_DUPLICATE, ZEROS, OVERFLOW)
