# SPDX-License-Identifier: Apache-2.0
"""Every role of a switch in a tree, and every row of docs/protocol.md, "Trees": what comes out
where. The test is the ranks (or the switches below) and the parent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from p4reduce.wire.format import NO_BLOCK, Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import TAG, constant, ramp
from packet_testbed import Testbed
from packet_tree_jobs import CHILD, PARENT, PartialJob, TreeJobs
from test_packet_garbage import with_right_checksum

PADDED = Flag.RETRANSMISSION | Flag.PADDED
ROOM = Flag.PADDED  # what a contribution is repeated with that a switch has asked to
GARBAGE = 0xAA

both_roles = pytest.mark.parametrize("spine", [False, True], ids=["leaf", "spine"])


@pytest.fixture
def jobs(bed: Testbed) -> Iterator[TreeJobs]:
    """Makes jobs, with a parent or not, that are gone after the test."""
    made = TreeJobs(bed)
    yield made
    made.close()


def send_up(bed: Testbed, job: PartialJob, round_: int = 0) -> None:
    """Ranks 0 and 1 contribute 1 and 2: the sums go to the parent."""
    bed.expect([job.send(0, constant(1), round=round_)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), round=round_)
    bed.expect([last], job.up(last, constant(3)), FrameOutcome.SUMS_SENT_UP)


def finish(bed: Testbed, job: PartialJob, total: int = 10, **header: Any) -> None:
    """The parent answers that it is `total`."""
    result = job.from_parent(constant(total), **header)
    down = job.passed_down(result, constant(total))
    bed.expect([result], down, FrameOutcome.RESULT_PASSED_DOWN)


# -- Up ------------------------------------------------------------------------------------------


@both_roles
def test_sums_go_up_and_the_result_comes_down(bed: Testbed, jobs: TreeJobs, spine: bool) -> None:
    """And is kept: a repetition is answered here."""
    job = jobs.partial(3, spine=spine)
    bed.expect([job.send(0, ramp(0))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([job.send(1, ramp(1))], {}, FrameOutcome.ROUND_JOINED)
    last = job.send(2, ramp(2), next_block=7)
    bed.expect([last], job.up(last, 3 * ramp() + 3, next_block=1), FrameOutcome.SUMS_SENT_UP)
    result = job.from_parent(ramp(50), next_block=6, next_exponent=90)
    bed.expect([result], job.passed_down(result, ramp(50)), FrameOutcome.RESULT_PASSED_DOWN)
    again = job.send(1, ramp(1), flags=Flag.RETRANSMISSION)
    told = {"next_block": 6, "next_exponent": 90}
    bed.expect([again], job.repeated(again, 1, ramp(50), **told), FrameOutcome.RESULT_REPEATED)


def test_a_root_sums_switches_as_a_switch_sums_ranks(bed: Testbed, jobs: TreeJobs) -> None:
    """What is a child of the root shows in nothing but the port that it hears at."""
    job = jobs(2)
    bed.expect([job.send(0, constant(3))], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(4), flags=Flag.RETRANSMISSION)
    bed.expect([last], job.results(last, constant(7)), FrameOutcome.ROUND_COMPLETED)


def test_the_smallest_next_block_goes_up(bed: Testbed, jobs: TreeJobs) -> None:
    job = jobs.partial()
    bed.expect([job.send(0, next_block=9, next_exponent=1)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, next_block=NO_BLOCK, next_exponent=0)
    up = job.up(last, next_block=9, next_exponent=1)
    bed.expect([last], up, FrameOutcome.SUMS_SENT_UP)
    result = job.from_parent(next_block=3, next_exponent=2)
    bed.expect([result], job.passed_down(result), FrameOutcome.RESULT_PASSED_DOWN)


@pytest.mark.parametrize("flag", [Flag.OVERFLOW, Flag.NONFINITE])
def test_flags_go_up_and_come_down(bed: Testbed, jobs: TreeJobs, flag: Flag) -> None:
    job = jobs.partial()
    bed.expect([job.send(0, constant(1), flags=flag)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2))
    bed.expect([last], job.up(last, constant(3), flags=flag), FrameOutcome.SUMS_SENT_UP)
    result = job.from_parent(constant(5), flags=flag)
    down = job.passed_down(result, constant(5), flags=flag)
    bed.expect([result], down, FrameOutcome.RESULT_PASSED_DOWN)
    again = job.send(0, constant(1))
    bed.expect(
        [again], job.repeated(again, 0, constant(5), flags=flag), FrameOutcome.RESULT_REPEATED
    )


def test_room_that_is_there_goes_up_as_well(bed: Testbed, jobs: TreeJobs) -> None:
    """A padded frame of a round without payload: the parent's sums fit into it."""
    job = jobs.partial()
    bed.expect([job.send(0)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, flags=PADDED, pad=GARBAGE)
    bed.expect([last], job.up(last, pad=GARBAGE), FrameOutcome.SUMS_SENT_UP)
    finish(bed, job)


def test_without_room_the_last_rank_is_asked_for_it(bed: Testbed, jobs: TreeJobs) -> None:
    job = jobs.partial()
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1)
    asked = job.status(last, 1, job.everyone, flags=Flag.PADDED)
    bed.expect([last], asked, FrameOutcome.ROOM_ASKED)
    # A duplicate of it is asked the same.
    bed.expect([last], asked, FrameOutcome.ROOM_ASKED)
    again = job.send(1, flags=ROOM, pad=GARBAGE)
    bed.expect([again], job.up(again, constant(1)), FrameOutcome.SUMS_SENT_UP_AGAIN)
    finish(bed, job)


