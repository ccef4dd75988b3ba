# SPDX-License-Identifier: Apache-2.0
"""The sums, lane by lane: no carry gets from one lane into the next, and an overflow of any lane
is told. Lanes are numbered as they are on the wire; BMv2's words hold 256 bytes of them."""

from __future__ import annotations

import numpy as np
import pytest
from p4reduce.wire.format import Flag, Format
from p4reduce.wire.lanes import unpack
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Job, Jobs, Lanes, constant, lane_limits, lane_type, random_lanes
from packet_testbed import Testbed

WORD_BYTES = 256

every_format = pytest.mark.parametrize("lane_format", list(Format), ids=lambda f: f.name.lower())


def sum_of(bed: Testbed, job: Job, blocks: list[Lanes], lane_format: int, total: Lanes, flags: int):
    """Contribute `blocks`, one a rank, and assert the result."""
    for rank, lanes in enumerate(blocks[:-1]):
        outcome = FrameOutcome.ROUND_JOINED if rank else FrameOutcome.ROUND_OPENED
        bed.expect([job.send(rank, lanes, format=lane_format)], {}, outcome)
    last = job.send(len(blocks) - 1, blocks[-1], format=lane_format)
    bed.expect([last], job.results(last, total, flags=flags), FrameOutcome.ROUND_COMPLETED)


def overflow(lane_format: Format) -> int:
    """What is told of a lane that leaves its range."""
    return 0 if lane_format is Format.WRAP32 else Flag.OVERFLOW


def wrapped(blocks: list[Lanes], lane_format: Format) -> Lanes:
    """The sum in two's complement."""
    half = 1 << lane_format.lane_bits - 1
    total = np.sum(blocks, axis=0, dtype=np.int64)
    return ((total + half) % (2 * half) - half).astype(blocks[0].dtype)


@every_format
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_random_lanes(
    bed: Testbed, jobs: Jobs, rng: np.random.Generator, lane_format: Format, world_size: int
) -> None:
    blocks = [random_lanes(rng, lane_format, world_size) for _ in range(world_size)]
    sum_of(bed, jobs(world_size), blocks, lane_format, wrapped(blocks, lane_format), 0)


@every_format
@pytest.mark.parametrize("shift", [0, 1])
def test_carries_stay_in_their_lane(
    bed: Testbed, jobs: Jobs, lane_format: Format, shift: int
) -> None:
    """All ones plus one carries through every bit of a lane; the lanes between must stay 0."""
    ones, one = constant(0, lane_format), constant(0, lane_format)
    ones[shift::2], one[shift::2] = -1, 1
    sum_of(bed, jobs(2), [ones, one], lane_format, constant(0, lane_format), 0)


