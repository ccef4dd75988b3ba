# SPDX-License-Identifier: Apache-2.0
"""A table whose entries the program gives, as a tree of tests.

A test is about some bits of one field of the key. Each entry that matches has passed all of its own
tests, and the first one of the best priority counts. A tree asks each test at most once on a path,
so a packet passes few of them, however many entries there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce_switch.program import ir

_MOST_LEAVES = 256


@dataclass(frozen=True, slots=True)
class Test:
    """Whether the bits of `mask` in the key's field `field` are those of `value`."""

    field: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is found. None: no entry matches."""

    entry: ir.InitialEntry | None


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a test decides how to go on."""

    test: Test
    if_true: Decision
    if_false: Decision


Decision = Leaf | Fork

_Row = tuple[frozenset[Test], ir.InitialEntry]


class _TooManyLeavesError(Exception):
    """The tree has too many leaves."""


def decision_tree(table: ir.ApplyTable) -> Decision | None:
    """Return a table's initial entries as a tree. None: it has none, or they do not become one."""
    if not table.initial_entries or any(key.kind not in ("exact", "ternary") for key in table.key):
        return None
    entries = sorted(table.initial_entries, key=lambda entry: -entry.priority)
    leaves = [_MOST_LEAVES]
    try:
        return _grow([(_tests(table, entry), entry) for entry in entries], leaves)
    except _TooManyLeavesError:
        return None


def _tests(table: ir.ApplyTable, entry: ir.InitialEntry) -> frozenset[Test]:
    found = set()
    for field, (key, match) in enumerate(zip(table.key, entry.match, strict=True)):
        everything = (1 << key.width) - 1
        value, mask = match if isinstance(match, tuple) else (match, everything)
        if mask & everything:
            found.add(Test(field, mask & everything, value & mask & everything))
    return frozenset(found)


def _grow(rows: Sequence[_Row], leaves: list[int]) -> Decision:
    if not rows or not rows[0][0]:
        leaves[0] -= 1
        if leaves[0] < 0:
            raise _TooManyLeavesError
        return Leaf(rows[0][1] if rows else None)
    asked = Counter(test for tests, _ in rows for test in tests)
    test = max(rows[0][0], key=lambda test: (asked[test], -test.field))
    passed = [(left, entry) for tests, entry in rows if (left := _after(tests, test)) is not None]
    failed = [(tests, entry) for tests, entry in rows if not _implies(tests, test)]
    return Fork(test, _grow(passed, leaves), _grow(failed, leaves))


def _after(tests: frozenset[Test], passed: Test) -> frozenset[Test] | None:
    """What is left to ask after a test was passed; None: they cannot all be passed any more."""
    left = set()
    for test in tests:
        if test.field != passed.field:
            left.add(test)
            continue
        if (test.value ^ passed.value) & test.mask & passed.mask:
            return None
        mask = test.mask & ~passed.mask
        if mask:
            left.add(Test(test.field, mask, test.value & mask))
    return frozenset(left)


def _implies(tests: frozenset[Test], test: Test) -> bool:
    """Whether all that pass these tests pass that one."""
    return any(
        own.field == test.field
        and own.mask & test.mask == test.mask
        and own.value & test.mask == test.value
        for own in tests
    )
