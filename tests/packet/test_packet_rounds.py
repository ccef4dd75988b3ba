# SPDX-License-Identifier: Apache-2.0
"""Every row of the case table in docs/protocol.md, "What the switch does", for contributions
with lanes, without, and padded with bytes that mean nothing."""

from __future__ import annotations

from typing import Any

import pytest
from p4reduce.wire.format import EMPTY_FRAME_BYTES, HALF_FRAME_BYTES, PAYLOAD_FRAME_BYTES, Flag
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Job, Jobs, constant, ramp
from packet_testbed import Testbed

EMPTY, PAYLOAD, PADDED = "empty", "payload", "padded"
every_form = pytest.mark.parametrize("form", [EMPTY, PAYLOAD, PADDED])
summed_or_not = pytest.mark.parametrize("summed", [True, False], ids=["summed", "nothing-summed"])

GARBAGE = 0xAA  # what padding holds, so that it shows where it gets out


def shape(form: str, value: int = 1) -> dict[str, Any]:
    """What `Job.send` needs to make a frame of that form; its lanes are all `value`."""
    if form == PAYLOAD:
        return {"lanes": constant(value)}
    if form == PADDED:
        return {"flags": Flag.RETRANSMISSION | Flag.PADDED, "pad": GARBAGE}
    return {}


def open_round(bed: Testbed, job: Job, value: int | None, **header: Any) -> None:
    """Rank 0 contributes `value`, or nothing."""
    lanes = None if value is None else constant(value)
    bed.expect([job.send(0, lanes, **header)], {}, FrameOutcome.ROUND_OPENED)


def complete_round(bed: Testbed, job: Job, total: int, value: int, **header: Any) -> None:
    """Rank 1, the last, contributes `value`, which makes `total`."""
    last = job.send(1, constant(value), **header)
    bed.expect([last], job.results(last, constant(total)), FrameOutcome.ROUND_COMPLETED)


