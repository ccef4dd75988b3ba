# SPDX-License-Identifier: Apache-2.0
"""Ranges of free and taken numbers. holdings.py uses them for slots, replica ids and groups."""

from __future__ import annotations


class ExhaustedError(Exception):
    """No free numbers fit the request. The message says how many are free."""


class RangeAllocator:
    """Allocates contiguous ranges out of `range(size)`: first fit, and freed ranges merge."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._gaps = [range(size)]  # free, in order, none empty, no two adjacent

    @property
    def free_count(self) -> int:
        """How many numbers are free, in gaps of any length."""
        return sum(len(gap) for gap in self._gaps)

    @property
    def largest_gap(self) -> int:
        """The longest range that can be allocated."""
        return max((len(gap) for gap in self._gaps), default=0)

    def allocate(self, count: int) -> range:
        """Take the lowest `count` numbers in a row. Raises ExhaustedError."""
        if count < 1:
            raise ValueError(f"cannot allocate {count} of anything")
        for index, gap in enumerate(self._gaps):
            if len(gap) >= count:
                taken, rest = gap[:count], gap[count:]
                self._gaps[index : index + 1] = [rest] if rest else []
                return taken
        raise ExhaustedError(
            f"{self.free_count} of {self.size} are free, at most {self.largest_gap} in a row"
        )

    def claim(self, wanted: range) -> None:
        """Take exactly these numbers. Raises ValueError if one of them is not free."""
        for index, gap in enumerate(self._gaps):
            if gap.start <= wanted.start < wanted.stop <= gap.stop:
                rest = [range(gap.start, wanted.start), range(wanted.stop, gap.stop)]
                self._gaps[index : index + 1] = [part for part in rest if part]
                return
        raise ValueError(f"{wanted} is not free")

    def free(self, taken: range) -> None:
        """Free what `allocate` returned. Raises ValueError if part of it is free already."""
        index = 0
        while index < len(self._gaps) and self._gaps[index].start < taken.start:
            index += 1
        before = self._gaps[index - 1] if index else range(0)
        after = self._gaps[index] if index < len(self._gaps) else range(self.size, self.size)
        if before.stop > taken.start or after.start < taken.stop:
            raise ValueError(f"{taken} is not allocated, or not as a whole")
        start, stop = taken.start, taken.stop
        first = last = index
        if before and before.stop == start:
            start, first = before.start, index - 1
        if after and after.start == stop:
            stop, last = after.stop, index + 1
        self._gaps[first:last] = [range(start, stop)]


class IdAllocator:
    """Allocates single numbers out of `range(first, last + 1)`, the least recently used ones first.

    A frame that was in the switch when its job ended may still look up an id of that job. An id
    comes back only after all others, so it is free by then.
    """

    def __init__(self, first: int, last: int, *, but: frozenset[int] = frozenset()) -> None:
        self._ids = range(first, last + 1)
        self._taken = set(but)
        self._next = first

    def allocate(self, count: int) -> list[int]:
        """Take `count` numbers, not always in a row. Raises ExhaustedError."""
        free = len(self._ids) - len(self._taken)
        if count > free:
            raise ExhaustedError(f"{free} of {len(self._ids)} are free, {count} needed")
        found: list[int] = []
        while len(found) < count:
            if self._next not in self._taken:
                found.append(self._next)
            self._next = self._next + 1 if self._next < self._ids[-1] else self._ids[0]
        self._taken.update(found)
        return found

    def claim(self, ids: list[int]) -> None:
        """Take exactly these numbers. Raises ValueError if one of them is not free."""
        for id_ in ids:
            if id_ not in self._ids or id_ in self._taken:
                raise ValueError(f"{id_} is not free")
            self._taken.add(id_)
            # What comes next is as late as can be after the latest that was handed out.
            self._next = self._ids[(id_ + 1 - self._ids[0]) % len(self._ids)]

    def free(self, ids: list[int]) -> None:
        """Free numbers. Raises ValueError for one that is not allocated."""
        for id_ in ids:
            if id_ not in self._taken:
                raise ValueError(f"{id_} is not allocated")
        self._taken.difference_update(ids)