# -- Asking again --------------------------------------------------------------------------------


def test_parents_result_is_lost(bed: Testbed, jobs: TreeJobs) -> None:
    """A rank's repetition asks the parent again, with the same sums; what it answers goes to all
    ranks, and from then on the switch knows it."""
    job = jobs.partial()
    send_up(bed, job)
    again = job.send(0, constant(1), flags=Flag.RETRANSMISSION)
    bed.expect([again], job.up(again, constant(3)), FrameOutcome.SUMS_SENT_UP_AGAIN)
    finish(bed, job, flags=Flag.RETRANSMISSION)
    again = job.send(1, flags=PADDED, pad=GARBAGE)
    bed.expect([again], job.repeated(again, 1, constant(10)), FrameOutcome.RESULT_REPEATED)


def test_the_parent_is_asked_once_for_all_ranks(bed: Testbed, jobs: TreeJobs) -> None:
    """By the first, and when one comes that has asked since; the others hear that their switch has
    all of its ranks."""
    job = jobs.partial(3)
    bed.exchange([job.send(rank, constant(1)) for rank in range(3)])
    again = [job.send(rank, constant(1), flags=Flag.RETRANSMISSION) for rank in range(3)]
    for first in (0, 1):
        up = job.up(again[first], constant(3))
        bed.expect([again[first]], up, FrameOutcome.SUMS_SENT_UP_AGAIN)
        for other in {0, 1, 2} - {first}:
            status = job.status(again[other], other, job.everyone)
            bed.expect([again[other]], status, FrameOutcome.STATUS_SENT)
    # A new round begins again.
    bed.exchange([job.send(rank, constant(1), round=2) for rank in range(3)])
    again = [job.send(rank, constant(1), round=2) for rank in range(3)]
    bed.expect([again[2]], job.up(again[2], constant(3)), FrameOutcome.SUMS_SENT_UP_AGAIN)


def test_incomplete_here_is_no_matter_for_the_parent(bed: Testbed, jobs: TreeJobs) -> None:
    job = jobs.partial()
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    again = job.send(0, constant(1), flags=Flag.RETRANSMISSION)
    bed.expect([again], job.status(again, 0, 0b01), FrameOutcome.STATUS_SENT)


def test_a_status_for_all_of_this_switch(bed: Testbed, jobs: TreeJobs) -> None:
    """What goes to the parent does not ask it to tell others; what it does not go for is told."""
    job = jobs.partial(3)
    bed.exchange([job.send(rank, constant(1)) for rank in range(2)])
    tell = Flag.TELL_ALL | Flag.RETRANSMISSION
    again = job.send(0, constant(1), flags=tell)
    told = job.status_for_all(again, 0b011, flags=Flag.RETRANSMISSION)
    bed.expect([again], told, FrameOutcome.STATUS_SENT)
    bed.exchange([job.send(2, constant(1))])
    up = job.up(again, constant(3), flags=Flag.RETRANSMISSION | Flag.FOR_ONE)
    bed.expect([again], up, FrameOutcome.SUMS_SENT_UP_AGAIN)


