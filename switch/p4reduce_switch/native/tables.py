# SPDX-License-Identifier: Apache-2.0
"""Tables and value sets of a compiled program.

`tables.Table` stays the authority: it checks each change. This module applies the change to the
memory that machine code uses, in place.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from p4reduce_switch.native.meters import NativeMeter
from p4reduce_switch.native.program import HEADER, NativeProgram
from p4reduce_switch.state.profiles import CHOOSE
from p4reduce_switch.state.tables import (
    Lookup,
    Match,
    MatchKey,
    MatchValue,
    Slot,
    TableEntry,
    field_mask,
)
from p4reduce_switch.state.value_sets import ValueSet

_COUNTS = ("packets", "bytes", "last_hit_ns", "meter")
_PLACES = [getattr(HEADER.structure("p4r_entry"), name).offset for name in _COUNTS]
_PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})
_MOST_PRIORITY = (1 << 63) - 1


def _words(width: int) -> int:
    return (width + 63) // 64


class _EntryCounters:
    """Where an entry's counts are. It keeps the memory alive, as an entry may outlive its table."""

    __slots__ = ("address", "program")

    def __init__(self, program: NativeProgram, address: int) -> None:
        self.program = program
        self.address = address


def _count(which: int) -> Any:
    """A property whose value is in the entry's cell."""

    def read(entry: TableEntry) -> int:
        cell = entry.cell
        return ctypes.c_int64.from_address(cell.address + _PLACES[which]).value

    def write(entry: TableEntry, value: int) -> None:
        cell = entry.cell
        ctypes.c_int64.from_address(cell.address + _PLACES[which]).value = value

    return property(read, write)


class _LiveEntry(TableEntry):
    """An entry in a compiled program's table: packets change what is read of it."""

    __slots__ = ()

    packets = _count(0)
    bytes = _count(1)
    last_hit_ns = _count(2)

    @property  # type: ignore[override]
    def meter(self) -> NativeMeter | None:
        return _METER.__get__(self)  # type: ignore[no-any-return]

    @meter.setter
    def meter(self, meter: NativeMeter | None) -> None:
        place = self.cell.address + _PLACES[3]
        ctypes.c_void_p.from_address(place).value = None if meter is None else meter.address
        _METER.__set__(self, meter)


_METER: Any = TableEntry.__dict__["meter"]


