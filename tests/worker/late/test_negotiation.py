# SPDX-License-Identifier: Apache-2.0
"""Who is in a sum, as it follows from what the ranks say: without ranks, a switch or a clock."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import p4reduce
import pytest
from p4reduce.late.coding import check_groups
from p4reduce.late.negotiation import (
    ABSENT,
    FULL,
    LEAVING,
    PRESENT,
    TICK,
    WORDS,
    Negotiation,
    NegotiationRow,
    table_with,
    ticks,
)
from p4reduce.late.outcome import Total
from p4reduce.late.policies import AtLeast, OneOfEachGroup
from p4reduce.late.sums import row_of

SIZE = 8
ARRAY = np.zeros((3, 4), np.float32)
PAIRS = [range(first, first + 2) for first in range(0, SIZE, 2)]
FOURS = [range(4), range(4, 8)]


def negotiation_of(
    rows: dict[int, NegotiationRow], alive: range | tuple[int, ...] = range(SIZE)
) -> Negotiation:
    """The negotiation of ranks that say this; all others have not called."""
    table = sum(table_with(rows.get(rank, NegotiationRow(ABSENT)), rank, SIZE) for rank in alive)
    assert isinstance(table, np.ndarray)
    assert table.dtype == np.int32
    return Negotiation(table, alive)


def present(
    waited: int = 0, deadline: int = 0, at_least: int = 1, digest: int = 5
) -> NegotiationRow:
    return NegotiationRow(PRESENT, waited, 0, deadline, at_least, digest=digest, shape=(3, 4))


def all_but(*late: int) -> Negotiation:
    return negotiation_of({rank: present() for rank in range(SIZE) if rank not in late})


def test_a_row_comes_back_from_its_words() -> None:
    row = NegotiationRow(PRESENT, 1, 2, 3, 4, 5, 6, 2**31 - 1, (7, 1, 2**31 - 1))
    assert len(row.pack()) == WORDS
    assert NegotiationRow.unpack(row.pack()) == row
    assert NegotiationRow.unpack(NegotiationRow(LEAVING).pack()) == NegotiationRow(LEAVING)


def test_a_negotiation_tells_the_states_apart() -> None:
    negotiation = negotiation_of(
        {0: present(), 2: NegotiationRow(LEAVING), 3: NegotiationRow(FULL)}, (0, 1, 2, 3)
    )
    assert (negotiation.present, negotiation.leaving, negotiation.full) == ((0,), (2,), (3,))
    assert negotiation.not_present == (1, 2, 3)


def test_what_a_rank_that_is_late_learns_of_a_call() -> None:
    row = row_of(np.zeros((2, 0, 5), np.float16), "int8", ("sum", ""), 0.25, 3)
    assert (row.kind, row.precision, row.shape) == (np.float16, "int8", (2, 0, 5))
    assert row.deadline == 250_000
    assert row_of(np.zeros((), np.int8), None, ("sum", "")).shape == ()
    with pytest.raises(ValueError, match="8 dimensions at most"):
        row_of(np.zeros((1,) * 9), None, ())


def test_times_in_rows_have_a_largest_one() -> None:
    assert [ticks(-1.0), ticks(0.5), ticks(1e9)] == [0, 500_000, 2**31 - 1]


def test_with_groups_of_two_any_rank_and_most_pairs_can_be_late() -> None:
    """8 of 8 single ones; of 28 pairs those 24 that are no group."""
    policy = OneOfEachGroup(PAIRS)
    for late in range(SIZE):
        assert policy.members(all_but(late)) == tuple(
            late + 1 if first == late else first for first in range(0, SIZE, 2)
        )
    pairs = list(itertools.combinations(range(SIZE), 2))
    assert len(pairs) == 28
    for late in pairs:
        negotiation = all_but(*late)
        members = policy.members(negotiation)
        if late[0] // 2 == late[1] // 2:
            assert members is None
            group = f"group {late[0] // 2} (ranks {late[0]}, {late[1]}, parts {late[0]}, {late[1]})"
            assert policy.missing(negotiation) == f"no rank of {group} has called"
            with pytest.raises(p4reduce.WorkerLostError, match=f"group {late[0] // 2} is lost"):
                policy.check(late, None)
        else:
            assert members is not None
            assert [member // 2 for member in members] == [0, 1, 2, 3]
            assert not set(members) & set(late)
            policy.check(late, None)


def test_with_groups_of_four_any_three_can_be_late() -> None:
    policy = OneOfEachGroup(FOURS)
    triples = list(itertools.combinations(range(SIZE), 3))
    assert len(triples) == 56
    for late in triples:
        members = policy.members(all_but(*late))
        assert members is not None
        assert [member // 4 for member in members] == [0, 1]
        policy.check(late, None)
    assert policy.members(all_but(0, 1, 2, 3)) is None


def test_the_first_of_a_group_counts() -> None:
    rows = {rank: present(waited=10 * rank) for rank in range(SIZE)}
    assert OneOfEachGroup(PAIRS).members(negotiation_of(rows)) == (1, 3, 5, 7)
    assert OneOfEachGroup(FOURS).members(negotiation_of(rows)) == (3, 7)


def test_enough_ranks_go_after_the_deadline_and_all_at_once() -> None:
    policy = AtLeast(SIZE)
    assert policy.members(negotiation_of({})) is None
    assert policy.due(negotiation_of({})) == math.inf
    for waited, there, expected in (
        (99, 7, None),
        (100, 7, tuple(range(7))),
        (100, 3, None),
        (100, 4, tuple(range(4))),
        (0, 8, tuple(range(8))),
    ):
        rows = {rank: present(0, 100, 4) for rank in range(there)} | {0: present(waited, 100, 4)}
        negotiation = negotiation_of(rows)
        assert policy.members(negotiation) == expected, (waited, there)
        due = max(100 - waited, 0) * TICK if there >= 4 else math.inf
        assert policy.due(negotiation) == due, (waited, there)
    never = {rank: present(ticks(math.inf), ticks(math.inf)) for rank in range(7)}
    assert policy.members(negotiation_of(never)) is None
    assert policy.due(negotiation_of(never)) == math.inf
    text = policy.missing(negotiation_of({rank: present(at_least=4) for rank in range(3)}))
    assert text == "ranks 0 to 2 have called, at_least=4 are needed, and ranks 3 to 7 are missing"
    one = policy.missing(negotiation_of({3: present(at_least=2)}))
    assert one.startswith("rank 3 has called, at_least=2 are needed")


def test_the_next_negotiation_comes_when_those_who_are_in_anyway_can_be_there() -> None:
    """Not when those come who were waited for, or were in as they came in time."""
    came = (30, 10, 20, 90, 40, 60, 70, 80)
    rows = {
        rank: replace(present(waited=100 - time, at_least=3), came=time)
        for rank, time in enumerate(came)
    }
    assert AtLeast(SIZE).early(negotiation_of(rows)) == 30
    assert OneOfEachGroup(PAIRS).early(negotiation_of(rows)) == 70
    assert OneOfEachGroup(FOURS).early(negotiation_of(rows)) == 40


def test_after_a_loss_those_who_are_left_are_all() -> None:
    alive = (0, 2, 3, 4, 5, 6, 7)
    negotiation = negotiation_of({rank: present(0, 100, 7) for rank in alive}, alive)
    policy = AtLeast(SIZE)
    policy.check((1,), negotiation)
    assert policy.members(negotiation) == alive
    with pytest.raises(p4reduce.WorkerLostError, match="7 of 8 are left: rank 1 is gone"):
        policy.check((1,), negotiation_of({rank: present(0, 100, 8) for rank in alive}, alive))
    rows = {rank: present(at_least=7) for rank in range(6)} | {
        6: NegotiationRow(LEAVING),
        7: NegotiationRow(LEAVING),
    }
    with pytest.raises(p4reduce.WorkerLostError, match="ranks 6, 7 are gone") as gone:
        policy.check((), negotiation_of(rows))
    assert gone.value.ranks == (6, 7)


def test_different_calls_are_a_mismatch() -> None:
    rows = {rank: present() for rank in range(5)} | {5: present(digest=6)}
    for policy in (AtLeast(SIZE), OneOfEachGroup([range(SIZE)])):
        with pytest.raises(p4reduce.MismatchError, match="rank 5 another one") as wrong:
            policy.members(negotiation_of(rows))
        assert wrong.value.ranks == (5,)


def test_what_a_rank_lacks_is_told_by_a_head() -> None:
    numbers = np.zeros((2, 3), np.int16)
    total = Total(12, numbers, numbers.dtype, (0, 1, 5), (1, 5), 77)
    again = Total.of_head(total.head(SIZE))
    assert again.total.shape == (2, 3)
    assert again.total.dtype == np.int16
    assert (again.number, again.present, again.members, again.digest) == (12, (0, 1, 5), (1, 5), 77)
    assert again.error is None
    failed = Total(
        12, numbers, numbers.dtype, (0, 1), (1,), 77, p4reduce.LaneOverflowError("sum 12")
    )
    assert isinstance(Total.of_head(failed.head(SIZE)).error, p4reduce.LaneOverflowError)


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1, 3]]])
def test_each_rank_is_in_one_group(groups: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="groups="):
        check_groups(groups, 3)
    with pytest.raises(TypeError, match="in one group"):
        check_groups(7, 3)
    assert check_groups([[2, 0], [1]], 3) == ((0, 2), (1,))