@both_roles
def test_what_the_parent_says_to_the_one_that_asks_for_all_is_kept_back(
    bed: Testbed, jobs: TreeJobs, spine: bool
) -> None:
    """Its questions all go up and take nobody's turn; what is said to another one goes to all."""
    job = jobs.partial(3, spine=spine)
    bed.exchange([job.send(rank, constant(1)) for rank in range(3)])
    # From a rank, or from a switch that asks for such a rank.
    flag = Flag.FOR_ONE if spine else Flag.TELL_ALL
    one = job.send(0, constant(1), flags=flag | Flag.RETRANSMISSION)
    others = [job.send(rank, constant(1), flags=Flag.RETRANSMISSION) for rank in (1, 2)]

    def goes_up(question: tuple[int, bytes], flags: Flag = Flag.RETRANSMISSION) -> None:
        up = job.up(question, constant(3), flags=flags)
        bed.expect([question], up, FrameOutcome.SUMS_SENT_UP_AGAIN)

    def status(flags: Flag) -> tuple[int, bytes]:
        return job.from_parent(
            next_exponent=0, kind=FrameKind.STATUS, contributors=0b1, flags=flags
        )

    def passed_down(flags: Flag) -> None:
        header = {"kind": FrameKind.STATUS, "contributors": 0b1, "next_exponent": 1, "flags": flags}
        down = job.passed_down(status(flags), **header)
        bed.expect([status(flags)], down, FrameOutcome.STATUS_PASSED_DOWN)

    for_one = Flag.RETRANSMISSION | Flag.FOR_ONE
    for _ in range(3):
        goes_up(one, for_one)
        bed.expect([status(for_one)], {}, FrameOutcome.STATUS_KEPT_BACK)
    # Whoever lacks room learns of it, so that says nothing of being for one.
    passed_down(Flag.RETRANSMISSION | Flag.PADDED)
    # Nobody's turn was taken: the first other one is next, and all hear what it is told.
    goes_up(others[0])
    goes_up(one, for_one)
    passed_down(Flag.RETRANSMISSION)
    bed.expect([status(for_one)], {}, FrameOutcome.STATUS_KEPT_BACK)
    answer = job.status(others[1], 2, job.everyone, flags=Flag.RETRANSMISSION)
    bed.expect([others[1]], answer, FrameOutcome.STATUS_SENT)
    goes_up(one, for_one)
    goes_up(others[1])
    passed_down(Flag.RETRANSMISSION)
    finish(bed, job, flags=Flag.RETRANSMISSION)


@pytest.mark.parametrize("role", ["root", "spine"])
def test_a_status_says_for_whom_it_is(bed: Testbed, jobs: TreeJobs, role: str) -> None:
    """For one rank, where that one's switch has asked for it; a RESULT is for all in any case."""
    job = jobs.partial(2, spine=True) if role == "spine" else jobs(2)
    bed.exchange([job.send(0, constant(1))])
    for_one = Flag.RETRANSMISSION | Flag.FOR_ONE
    asked = job.send(0, constant(1), flags=for_one)
    bed.expect([asked], job.status(asked, 0, 0b01, flags=for_one), FrameOutcome.STATUS_SENT)
    asked = job.send(0, constant(1), flags=Flag.RETRANSMISSION)
    answer = job.status(asked, 0, 0b01, flags=Flag.RETRANSMISSION)
    bed.expect([asked], answer, FrameOutcome.STATUS_SENT)
    # It completes a round whose contribution was lost on its way up.
    last = job.send(1, constant(2), flags=for_one)
    if isinstance(job, PartialJob):
        up = job.up(last, constant(3), flags=Flag.RETRANSMISSION)
        bed.expect([last], up, FrameOutcome.SUMS_SENT_UP)
        finish(bed, job, total=3)
    else:
        results = job.results(last, constant(3), flags=Flag.RETRANSMISSION)
        bed.expect([last], results, FrameOutcome.ROUND_COMPLETED)
    again = job.send(1, constant(2), flags=for_one)
    result = job.repeated(again, 1, constant(3), flags=Flag.RETRANSMISSION)
    bed.expect([again], result, FrameOutcome.RESULT_REPEATED)