def test_four_ranks(bed: Testbed, jobs: Jobs) -> None:
    """Three are awaited in silence, the last one lets the sum out to all."""
    job = jobs(4)
    bed.expect([job.send(0, ramp(0))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([job.send(1, ramp(1))], {}, FrameOutcome.ROUND_JOINED)
    bed.expect([job.send(2, ramp(2))], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(3, ramp(3))
    bed.expect([last], job.results(last, 4 * ramp() + 6), FrameOutcome.ROUND_COMPLETED)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (2, 0, 1)])
def test_any_order(bed: Testbed, jobs: Jobs, order: tuple[int, int, int]) -> None:
    job = jobs(3)
    bed.expect([job.send(order[0], constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([job.send(order[1], constant(2))], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(order[2], constant(4))
    bed.expect([last], job.results(last, constant(7)), FrameOutcome.ROUND_COMPLETED)


# -- same job, older round: stale ----------------------------------------------------------------


@every_form
@pytest.mark.parametrize("rank", [0, 1], ids=["heard-now", "not-heard-now"])
def test_older_round_is_dropped(bed: Testbed, jobs: Jobs, form: str, rank: int) -> None:
    """Whether the rank has been heard in the current round or not; the sum does not notice."""
    job = jobs(2)
    open_round(bed, job, 10, round=6)
    bed.expect([job.send(rank, round=4, **shape(form))], {}, FrameOutcome.STALE)
    complete_round(bed, job, 15, 5, round=6)
    bed.expect([job.send(rank, round=4, **shape(form))], {}, FrameOutcome.STALE)


# -- other job: the slot has a new owner ---------------------------------------------------------


@every_form
@pytest.mark.parametrize("lower", [True, False], ids=["older-round", "newer-round"])
def test_other_job_takes_the_slot_over(bed: Testbed, jobs: Jobs, form: str, lower: bool) -> None:
    """Whatever its round is, and though the old job's round is incomplete."""
    old, new = jobs(2), None
    open_round(bed, old, 10, round=6)
    new = jobs(2, base=old.base)
    now = 4 if lower else 8
    bed.expect([new.send(0, round=now, **shape(form, 1))], {}, FrameOutcome.ROUND_OPENED)
    complete_round(bed, new, 6 if form == PAYLOAD else 5, 5, round=now)


@every_form
def test_old_job_takes_it_back(bed: Testbed, jobs: Jobs, form: str) -> None:
    """A slot knows its owner by the job alone, so that a switch without memory of jobs is right
    whichever of two is the newer: the controller gives a slot to one at a time."""
    old = jobs(2)
    new = jobs(2, base=old.base)
    open_round(bed, old, 10)
    open_round(bed, new, 20)
    bed.expect([old.send(1, **shape(form, 3))], {}, FrameOutcome.ROUND_OPENED)
    last = old.send(0, constant(10))
    total = constant(13 if form == PAYLOAD else 10)
    bed.expect([last], old.results(last, total), FrameOutcome.ROUND_COMPLETED)


# -- same job, newer round -----------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("finished", [True, False], ids=["after-complete", "after-incomplete"])
def test_newer_round_begins_anew(bed: Testbed, jobs: Jobs, form: str, finished: bool) -> None:
    job = jobs(2)
    open_round(bed, job, 10, round=2)
    if finished:
        complete_round(bed, job, 30, 20, round=2)
    bed.expect([job.send(0, round=4, **shape(form, 1))], {}, FrameOutcome.ROUND_OPENED)
    complete_round(bed, job, 6 if form == PAYLOAD else 5, 5, round=4)


def test_rounds_may_be_left_out(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    open_round(bed, job, 1, round=0)
    open_round(bed, job, 2, round=1000)
    complete_round(bed, job, 5, 3, round=1000)


# -- same round, not heard yet: joins ------------------------------------------------------------


@every_form
@summed_or_not
def test_joining(bed: Testbed, jobs: Jobs, form: str, summed: bool) -> None:
    """The second of three; the third brings lanes and shows what the sum was."""
    job = jobs(3)
    open_round(bed, job, 10 if summed else None)
    bed.expect([job.send(1, **shape(form, 5))], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(2, constant(1))
    total = 1 + (10 if summed else 0) + (5 if form == PAYLOAD else 0)
    bed.expect([last], job.results(last, constant(total)), FrameOutcome.ROUND_COMPLETED)


@every_form
@summed_or_not
def test_completing(bed: Testbed, jobs: Jobs, form: str, summed: bool) -> None:
    """The lanes go out whole where the last contribution has room for them, else in halves; and
    where nobody brought any, nor does the result."""
    job = jobs(2)
    open_round(bed, job, 10 if summed else None)
    last = job.send(1, **shape(form, 5))
    if not summed and form != PAYLOAD:
        bed.expect([last], job.results(last), FrameOutcome.ROUND_COMPLETED)
    elif form == EMPTY:
        bed.expect([last], job.halves(last, constant(10)), FrameOutcome.ROUND_COMPLETED_HALVES)
    else:
        total = (10 if summed else 0) + (5 if form == PAYLOAD else 0)
        bed.expect([last], job.results(last, constant(total)), FrameOutcome.ROUND_COMPLETED)


@every_form
def test_a_world_of_one(bed: Testbed, jobs: Jobs, form: str) -> None:
    """Each contribution is the first and the last."""
    job = jobs(1)
    for turn in range(4):
        only = job.send(0, round=turn, **shape(form, turn))
        lanes = constant(turn) if form == PAYLOAD else None
        bed.expect([only], job.results(only, lanes), FrameOutcome.ROUND_COMPLETED)


# -- same round, heard, complete: a retransmission after a lost result ---------------------------


@every_form
@summed_or_not
@pytest.mark.parametrize("rank", [0, 1])
def test_result_is_repeated(bed: Testbed, jobs: Jobs, form: str, summed: bool, rank: int) -> None:
    """To the sender alone, as often as it asks, and nothing is added: whatever lanes come are
    not those of the result. Without room for the lanes there is a status with all ranks in it."""
    job = jobs(2)
    open_round(bed, job, 10 if summed else None)
    last = job.send(1, **shape(PAYLOAD if summed else EMPTY, 5))
    lanes = constant(15) if summed else None
    bed.expect([last], job.results(last, lanes), FrameOutcome.ROUND_COMPLETED)
    again = job.send(rank, **shape(form, 99))
    for _ in range(2):
        if summed and form == EMPTY:
            bed.expect([again], job.status(again, rank, 0b11), FrameOutcome.STATUS_SENT)
        else:
            bed.expect([again], job.repeated(again, rank, lanes), FrameOutcome.RESULT_REPEATED)


def test_result_in_halves_is_repeated_whole(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    open_round(bed, job, 10)
    last = job.send(1)
    bed.expect([last], job.halves(last, constant(10)), FrameOutcome.ROUND_COMPLETED_HALVES)
    again = job.send(1, **shape(PADDED))
    bed.expect([again], job.repeated(again, 1, constant(10)), FrameOutcome.RESULT_REPEATED)


# -- same round, heard, incomplete: a retransmission while others are awaited --------------------


@every_form
@summed_or_not
def test_status(bed: Testbed, jobs: Jobs, form: str, summed: bool) -> None:
    """It says who was heard, to the sender alone, without lanes; and nothing is added."""
    job = jobs(4)
    open_round(bed, job, 10 if summed else None)
    again = job.send(0, **shape(form, 99))
    bed.expect([again], job.status(again, 0, 0b0001), FrameOutcome.STATUS_SENT)
    bed.expect([job.send(2, constant(1))], {}, FrameOutcome.ROUND_JOINED)
    bed.expect([again], job.status(again, 0, 0b0101), FrameOutcome.STATUS_SENT)
    bed.expect([job.send(1)], {}, FrameOutcome.ROUND_JOINED)
    bed.expect([again], job.status(again, 0, 0b0111), FrameOutcome.STATUS_SENT)
    last = job.send(3, constant(2))
    total = constant(13 if summed else 3)
    bed.expect([last], job.results(last, total), FrameOutcome.ROUND_COMPLETED)


@every_form
@summed_or_not
def test_status_for_all(bed: Testbed, jobs: Jobs, form: str, summed: bool) -> None:
    """With TELL_ALL each rank hears who was heard; and nothing is added."""
    job = jobs(4)
    open_round(bed, job, 10 if summed else None)
    header = shape(form, 99)
    header["flags"] = header.get("flags", Flag(0)) | Flag.TELL_ALL | Flag.RETRANSMISSION
    again = job.send(0, **header)
    told = job.status_for_all(again, 0b0001, flags=Flag.RETRANSMISSION)
    bed.expect([again], told, FrameOutcome.STATUS_SENT)
    bed.expect([job.send(2, constant(1))], {}, FrameOutcome.ROUND_JOINED)
    told = job.status_for_all(again, 0b0101, flags=Flag.RETRANSMISSION)
    bed.expect([again], told, FrameOutcome.STATUS_SENT)
    bed.expect([job.send(1)], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(3, constant(2), flags=Flag.TELL_ALL)
    total = constant(13 if summed else 3)
    bed.expect([last], job.results(last, total), FrameOutcome.ROUND_COMPLETED)


def test_a_result_is_for_who_asks_alone(bed: Testbed, jobs: Jobs) -> None:
    """Whatever it wants others to be told, they have been told it."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1)), job.send(1, constant(2))])
    again = job.send(0, constant(1), flags=Flag.TELL_ALL)
    bed.expect([again], job.repeated(again, 0, constant(3)), FrameOutcome.RESULT_REPEATED)


# -- The two versions of a slot, and its neighbours ----------------------------------------------


def test_two_versions_hold_two_results(bed: Testbed, jobs: Jobs) -> None:
    """The result of round r is there until round r + 2 begins, not just r + 1."""
    job = jobs(2)
    for turn in range(5):
        open_round(bed, job, turn, round=turn)
        complete_round(bed, job, turn + 100, 100, round=turn)
        again = job.send(0, constant(99), round=turn)
        bed.expect(
            [again], job.repeated(again, 0, constant(turn + 100)), FrameOutcome.RESULT_REPEATED
        )
        if turn:
            before = job.send(0, constant(99), round=turn - 1)
            wanted = job.repeated(before, 0, constant(turn + 99))
            bed.expect([before], wanted, FrameOutcome.RESULT_REPEATED)


def test_slots_are_apart(bed: Testbed, jobs: Jobs) -> None:
    """Rounds of several slots, in both versions, fill up side by side; neighbouring jobs too."""
    one, other = jobs(2, slots=3), jobs(2, slots=3)
    places = [(job, slot, turn) for job in (one, other) for slot in range(3) for turn in (0, 1)]
    for value, (job, slot, turn) in enumerate(places):
        open_round(bed, job, value, slot=slot, round=turn)
    for value, (job, slot, turn) in reversed(list(enumerate(places))):
        complete_round(bed, job, value + 1000, 1000, slot=slot, round=turn)


def test_last_slot_of_all(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2, slots=1, base=1023)
    open_round(bed, job, 1, round=1)
    complete_round(bed, job, 3, 2, round=1)


# -- Rounds in serial-number arithmetic (RFC 1982) -----------------------------------------------


@pytest.mark.parametrize(
    ("now", "after"),
    [
        (0xFFFFFFFE, 0),
        (0xFFFFFFFF, 1),
        (0, 0x7FFFFFFE),
        (0x7FFFFFFE, 0x80000000),
        (0x80000000, 0xFFFFFFFE),
        (0xFFFFFFFC, 0x7FFFFFFA),
    ],
)
def test_newer_and_older_round_the_clock(bed: Testbed, jobs: Jobs, now: int, after: int) -> None:
    """`after` is newer than `now` by less than 2^31, though it may be the smaller number."""
    job = jobs(2)
    open_round(bed, job, 1, round=now)
    open_round(bed, job, 2, round=after)
    bed.expect([job.send(1, constant(9), round=now)], {}, FrameOutcome.STALE)
    complete_round(bed, job, 5, 3, round=after)
    bed.expect([job.send(0, constant(9), round=now)], {}, FrameOutcome.STALE)


def test_slot_goes_through_the_last_round(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    for turn in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2):
        open_round(bed, job, 1, round=turn)
        complete_round(bed, job, 3, 2, round=turn)
        late = job.send(0, constant(1), round=(turn - 2) & 0xFFFFFFFF)
        bed.expect([late], {}, FrameOutcome.STALE)


# -- Sizes ---------------------------------------------------------------------------------------


def test_sizes_on_the_wire(bed: Testbed, jobs: Jobs) -> None:
    """The other tests take them from the expected frames; here they are by themselves."""
    job = jobs(2)
    assert len(job.frame(0)) == EMPTY_FRAME_BYTES == 78
    assert len(job.frame(0, constant(1))) == PAYLOAD_FRAME_BYTES == 1102
    seen = bed.exchange([job.send(0, constant(1))])
    assert seen.frames == []
    assert [len(frame) for frame in bed.exchange([job.send(0)]).frames] == [78]
    halves = bed.exchange([job.send(1)]).frames
    assert [len(frame) for frame in halves] == [HALF_FRAME_BYTES] * 4 == [590] * 4
    again = job.send(0, flags=Flag.PADDED | Flag.RETRANSMISSION)
    assert [len(frame) for frame in bed.exchange([again]).frames] == [1102]
