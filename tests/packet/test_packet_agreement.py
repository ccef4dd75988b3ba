# SPDX-License-Identifier: Apache-2.0
"""What the ranks agree on by a round besides the sum: the next block and its exponent, the
flags, and that they are in the same collective at all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import NO_BLOCK, Flag, Format
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import TAG, Job, Jobs, constant
from packet_testbed import Testbed
from scapy.layers.l2 import Ether

# -- The next block and its exponent -------------------------------------------------------------

NEXT = [
    ([(7, 10), (9, 200)], (7, 10)),
    ([(9, 200), (7, 10)], (7, 10)),
    ([(7, 10), (7, 200)], (7, 200)),
    ([(7, 200), (7, 10)], (7, 200)),
    ([(7, 10), (7, 10)], (7, 10)),
    ([(0, 1), (1, 254)], (0, 1)),
    ([(NO_BLOCK, 0), (7, 10)], (7, 10)),
    ([(7, 10), (NO_BLOCK, 0)], (7, 10)),
    ([(NO_BLOCK, 0), (NO_BLOCK, 0)], (NO_BLOCK, 0)),
    ([(NO_BLOCK, 255), (7, 0)], (7, 0)),
    ([(7, 0), (7, 255)], (7, 255)),
    ([(0x7FFFFFFF, 3), (0x80000000, 4)], (0x7FFFFFFF, 3)),
    ([(0xFFFFFFFE, 3), (NO_BLOCK, 4)], (0xFFFFFFFE, 3)),
    ([(8, 1), (7, 2), (7, 3), (9, 255)], (7, 3)),
    ([(7, 3), (8, 1), (NO_BLOCK, 0), (7, 2)], (7, 3)),
    ([(9, 255), (8, 254), (7, 253), (6, 0)], (6, 0)),
]


@pytest.mark.parametrize(("announced", "agreed"), NEXT)
def test_next_block(
    bed: Testbed, jobs: Jobs, announced: list[tuple[int, int]], agreed: tuple[int, int]
) -> None:
    """The smallest next block; of those who announce it the largest exponent."""
    job = jobs(len(announced))
    for rank, (block, exponent) in enumerate(announced[:-1]):
        bed.exchange([job.send(rank, next_block=block, next_exponent=exponent)])
    rank, (block, exponent) = len(announced) - 1, announced[-1]
    last = job.send(rank, next_block=block, next_exponent=exponent)
    result = job.results(last, next_block=agreed[0], next_exponent=agreed[1])
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)
    again = job.send(0, next_block=0, next_exponent=255)
    repeated = job.repeated(again, 0, next_block=agreed[0], next_exponent=agreed[1])
    bed.expect([again], repeated, FrameOutcome.RESULT_REPEATED)


def test_next_block_is_of_this_round_only(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    for turn, agreed in ((0, (3, 9)), (2, (50, 5))):
        bed.exchange([job.send(0, round=turn, next_block=agreed[0], next_exponent=agreed[1])])
        last = job.send(1, round=turn, next_block=NO_BLOCK, next_exponent=0)
        result = job.results(last, next_block=agreed[0], next_exponent=agreed[1])
        bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)


def test_status_tells_what_is_agreed_so_far(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(3)
    bed.exchange([job.send(0, next_block=9, next_exponent=1)])
    bed.exchange([job.send(1, next_block=8, next_exponent=2)])
    again = job.send(0, next_block=9, next_exponent=1)
    status = job.status(again, 0, 0b011, next_block=8)
    bed.expect([again], status, FrameOutcome.STATUS_SENT)


# -- Flags ---------------------------------------------------------------------------------------

STICKY = [Flag.OVERFLOW, Flag.NONFINITE, Flag.OVERFLOW | Flag.NONFINITE]


@pytest.mark.parametrize("flags", STICKY)
@pytest.mark.parametrize("rank", range(3))
def test_flags_of_one_are_told_to_all(bed: Testbed, jobs: Jobs, flags: Flag, rank: int) -> None:
    """Whoever raised them, with the lanes; and again with a repeated result."""
    job = jobs(3)
    raised = [flags if rank == other else 0 for other in range(3)]
    bed.exchange([job.send(0, constant(1), flags=raised[0])])
    bed.exchange([job.send(1, constant(1), flags=raised[1])])
    last = job.send(2, constant(1), flags=raised[2])
    bed.expect([last], job.results(last, constant(3), flags=flags), FrameOutcome.ROUND_COMPLETED)
    again = job.send(0, constant(1))
    repeated = job.repeated(again, 0, constant(3), flags=flags)
    bed.expect([again], repeated, FrameOutcome.RESULT_REPEATED)


def test_flags_are_gone_in_the_next_round(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    bed.exchange([job.send(0, flags=Flag.NONFINITE)])
    bed.exchange([job.send(1, flags=Flag.OVERFLOW)])
    bed.exchange([job.send(0, round=2)])
    last = job.send(1, round=2)
    bed.expect([last], job.results(last), FrameOutcome.ROUND_COMPLETED)


@pytest.mark.parametrize("flags", [Flag.FIRST_HALF, Flag.SECOND_HALF, Flag(0xC0)])
def test_other_flags_are_not_repeated(bed: Testbed, jobs: Jobs, flags: Flag) -> None:
    """They are about one frame, not about the round."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1), flags=flags)])
    last = job.send(1, constant(2), flags=flags)
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)
    again = job.send(0, constant(1), flags=flags)
    bed.expect([again], job.repeated(again, 0, constant(3)), FrameOutcome.RESULT_REPEATED)