@both_roles
def test_no_room_is_no_matter_of_one_rank(bed: Testbed, jobs: TreeJobs, spine: bool) -> None:
    job = jobs.partial(2, spine=spine)
    bed.exchange([job.send(rank, constant(1)) for rank in range(2)])
    flag = Flag.FOR_ONE if spine else Flag.TELL_ALL
    bare = job.send(0, flags=flag | Flag.RETRANSMISSION)
    asked = job.status(bare, 0, job.everyone, flags=Flag.RETRANSMISSION | Flag.PADDED)
    bed.expect([bare], asked, FrameOutcome.ROOM_ASKED)


def test_parents_result_in_halves(bed: Testbed, jobs: TreeJobs) -> None:
    """They are passed on and not kept: a rank that lost one asks, the parent is asked with room,
    whoever asks, and answers as a whole."""
    job = jobs.partial(3)
    bed.exchange([job.send(rank, constant(1)) for rank in range(3)])
    asked = job.send(0, constant(1), flags=Flag.RETRANSMISSION)
    bed.expect([asked], job.up(asked, constant(3)), FrameOutcome.SUMS_SENT_UP_AGAIN)
    for half, lanes in zip(job.both_halves(ramp()), (slice(512), slice(512, None)), strict=True):
        block = ramp().astype(">i4").tobytes()[lanes]
        flag = half[1][43] & (Flag.FIRST_HALF | Flag.SECOND_HALF)
        down = job.passed_down(half, block, flags=flag)
        bed.expect([half], down, FrameOutcome.HALF_PASSED_DOWN)
    again = job.send(1, flags=PADDED, pad=GARBAGE)
    bed.expect([again], job.up(again, constant(3)), FrameOutcome.SUMS_SENT_UP_AGAIN)
    finish(bed, job, 7)
    late = job.both_halves(ramp())
    bed.expect(late, {}, FrameOutcome.ANSWER_DUPLICATE)
    again = job.send(1, flags=PADDED, pad=GARBAGE)
    bed.expect([again], job.repeated(again, 1, constant(7)), FrameOutcome.RESULT_REPEATED)


@both_roles
@pytest.mark.parametrize("flags", [Flag(0), Flag.RETRANSMISSION, Flag.PADDED])
def test_status_is_passed_down(bed: Testbed, jobs: TreeJobs, spine: bool, flags: Flag) -> None:
    """To all, from one switch further away; whom it is about stays as it is."""
    job = jobs.partial(spine=spine)
    send_up(bed, job)
    status = job.from_parent(
        kind=FrameKind.STATUS, contributors=0b100000, next_exponent=1, flags=flags
    )
    header = {"kind": FrameKind.STATUS, "contributors": 0b100000, "next_exponent": 2}
    down = job.passed_down(status, flags=flags, **header)
    bed.expect([status], down, FrameOutcome.STATUS_PASSED_DOWN)
    finish(bed, job)
    bed.expect([status], {}, FrameOutcome.ANSWER_DUPLICATE)


def test_who_has_room_gets_through_after_the_parent_has_asked(bed: Testbed, jobs: TreeJobs) -> None:
    """Whatever other ranks' repetitions were before."""
    job = jobs.partial(3)
    bed.exchange([job.send(rank) for rank in range(3)])
    asked = job.send(0, flags=Flag.RETRANSMISSION)
    bed.expect([asked], job.up(asked), FrameOutcome.SUMS_SENT_UP_AGAIN)
    bed.exchange([job.from_parent(kind=FrameKind.STATUS, flags=Flag.PADDED, next_exponent=0)])
    again = job.send(2, flags=ROOM, pad=GARBAGE)
    bed.expect([again], job.up(again, pad=GARBAGE), FrameOutcome.SUMS_SENT_UP_AGAIN)


# -- What does not fit ---------------------------------------------------------------------------


