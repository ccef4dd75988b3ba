# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from p4reduce_controller.jobs.allocator import ExhaustedError, IdAllocator, RangeAllocator

SIZE = 40


class RangesAgainstASet(RuleBasedStateMachine):
    """Compares the allocator with the plainest thing that could do its job: a set of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = RangeAllocator(SIZE)
        self.free = set(range(SIZE))
        self.taken: list[range] = []

    def first_fit(self, count: int) -> range | None:
        fits = [s for s in range(SIZE - count + 1) if self.free.issuperset(range(s, s + count))]
        return range(fits[0], fits[0] + count) if fits else None

    @rule(count=st.integers(1, SIZE + 1))
    def allocate(self, count: int) -> None:
        expected = self.first_fit(count)
        if expected is None:
            with pytest.raises(ExhaustedError, match=f"{len(self.free)} of {SIZE} are free"):
                self.allocator.allocate(count)
            return
        assert self.allocator.allocate(count) == expected
        self.free -= set(expected)
        self.taken.append(expected)

    @rule(data=st.data())
    def free_one(self, data: st.DataObject) -> None:
        if self.taken:
            taken = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
            self.allocator.free(taken)
            self.free |= set(taken)

    @rule(start=st.integers(0, SIZE - 1), count=st.integers(1, SIZE))
    def free_what_is_free(self, start: int, count: int) -> None:
        wrong = range(start, min(SIZE, start + count))
        if self.free & set(wrong):
            with pytest.raises(ValueError, match="not allocated"):
                self.allocator.free(wrong)

    @invariant()
    def counts_agree(self) -> None:
        assert self.allocator.free_count == len(self.free)
        runs = "".join("x" if n in self.free else " " for n in range(SIZE)).split()
        assert self.allocator.largest_gap == max(map(len, runs), default=0)


TestRangesAgainstASet = RangesAgainstASet.TestCase


def test_range_allocator_refuses_nothing_and_less() -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"{count}"):
            RangeAllocator(8).allocate(count)


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_ids_are_unique_and_reused_as_late_as_can_be(counts: list[int], random: object) -> None:
    ids = IdAllocator(1, 20)
    taken: list[list[int]] = []
    for count in counts:
        while 20 - sum(map(len, taken)) < count:
            ids.free(taken.pop(random.randrange(len(taken))))  # type: ignore[attr-defined]
        new = ids.allocate(count)
        assert len(set(new)) == count
        assert not set(new) & {each for group in taken for each in group}
        assert all(1 <= each <= 20 for each in new)
        taken.append(new)


def test_a_freed_id_comes_last() -> None:
    ids = IdAllocator(1, 4)
    first = ids.allocate(2)
    ids.free(first)
    assert ids.allocate(2) == [3, 4]
    assert ids.allocate(2) == first


def test_ids_run_out_and_some_are_never_given() -> None:
    ids = IdAllocator(1, 4, but=frozenset({2}))
    assert ids.allocate(3) == [1, 3, 4]
    with pytest.raises(ExhaustedError, match="0 of 4 are free, 1 needed"):
        ids.allocate(1)
    with pytest.raises(ValueError, match="5 is not allocated"):
        ids.free([5])


def test_what_a_former_life_has_is_claimed() -> None:
    slots = RangeAllocator(100)
    for wanted in (range(10, 20), range(90, 100), range(5), range(20, 30)):
        slots.claim(wanted)
    assert slots.free_count == 65
    assert slots.allocate(5) == range(5, 10)
    for taken in (range(10, 11), range(29, 31), range(95, 105), range(100)):
        with pytest.raises(ValueError, match="is not free"):
            slots.claim(taken)
    slots.free(range(10, 20))
    assert slots.allocate(10) == range(10, 20)


def test_claimed_ids_are_nobody_elses() -> None:
    ids = IdAllocator(1, 10)
    ids.claim([3, 9])
    assert ids.allocate(8) == [10, 1, 2, 4, 5, 6, 7, 8]
    for taken in ([3], [11], [0]):
        with pytest.raises(ValueError, match="is not free"):
            ids.claim(taken)