@pytest.mark.parametrize("summed", [True, False], ids=["summed", "nothing-summed"])
def test_answers_tell_whether_a_timer_asked(bed: Testbed, jobs: Jobs, summed: bool) -> None:
    """RETRANSMISSION is about the contribution that is answered: the one that completes a round,
    or asks for it again. What the round's others had, or an earlier answer, does not matter."""
    job = jobs(3)
    lanes = constant(1) if summed else None
    timer = Flag.RETRANSMISSION
    plain = Flag.PAYLOAD if summed else Flag(0)

    def check(sent: tuple[int, bytes], wanted: Flag) -> None:
        frames = bed.exchange([sent]).frames
        assert frames
        for frame in frames:
            assert Ether(frame)[Aggregation].flags == wanted

    bed.exchange([job.send(0, lanes, flags=timer), job.send(1, lanes, flags=timer)])
    check(job.send(0, lanes), Flag(0))  # a status
    check(job.send(0, lanes, flags=timer), timer)
    check(job.send(2, lanes), plain)
    check(job.send(0, lanes, flags=timer), plain | timer)
    check(job.send(0, lanes), plain)
    bed.exchange([job.send(rank, lanes, round=1) for rank in (0, 1)])
    check(job.send(2, lanes, round=1, flags=timer), plain | timer)
    check(job.send(0, lanes, round=1), plain)