@every_format
def test_carry_out_of_the_low_bits(bed: Testbed, jobs: Jobs, lane_format: Format) -> None:
    """Into the top bit of each lane, which is added apart from the rest."""
    top = int(lane_limits(lane_format).max)
    half = constant(top // 2 + 1, lane_format)
    blocks = [half, -half, constant(top, lane_format), constant(-top, lane_format)]
    sum_of(bed, jobs(4), blocks, lane_format, constant(0, lane_format), 0)


@every_format
@pytest.mark.parametrize("numbers", [(-1, -1), (-1, 5), (3, -7), (0, 0), (1, 2)])
def test_signs(bed: Testbed, jobs: Jobs, lane_format: Format, numbers: tuple[int, int]) -> None:
    blocks = [constant(number, lane_format) for number in numbers]
    sum_of(bed, jobs(2), blocks, lane_format, constant(sum(numbers), lane_format), 0)


@every_format
def test_the_ends_of_the_range_are_no_overflow(
    bed: Testbed, jobs: Jobs, lane_format: Format
) -> None:
    limits = lane_limits(lane_format)
    for start, end in ((limits.max - 1, limits.max), (limits.min + 1, limits.min)):
        blocks = [constant(start, lane_format), constant(end - start, lane_format)]
        sum_of(bed, jobs(2), blocks, lane_format, constant(end, lane_format), 0)


@every_format
@pytest.mark.parametrize("word", range(4))
@pytest.mark.parametrize("at", ["first", "last"])
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_overflow(
    bed: Testbed, jobs: Jobs, lane_format: Format, word: int, at: str, sign: int
) -> None:
    """Of a single lane, at each end of each word: told to all unless lanes may wrap, and only that
    lane wraps."""
    lanes_a_word = 8 * WORD_BYTES // lane_format.lane_bits
    lane = word * lanes_a_word + (lanes_a_word - 1 if at == "last" else 0)
    limits = lane_limits(lane_format)
    one, other = constant(1, lane_format), constant(-2, lane_format)
    one[lane], other[lane] = (limits.max, 1) if sign > 0 else (limits.min, -1)
    total = constant(-1, lane_format)
    total[lane] = limits.min if sign > 0 else limits.max
    sum_of(bed, jobs(2), [one, other], lane_format, total, overflow(lane_format))


@every_format
def test_overflow_everywhere(bed: Testbed, jobs: Jobs, lane_format: Format) -> None:
    """Of all lanes at once, the most that carries could do."""
    block = constant(int(lane_limits(lane_format).min), lane_format)
    sum_of(
        bed, jobs(2), [block, block], lane_format, constant(0, lane_format), overflow(lane_format)
    )


@pytest.mark.parametrize("world_size", [2, 8])
def test_masks_cancel_in_lanes_that_wrap(
    bed: Testbed, jobs: Jobs, rng: np.random.Generator, world_size: int
) -> None:
    """Each pair of ranks adds and takes away a number from all of the range; the sum is exact."""
    blocks = [random_lanes(rng, Format.WRAP32, world_size) for _ in range(world_size)]
    masked = [block.copy() for block in blocks]
    for one in range(world_size):
        for other in range(one):
            mask = random_lanes(rng, Format.WRAP32)
            masked[one] += mask
            masked[other] -= mask
    sum_of(bed, jobs(world_size), masked, Format.WRAP32, wrapped(blocks, Format.WRAP32), 0)


def test_lanes_that_wrap_do_not_mix_with_lanes_that_do_not(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    bed.exchange([job.send(0, constant(1), format=Format.WRAP32)])
    last = job.send(1, constant(1), format=Format.INT32)
    result = job.results(last, format=Format.WRAP32, flags=Flag.MISMATCH)
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)


def test_overflow_is_of_the_lane_width_that_the_packet_says(bed: Testbed, jobs: Jobs) -> None:
    """The same bytes overflow in narrow lanes, not as int32, where they sum differently."""
    for lane_format, flags in (
        (Format.INT32, 0),
        (Format.INT16, Flag.OVERFLOW),
        (Format.INT8, Flag.OVERFLOW),
        (Format.INT4, Flag.OVERFLOW),
    ):
        bytes_of_all = constant(0x007F7F7F).astype(">i4").view(np.uint8)
        lanes = unpack(bytes_of_all, lane_format).astype(lane_type(lane_format))
        total = wrapped([lanes, lanes], lane_format)
        sum_of(bed, jobs(2), [lanes, lanes], lane_format, total, flags)


def test_overflow_of_a_partial_sum(bed: Testbed, jobs: Jobs, rng: np.random.Generator) -> None:
    """It is told even where later ones bring the sum back: the order must not matter
    for the lanes, and who has told once stays told."""
    blocks = [constant(2**31 - 1), constant(1), constant(-5)]
    sum_of(bed, jobs(3), blocks, Format.INT32, constant(2**31 - 5), Flag.OVERFLOW)


def test_overflow_is_gone_in_the_next_round(bed: Testbed, jobs: Jobs) -> None:
    """Of the same slot and version."""
    job = jobs(2)
    sum_of(
        bed,
        job,
        [constant(2**31 - 1), constant(1)],
        Format.INT32,
        constant(-(2**31)),
        Flag.OVERFLOW,
    )
    bed.expect([job.send(0, constant(1), round=2)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), round=2)
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_overflow_is_repeated_with_the_result(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(3)
    bed.exchange([job.send(0, constant(-(2**31)))])
    bed.exchange([job.send(1, constant(-1))])
    again = job.send(0, constant(0))
    status = job.status(again, 0, 0b011, flags=Flag.OVERFLOW)
    bed.expect([again], status, FrameOutcome.STATUS_SENT)
    last = job.send(2)
    total = constant(2**31 - 1)
    halves = job.halves(last, total, flags=Flag.OVERFLOW | Flag.PAYLOAD)
    bed.expect([last], halves, FrameOutcome.ROUND_COMPLETED_HALVES)
    again = job.send(2, flags=Flag.PADDED)
    wanted = job.repeated(again, 2, total, flags=Flag.OVERFLOW)
    bed.expect([again], wanted, FrameOutcome.RESULT_REPEATED)


def test_first_payload_replaces_old_sums(bed: Testbed, jobs: Jobs) -> None:
    """Those of an earlier round, though the round was opened without any."""
    job = jobs(2)
    sum_of(bed, job, [constant(1), constant(2)], Format.INT32, constant(3), 0)
    bed.expect([job.send(0, round=2)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(10), round=2)
    bed.expect([last], job.results(last, constant(10)), FrameOutcome.ROUND_COMPLETED)


@pytest.mark.parametrize("rank", range(3))
def test_halves_hold_the_right_bytes(
    bed: Testbed, jobs: Jobs, rng: np.random.Generator, rank: int
) -> None:
    """A block whose bytes are all over the place, split in the middle, whoever brought it."""
    job = jobs(3)
    lanes = random_lanes(rng, Format.INT32)
    quiet = [other for other in range(3) if other != rank]
    bed.exchange([job.send(rank, lanes)])
    bed.exchange([job.send(quiet[0])])
    last = job.send(quiet[1])
    bed.expect([last], job.halves(last, lanes), FrameOutcome.ROUND_COMPLETED_HALVES)