class NativeIndex:
    """The part of a table that the packet path uses (`tables.TableIndex`), in a compiled program.

    Args:
        table: the address of the `struct p4r_table`.
        key: of the table.
        actions: for each action, the widths of its parameters; with a bit more for the sign of one
            that may be negative.
    """

    def __init__(
        self,
        program: NativeProgram,
        table: int,
        key: Sequence[MatchKey],
        actions: Sequence[Sequence[int]],
    ) -> None:
        self._program = program
        self._library = program.library
        self._table = table
        self._key = tuple(key)
        self._actions = [[8 * _words(width) for width in widths] for widths in actions]
        self._by_prefix = not any(field.kind in _PRIORITY_KINDS for field in key)
        self._slots: dict[int, Slot] = {}
        self.lookup: Lookup = self._lookup

    def fix(self, fixed: bool) -> None:
        """Say whether the table has the program's own entries and no others."""
        self._library.p4r_table_fix(self._table, fixed)

    def add(self, entry: TableEntry, slot: Slot) -> None:
        self.fix(False)
        masks, words = _masked(self._key, entry.match)
        priority = 0 if self._by_prefix else entry.priority
        for field, value in zip(self._key, entry.match, strict=True):
            if field.kind == "lpm" and isinstance(value, tuple) and self._by_prefix:
                priority = value[1]
            if field.kind == "range" and isinstance(value, tuple):
                words += b"".join(_bytes_of(bound, field.width) for bound in value)
        if not -_MOST_PRIORITY <= priority <= _MOST_PRIORITY:
            raise ValueError(f"a priority has 64 bits; {priority} has more")
        address = self._library.p4r_table_add(self._table, masks, words, priority)
        if not address:
            raise MemoryError("no memory for a table entry")
        self._set(address, slot)
        self._move(entry, address)

    def _move(self, entry: TableEntry, address: int) -> None:
        """Keep an entry's counts in memory that is all zero."""
        counts = [getattr(entry, name) for name in _COUNTS]
        entry.cell = _EntryCounters(self._program, address)
        entry.__class__ = _LiveEntry
        for name, value in zip(_COUNTS, counts, strict=True):
            if value:
                setattr(entry, name, value)

    def replace(self, entry: TableEntry, slot: Slot) -> None:
        self.fix(False)
        self._set(entry.cell.address, slot)

    def remove(self, entry: TableEntry) -> None:
        self.fix(False)
        counts = [getattr(entry, name) for name in _COUNTS]
        address = entry.cell.address
        entry.__class__ = TableEntry
        for name, value in zip(_COUNTS, counts, strict=True):
            setattr(entry, name, value)
        entry.cell = None
        del self._slots[address]
        self._library.p4r_table_remove(self._table, address)

    def set_miss(self, slot: Slot) -> None:
        entry = slot[2]
        if entry.cell is None:
            address = self._library.p4r_table_miss(self._table)
            if not address:
                raise MemoryError("no memory for a table's default entry")
            self._move(entry, address)
        self._set(entry.cell.address, slot)

    def _set(self, address: int, slot: Slot) -> None:
        chooses = slot[0] == CHOOSE
        choices: Iterable[tuple[int, Sequence[int]]] = slot[1] if chooses else (slot[:2],)
        data = [self._arguments(action, values) for action, values in choices]
        numbers = [action for action, _ in choices]
        shape = f"={len(data)}I"
        done = self._library.p4r_entry_set(
            address,
            len(data),
            chooses,
            struct.pack(shape, *numbers),
            struct.pack(shape, *(len(part) // 8 for part in data)),
            b"".join(data),
        )
        if not done:
            raise MemoryError("no memory for a table entry")
        self._slots[address] = slot

    def _arguments(self, action: int, values: Sequence[int]) -> bytes:
        sizes = self._actions[action]
        return b"".join(
            (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            for value, size in zip(values, sizes, strict=True)
        )

    def _lookup(self, key: Any) -> Slot | None:
        values = (key,) if len(self._key) == 1 else key
        data = b"".join(
            value.to_bytes(8 * _words(field.width), "little")
            for field, value in zip(self._key, values, strict=True)
        )
        address = self._library.p4r_table_lookup(self._table, data)
        return self._slots[address] if address else None


class NativeValueSet(ValueSet):
    """A value set whose members machine code looks up.

    Either no field of its key is a range, or all are, because the program gives only the widths.
    """

    def __init__(self, value_set: ValueSet, program: NativeProgram, table: int) -> None:
        super().__init__(value_set.name, value_set.widths, value_set.size)
        self._native = program
        self._table = table
        self._is_used = bool(value_set.key)

    def replace(self, members: Iterable[Match]) -> None:
        super().replace(members)
        if not self._is_used:  # the program has no `select` with it
            return
        library = self._native.library
        has_ranges = any(field.kind == "range" for field in self.key)
        library.p4r_table_clear(self._table)
        library.p4r_table_use_ranges(self._table, len(self.key) if has_ranges else 0)
        for match in self.members:
            masks, words = _masked(self.key, match)
            if has_ranges:
                words += b"".join(map(_bounds, self.key, match))
            if not library.p4r_table_add(self._table, masks, words, 0):
                raise MemoryError("no memory for a value set")


def _masked(key: Sequence[MatchKey], match: Match) -> tuple[bytes, bytes]:
    """The mask of an entry, and the bits that a key has to have there."""
    masks, words = [], []
    for field, value in zip(key, match, strict=True):
        mask = field_mask(field, value)
        first = value[0] if isinstance(value, tuple) else value or 0
        masks.append(_bytes_of(mask, field.width))
        words.append(_bytes_of(first & mask, field.width))
    return b"".join(masks), b"".join(words)


def _bounds(field: MatchKey, value: MatchValue) -> bytes:
    """The least and the largest value that a field may have; of no range any."""
    bounds = (0, (1 << field.width) - 1)
    if field.kind == "range" and isinstance(value, tuple):
        bounds = value
    return b"".join(_bytes_of(bound, field.width) for bound in bounds)


def _bytes_of(value: int, width: int) -> bytes:
    return value.to_bytes(8 * _words(width), "little")