def test_duplicates_and_late_results(bed: Testbed, jobs: TreeJobs) -> None:
    job = jobs.partial()
    send_up(bed, job)
    finish(bed, job)
    bed.expect([job.from_parent(constant(99))], {}, FrameOutcome.ANSWER_DUPLICATE)
    again = job.send(0, constant(1))
    bed.expect([again], job.repeated(again, 0, constant(10)), FrameOutcome.RESULT_REPEATED)
    send_up(bed, job, round_=2)
    bed.expect([job.from_parent(constant(99))], {}, FrameOutcome.ANSWER_STALE)
    finish(bed, job, round=2)


@pytest.mark.parametrize("begun", [False, True], ids=["nobody-yet", "one-rank-again"])
def test_a_leaf_restarted_between_contribution_and_result(
    bed: Testbed, jobs: TreeJobs, begun: bool
) -> None:
    """The result finds nothing to be about, or a round that has begun once more, and is not taken
    for its sums: the slots here are as an empty switch has them. In the job's next life it is
    nobody's."""
    job = jobs.partial()
    if begun:
        bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([job.from_parent(constant(10))], {}, FrameOutcome.ANSWER_STALE)
    if begun:
        again = job.send(0, constant(1))
        bed.expect([again], job.status(again, 0, 0b01), FrameOutcome.STATUS_SENT)
    after = jobs.partial(base=job.base)
    send_up(bed, after)
    bed.expect([job.from_parent(constant(10))], {}, FrameOutcome.ANSWER_STALE)
    finish(bed, after)