def test_first_retransmission_counts(bed: Testbed, jobs: Jobs) -> None:
    """The original was lost: the flag does not make it a duplicate."""
    job = jobs(2)
    flags = Flag.RETRANSMISSION
    bed.expect([job.send(0, constant(1), flags=flags)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, flags=flags | Flag.PADDED, pad=0x55)
    bed.expect([last], job.results(last, constant(1)), FrameOutcome.ROUND_COMPLETED)


def test_payload_and_padded_at_once(bed: Testbed, jobs: Jobs) -> None:
    """It has lanes; that they might be padding is not believed."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1), flags=Flag.PADDED)])
    last = job.send(1, constant(2), flags=Flag.PADDED)
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


# -- Mismatch ------------------------------------------------------------------------------------

OTHERS = [
    {"tag": TAG + 1},
    {"tag": 0},
    {"block": 1},
    {"block": NO_BLOCK},
    {"format": Format.INT16},
    {"format": Format.INT8},
    {"tag": 5, "block": 6, "format": Format.INT8},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("lanes", [True, False], ids=["payload", "empty"])
def test_mismatch(bed: Testbed, jobs: Jobs, other: dict[str, Any], rank: int, lanes: bool) -> None:
    """All ranks are told, the first one's tag, block and format; there is no sum."""
    job = jobs(3)
    block = constant(1) if lanes else None
    first = {"tag": TAG, "block": 0, "format": Format.INT32}
    bed.expect([job.send(0, block)], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([job.send(1, block, **(other if rank == 1 else {}))], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(2, block, **(other if rank == 2 else {}))
    result = job.results(last, flags=Flag.MISMATCH, **first)
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)
    for again in (job.send(rank, block, **other), job.send(0, flags=Flag.PADDED)):
        who = 0 if again[0] == job.ranks[0].port else rank
        repeated = job.repeated(again, who, flags=Flag.MISMATCH, **first)
        bed.expect([again], repeated, FrameOutcome.RESULT_REPEATED)


def test_a_rank_may_call_it_a_mismatch_itself(bed: Testbed, jobs: Jobs) -> None:
    """A worker that knows better than the tags can end the round for all by the flag."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    last = job.send(1, constant(1), flags=Flag.MISMATCH)
    bed.expect([last], job.results(last, flags=Flag.MISMATCH), FrameOutcome.ROUND_COMPLETED)


def test_status_of_a_mismatch(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(3)
    bed.exchange([job.send(0, constant(1))])
    bed.exchange([job.send(1, constant(1), tag=1)])
    again = job.send(1, constant(1), tag=1)
    status = job.status(again, 1, 0b011, flags=Flag.MISMATCH, tag=TAG)
    bed.expect([again], status, FrameOutcome.STATUS_SENT)


def test_round_after_a_mismatch(bed: Testbed, jobs: Jobs) -> None:
    """Begins with nothing of it, in the other version and in the same."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    bed.exchange([job.send(1, constant(1), tag=1)])
    for turn in (1, 2):
        bed.expect([job.send(0, constant(1), round=turn, tag=9)], {}, FrameOutcome.ROUND_OPENED)
        last = job.send(1, constant(2), round=turn, tag=9)
        bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_retransmission_with_another_tag_is_no_mismatch(bed: Testbed, jobs: Jobs) -> None:
    """A rank that was heard has said what it does; a stray copy of something else cannot unsay
    it for all the others."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    again = job.send(0, constant(1), tag=1, block=5, format=Format.INT8)
    status = job.status(again, 0, 0b01, tag=TAG, block=0, format=Format.INT32)
    bed.expect([again], status, FrameOutcome.STATUS_SENT)
    last = job.send(1, constant(2))
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


# -- World sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 32, 33, 63, 64])
def test_world_sizes(bed: Testbed, jobs: Jobs, world_size: int) -> None:
    """All ranks are awaited, the last bit of the bitmap too; several may share a port."""
    job = jobs(world_size)
    *others, last_rank = reversed(range(world_size))
    by_port = sorted(others, key=lambda rank: job.ranks[rank].port)
    opened = False
    for _, ranks in itertools.groupby(by_port, key=lambda rank: job.ranks[rank].port):
        sent = [job.send(rank, constant(rank)) for rank in ranks]
        outcomes = {FrameOutcome.ROUND_JOINED: len(sent)}
        if not opened:
            outcomes = {FrameOutcome.ROUND_OPENED: 1, FrameOutcome.ROUND_JOINED: len(sent) - 1}
            opened = True
        bed.expect(sent, {}, outcomes)
    last = job.send(last_rank, constant(last_rank))
    total = constant(sum(range(world_size)))
    bed.expect([last], job.results(last, total), FrameOutcome.ROUND_COMPLETED)
    check_top_rank(bed, job, total)


def check_top_rank(bed: Testbed, job: Job, total: Any) -> None:
    """The highest rank has been heard, and gets its result again."""
    top = job.world_size - 1
    again = job.send(top, constant(1))
    bed.expect([again], job.repeated(again, top, total), FrameOutcome.RESULT_REPEATED)


def test_halves_for_64_ranks(bed: Testbed, jobs: Jobs) -> None:
    """128 frames from one."""
    job = jobs(64)
    for port in (1, 2, 3, 4):
        ranks = [one.number for one in job.ranks if one.port == port and one.number != 63]
        bed.exchange([job.send(rank, constant(1) if rank == 0 else None) for rank in ranks])
    last = job.send(63)
    bed.expect([last], job.halves(last, constant(1)), FrameOutcome.ROUND_COMPLETED_HALVES)