def test_a_root_restarted_between_contribution_and_result(bed: Testbed, jobs: TreeJobs) -> None:
    """It answers nothing any more, however often it is asked. In the job's next life, on the same
    slots, sums that wait here are overwritten and not added to, and late answers are nobody's."""
    old = jobs.partial()
    send_up(bed, old)
    again = old.send(1, constant(2), flags=Flag.RETRANSMISSION)
    bed.expect([again], old.up(again, constant(3)), FrameOutcome.SUMS_SENT_UP_AGAIN)
    rows = old.rows()
    bed.remove(reversed(rows))
    jobs.forget(rows)
    new = jobs.partial(base=old.base)
    bed.expect([new.send(0, constant(4))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([again], {}, FrameOutcome.NOT_ADMITTED)
    bed.expect([old.from_parent(constant(10))], {}, FrameOutcome.NOT_FROM_PARENT)
    last = new.send(1, constant(5))
    bed.expect([last], new.up(last, constant(9)), FrameOutcome.SUMS_SENT_UP)
    bed.expect([old.from_parent(constant(10))], {}, FrameOutcome.NOT_FROM_PARENT)
    finish(bed, new, 20)


def test_late_duplicates_of_a_leafs_earlier_life(bed: Testbed, jobs: TreeJobs) -> None:
    """At the parent they are another job's, admitted or not any more: nothing is added."""
    old = jobs(2)
    bed.expect([old.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    late = old.send(0, constant(1))
    rows = [old.admission(rank) for rank in old.ranks]
    bed.remove(rows)
    jobs.forget(rows)
    new = jobs(2, base=old.base)
    bed.expect([new.send(0, constant(5))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([late], {}, FrameOutcome.NOT_ADMITTED)
    last = new.send(1, constant(6))
    bed.expect([last], new.results(last, constant(11)), FrameOutcome.ROUND_COMPLETED)


def test_a_rank_a_round_ahead_of_one_on_another_leaf(bed: Testbed, jobs: TreeJobs) -> None:
    """This leaf's ranks have the result and continue; the parent is still asked about the round
    before by the other leaf, whose answer comes here by no way. The versions do not meet."""
    job = jobs.partial()
    send_up(bed, job, round_=0)
    finish(bed, job, 10, round=0)
    bed.expect([job.send(0, constant(4), round=1)], {}, FrameOutcome.ROUND_OPENED)
    # Rank 1 of this leaf has lost it: it is answered here, though rank 0 is ahead.
    again = job.send(1, constant(2), flags=Flag.RETRANSMISSION)
    bed.expect([again], job.repeated(again, 1, constant(10)), FrameOutcome.RESULT_REPEATED)
    last = job.send(1, constant(5), round=1)
    bed.expect([last], job.up(last, constant(9)), FrameOutcome.SUMS_SENT_UP)
    bed.expect([job.from_parent(constant(10))], {}, FrameOutcome.ANSWER_DUPLICATE)
    finish(bed, job, 20, round=1)


def test_mismatch_inside_a_leaf(bed: Testbed, jobs: TreeJobs) -> None:
    """It goes up as what it is, without sums, and comes back to all."""
    job = jobs.partial()
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), tag=TAG + 1)
    padding = last[1][78:]
    up = job.up(last, tag=TAG, flags=Flag.MISMATCH, padding=padding)
    bed.expect([last], up, FrameOutcome.SUMS_SENT_UP)
    result = job.from_parent(flags=Flag.MISMATCH)
    down = job.passed_down(result, flags=Flag.MISMATCH)
    bed.expect([result], down, FrameOutcome.RESULT_PASSED_DOWN)
    again = job.send(1, constant(2), tag=TAG + 1)
    repeated = job.repeated(again, 1, tag=TAG, flags=Flag.MISMATCH)
    bed.expect([again], repeated, FrameOutcome.RESULT_REPEATED)


def test_mismatch_across_leaves(bed: Testbed, jobs: TreeJobs) -> None:
    """The ranks here agree; the parent has the other leaf's tag, and says that they do not."""
    job = jobs.partial()
    send_up(bed, job)
    result = job.from_parent(flags=Flag.MISMATCH, tag=TAG + 1)
    down = job.passed_down(result, flags=Flag.MISMATCH, tag=TAG + 1)
    bed.expect([result], down, FrameOutcome.RESULT_PASSED_DOWN)
    again = job.send(0, constant(1))
    bed.expect([again], job.repeated(again, 0, flags=Flag.MISMATCH), FrameOutcome.RESULT_REPEATED)


def test_mismatch_at_the_root(bed: Testbed, jobs: TreeJobs) -> None:
    """Of two leaves, or told by one of them."""
    for changes in ({"tag": TAG + 1}, {"flags": Flag.MISMATCH}):
        job = jobs(2)
        bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
        last = job.send(1, None if "flags" in changes else constant(1), **changes)
        result = job.results(last, tag=TAG, flags=Flag.MISMATCH)
        bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)


@pytest.mark.parametrize(
    "change", ["port", "address", "job", "number"], ids=lambda change: f"other-{change}"
)
def test_only_the_parent_answers(bed: Testbed, jobs: TreeJobs, change: str) -> None:
    job = jobs.partial()
    send_up(bed, job)
    port, frame = job.from_parent(constant(10))
    if change == "port":
        port = job.ranks[0].port
    elif change == "address":
        other = job.send(0)[1][26:30]  # a rank's
        frame = with_right_checksum(frame[:26] + other + frame[30:])
    elif change == "job":
        frame = job.from_parent(constant(10), job=job.id ^ 1 << 31)[1]
    else:
        frame = job.from_parent(constant(10), rank=CHILD + 1)[1]
    bed.expect([(port, frame)], {}, FrameOutcome.NOT_FROM_PARENT)
    finish(bed, job)


def test_slots_of_others(bed: Testbed, jobs: TreeJobs) -> None:
    job = jobs.partial()
    beyond = job.from_parent(constant(1), slot=job.slots)
    bed.expect([beyond], {}, FrameOutcome.SLOT_OUT_OF_RANGE)


@pytest.mark.parametrize("cut", [1, 100])
def test_lengths_of_answers(bed: Testbed, jobs: TreeJobs, cut: int) -> None:
    """A half has 512 bytes, a whole 1,024."""
    job = jobs.partial()
    send_up(bed, job)
    whole = job.from_parent(constant(1))
    half = job.both_halves(constant(1))[0]
    for port, frame in (whole, half):
        bed.expect([(port, frame[:-cut])], {}, FrameOutcome.MALFORMED)
        bed.expect([(port, frame + bytes(cut))], {}, FrameOutcome.MALFORMED)
    finish(bed, job)


def test_counters_of_the_uplink(bed: Testbed, jobs: TreeJobs) -> None:
    """What goes up counts as delivered to the parent, what comes down as answered by it."""
    job = jobs.partial()
    send_up(bed, job)
    finish(bed, job)
    assert bed.counts("delivery", replica=job.replica_up).frames == 1
    assert bed.counts("uplink", job=job.id).frames == 1
    assert PARENT.number == CHILD
