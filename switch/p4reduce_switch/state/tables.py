# SPDX-License-Identifier: Apache-2.0
"""Match-action tables at run time.

Priorities follow P4Runtime: the larger number wins. BMv2's JSON has the opposite order, so the
loader reverses them. Priorities count only in tables with a ternary, range or optional
key; they are 0 elsewhere. Of two matching entries with the same priority, the one inserted first
wins.

The packet path calls only `lookup(key)`, and reads `default_slot[0]` on a miss. These return a
`Slot`, an immutable tuple. Every change assigns one dict item, list item or tuple, which the
interpreter lock makes atomic. So a packet sees a table before or after a change, and no lock is
needed.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from p4reduce_switch.state.errors import (
    AlreadyThereError,
    ConstantError,
    FullError,
    NotThereError,
)
from p4reduce_switch.state.meters import Meter
from p4reduce_switch.state.targets import Target

MatchKind = Literal["exact", "lpm", "ternary", "range", "optional"]
MatchValue = int | tuple[int, int] | None
Match = tuple[MatchValue, ...]

_PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})


@dataclass(frozen=True, slots=True)
class MatchKey:
    """A field of a table's key; `width` in bits."""

    name: str
    width: int
    kind: MatchKind


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """An action as the control plane sees it. Parameters are (name, width in bits).

    `negative`: the numbers of the parameters that get a negative argument from the program.
    """

    name: str
    params: tuple[tuple[str, int], ...]
    negative: frozenset[int] = frozenset()


@dataclass(slots=True)
class TableEntry:
    """An entry of a table. `Table` returns the live object, whose counts packets change.

    `match` has one value for each key field: exact -> int; lpm -> (value, prefix length); ternary
    -> (value, mask); range -> (low, high), both inclusive; optional -> int, or None for "any". The
    switch only stores `controller_metadata` and `metadata`. An entry of an indirect table has a
    `target` in place of an action. `meter` is None until it is configured. The times are those of
    `idle.py`: the last hit and the last idle report, or 0.
    """

    match: Match
    priority: int
    action: str
    args: tuple[int, ...]
    packets: int = 0
    bytes: int = 0
    controller_metadata: int = 0
    is_const: bool = False
    metadata: builtins.bytes = b""
    target: Target | None = None
    meter: Meter | None = None
    idle_timeout_ns: int = 0
    last_hit_ns: int = 0
    idle_since_ns: int = 0
    cell: Any = dataclasses.field(default=None, compare=False, repr=False)
    """Where machine code keeps its counts, time and meter (`native/tables.py`); else None."""


Slot = tuple[int, tuple[Any, ...], TableEntry]
"""What the generated code needs of an entry: (index of the action, its arguments, the entry)."""

Lookup = Callable[[Any], "Slot | None"]


class TableIndex(Protocol):
    """The part of a table that the packet path uses."""

    @property
    def lookup(self) -> Lookup:
        """Return the slot of a key, or None on a miss."""

    def add(self, entry: TableEntry, slot: Slot) -> None:
        """Return `slot` for the entry's key from now on."""

    def replace(self, entry: TableEntry, slot: Slot) -> None:
        """Give an existing entry another slot."""

    def remove(self, entry: TableEntry) -> None:
        """Remove an entry."""

    def set_miss(self, slot: Slot) -> None:
        """Set the slot of a miss."""


class Table:
    """A match-action table. The pipeline builds it, the control plane changes it, packets read it.

    Args:
        name: as in p4info.
        key: the fields of the key, in the program's order.
        size: the maximum number of entries.
        actions: by name; the indices in `Slot` follow their order.
        default: action and arguments on a miss.
        initial_entries: the program's own entries. The table cannot be changed if there are any,
            until `open` says otherwise.
    """

    def __init__(
        self,
        name: str,
        key: Sequence[MatchKey],
        size: int,
        actions: Iterable[ActionInfo],
        default: tuple[str, Sequence[int]],
        *,
        const_default_action: bool = False,
        has_direct_counter: bool = False,
        initial_entries: Sequence[TableEntry] = (),
    ) -> None:
        self.name = name
        self.key = tuple(key)
        self.size = size
        self.actions: Mapping[str, ActionInfo] = {action.name: action for action in actions}
        self.has_initial_entries = self.is_const = bool(initial_entries)
        self.const_default_action = const_default_action
        self.has_direct_counter = has_direct_counter
        self._uses_priority = any(field.kind in _PRIORITY_KINDS for field in self.key)
        self._action_index = {action: index for index, action in enumerate(self.actions)}
        self._entries: dict[tuple[Match, int], TableEntry] = {}
        self._index: TableIndex = make_index(self.key)
        self.lookup: Lookup = self._index.lookup
        """Key -> slot, or None on a miss. The key is the value of the only key field, or a tuple
        of all of them."""
        self._program_default = (default[0], tuple(default[1]))
        first = TableEntry((), 0, default[0], self._program_default[1])
        self.default_slot: list[Slot] = [self._default(first, *self._program_default)]
        """One item, so that the packet path finds a new default entry in the same place."""
        for entry in initial_entries:
            entry.is_const = True
            self._add(entry)

    def insert(self, entry: TableEntry) -> None:
        """Add an entry; its key is brought into canonical form (bits that do not count are 0).

        Raises:
            ConstantError: the program declares the table constant.
            AlreadyThereError: there is one with this key (and priority).
            FullError: `size` entries are there.
            ValueError: key, priority, action or arguments do not fit the table.
        """
        if self.is_const:
            raise ConstantError(f"the entries of table {self.name} are constant")
        self._add(entry)

    def modify(self, match: Match, priority: int, action: str, args: Sequence[int]) -> None:
        """Give an entry another action. Its counts stay. Raises NotThereError, ConstantError."""
        entry = self.changeable(match, priority)
        arguments = self.check_action(action, args)
        # The packet path reads only the slot, so the order of these does not matter to it.
        self._index.replace(entry, (self._action_index[action], arguments, entry))
        entry.action = action
        entry.args = arguments

    def delete(self, match: Match, priority: int) -> None:
        """Remove an entry. Raises NotThereError, ConstantError."""
        entry = self.changeable(match, priority)
        self._index.remove(entry)
        del self._entries[entry.match, entry.priority]

    def open(self, size: int, constant: Sequence[bool], priorities: Sequence[int] | None) -> None:
        """Let the program's own entries be changed, which are not constant. Call it before packets.

        Args:
            size: the maximum number of entries from now on.
            constant: for each of the program's entries, whether it stays constant.
            priorities: of them, in their order; None: as they are.
        """
        self.is_const = False
        self.size = max(size, self.entry_count)
        entries = self.entries()
        for entry, stays in zip(entries, constant, strict=True):
            entry.is_const = stays
        if priorities is None:
            return
        for entry in entries:
            self._index.remove(entry)
        self._entries.clear()
        for entry, priority in zip(entries, priorities, strict=True):
            entry.priority = priority
            self._add(entry)

    def find(self, match: Match, priority: int) -> TableEntry | None:
        """Return the entry with this key and priority, or None."""
        return self._entries.get((self._canonical(match), self._canonical_priority(priority)))

    def entries(self) -> list[TableEntry]:
        """Return all entries except the default one, in the order of insertion."""
        return list(self._entries.values())

    @property
    def entry_count(self) -> int:
        """Return the number of entries except the default one."""
        return len(self._entries)

    @property
    def default_entry(self) -> TableEntry:
        """Return the default entry, always the same one. Its `match` is empty."""
        return self.default_slot[0][2]

    @property
    def default_is_changed(self) -> bool:
        """Whether the default entry is another than the program's."""
        entry = self.default_entry
        extras = entry.metadata or entry.controller_metadata
        return bool(extras) or (entry.action, entry.args) != self._program_default

    def set_default(self, action: str, args: Sequence[int]) -> None:
        """Give the default entry another action. Its counts stay. Raises ConstantError,
        ValueError."""
        if self.const_default_action:
            raise ConstantError(f"the default action of table {self.name} is constant")
        self._set_miss(self._default(self.default_entry, action, args))

    def reset_default(self) -> None:
        """Restore the program's default entry, without counts and what a controller has added."""
        entry = self.default_entry
        self._set_miss(self._default(entry, *self._program_default))
        entry.packets = entry.bytes = entry.controller_metadata = 0
        entry.metadata = b""

    def move_to(self, index: TableIndex) -> None:
        """Copy what the packet path uses of this table into `index`, which must be empty."""
        for entry in self._entries.values():
            index.add(entry, self._make_slot(entry))
        index.set_miss(self.default_slot[0])
        self._index = index
        self.lookup = index.lookup

    # -- Checks ------------------------------------------------------------------------------------

    def _add(self, entry: TableEntry) -> None:
        match = self._canonical(entry.match)
        priority = self._canonical_priority(entry.priority)
        slot = self._make_slot(entry)
        if (match, priority) in self._entries:
            raise AlreadyThereError(f"table {self.name} already has an entry with key {match}")
        if len(self._entries) >= self.size:
            raise FullError(f"table {self.name} is full: it holds {self.size} entries")
        entry.match = match
        entry.priority = priority
        self._entries[match, priority] = entry
        self._index.add(entry, slot)

    def _make_slot(self, entry: TableEntry) -> Slot:
        entry.args = self.check_action(entry.action, entry.args)
        return self._action_index[entry.action], entry.args, entry

    def _default(self, entry: TableEntry, action: str, args: Sequence[int]) -> Slot:
        entry.args = self.check_action(action, args)
        entry.action = action
        return self._action_index[action], entry.args, entry

    def _set_miss(self, slot: Slot) -> None:
        self.default_slot[0] = slot
        self._index.set_miss(slot)

    def changeable(self, match: Match, priority: int) -> TableEntry:
        """Return an entry that is to be changed. Raises NotThereError, ConstantError."""
        entry = self.find(match, priority)
        if entry is None:
            raise NotThereError(f"table {self.name} has no entry with key {match}")
        if entry.is_const:
            raise ConstantError(f"this entry of table {self.name} is constant")
        return entry

    def check_action(self, action: str, args: Sequence[int]) -> tuple[int, ...]:
        """Return the arguments as a tuple. Raises ValueError if they or the action do not fit."""
        info = self.actions.get(action)
        if info is None:
            raise ValueError(
                f"table {self.name} has no action {action}, only {', '.join(self.actions)}"
            )
        if len(args) != len(info.params):
            raise ValueError(f"action {action} takes {len(info.params)} arguments, not {len(args)}")
        for number, ((name, width), value) in enumerate(zip(info.params, args, strict=True)):
            least = -1 << (width - 1) if number in info.negative else 0
            if not least <= value < 1 << width:
                raise ValueError(
                    f"parameter {name} of action {action} has {width} bits, not {value:#x}"
                )
        return tuple(args)

    def _canonical_priority(self, priority: int) -> int:
        return priority if self._uses_priority else 0

    def _canonical(self, match: Match) -> Match:
        if len(match) != len(self.key):
            raise ValueError(
                f"table {self.name} has {len(self.key)} key fields, but {len(match)} are given"
            )
        return canonical_match(f"table {self.name}", self.key, match)


def canonical_match(owner: str, key: Sequence[MatchKey], match: Match) -> Match:
    """Return a match whose bits that do not count are 0. Raises ValueError if it does not fit the
    key.

    `owner`: the table or value set, for the message.
    """
    return tuple(
        _canonical_value(owner, field, value) for field, value in zip(key, match, strict=True)
    )


def _canonical_value(owner: str, field: MatchKey, value: MatchValue) -> MatchValue:
    where = f"key field {field.name} of {owner}"
    full = (1 << field.width) - 1
    if field.kind == "optional" and value is None:
        return None
    if field.kind in ("exact", "optional"):
        if not isinstance(value, int):
            raise ValueError(f"{where} is {field.kind} and takes an int, not {value!r}")
        if not 0 <= value <= full:
            raise ValueError(f"{where} has {field.width} bits, not {value:#x}")
        return value
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{where} is {field.kind} and takes a pair, not {value!r}")
    first, second = value
    if not 0 <= first <= full:
        raise ValueError(f"{where} has {field.width} bits, not {first:#x}")
    if field.kind == "lpm":
        if not 0 <= second <= field.width:
            raise ValueError(f"{where}: the prefix length is 0..{field.width}, not {second}")
        return first & _prefix_mask(field.width, second), second
    if not 0 <= second <= full:
        raise ValueError(f"{where} has {field.width} bits, not {second:#x}")
    if field.kind == "ternary":
        return first & second, second
    if first > second:
        raise ValueError(f"{where}: the range {first:#x}..{second:#x} is empty")
    return first, second


def _prefix_mask(width: int, prefix: int) -> int:
    return ((1 << prefix) - 1) << (width - prefix)


# -- Lookup structures -----------------------------------------------------------------------------


def make_index(key: tuple[MatchKey, ...]) -> TableIndex:
    """Return an empty index in Python."""
    if all(field.kind == "exact" for field in key):
        return _ExactIndex()
    return _MaskedIndex(key)


class _ExactIndex:
    """All fields are exact: one dict."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, Slot] = {}
        self.lookup: Lookup = self._slots.get

    def add(self, entry: TableEntry, slot: Slot) -> None:
        self._slots[_scalar(entry.match)] = slot

    replace = add

    def remove(self, entry: TableEntry) -> None:
        del self._slots[_scalar(entry.match)]

    def set_miss(self, slot: Slot) -> None:
        """Do nothing: the packet path finds it in `default_slot`."""


def _scalar(match: Match) -> Hashable:
    return match[0] if len(match) == 1 else match


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An entry whose masked key equals that of its bucket; `ranges` remain to be tested."""

    rank: tuple[int, int]  # (priority or prefix length, minus the order of insertion)
    slot: Slot
    ranges: tuple[tuple[int, int, int], ...]  # (field, low, high)


@dataclass(frozen=True, slots=True)
class _MaskGroup:
    """All entries with the same mask: buckets by masked key, best candidate first."""

    masks: tuple[int, ...]
    best: tuple[int, int]
    buckets: dict[tuple[int, ...], tuple[_Candidate, ...]]


class _MaskedIndex:
    """Tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999).

    Entries with the same mask share a dict, and the groups are tried in the order of their best
    entry until none can do better. A lookup costs one dict access for each mask in use, not one
    comparison for each entry. In an LPM table the prefix length takes the place of the priority.
    """

    def __init__(self, key: tuple[MatchKey, ...]) -> None:
        self._key = key
        self._single = len(key) == 1
        self._by_prefix = not any(field.kind in _PRIORITY_KINDS for field in key)
        self._inserted = 0
        self._slots: dict[tuple[Match, int], _Candidate] = {}
        self._groups: tuple[_MaskGroup, ...] = ()

    def lookup(self, key: Any) -> Slot | None:
        values: tuple[int, ...] = (key,) if self._single else key
        found: _Candidate | None = None
        for group in self._groups:
            if found is not None and found.rank > group.best:
                break
            masked = tuple([value & mask for value, mask in zip(values, group.masks, strict=True)])
            for candidate in group.buckets.get(masked, ()):
                if found is not None and found.rank > candidate.rank:
                    break
                if all(low <= values[i] <= high for i, low, high in candidate.ranges):
                    found = candidate
                    break
        return found.slot if found is not None else None

    def add(self, entry: TableEntry, slot: Slot) -> None:
        self._inserted += 1
        rank = self._prefix_length(entry) if self._by_prefix else entry.priority
        self._put(entry, _Candidate((rank, -self._inserted), slot, self._ranges(entry)))

    def replace(self, entry: TableEntry, slot: Slot) -> None:
        old = self._slots[entry.match, entry.priority]
        self._put(entry, _Candidate(old.rank, slot, old.ranges), old)

    def remove(self, entry: TableEntry) -> None:
        old = self._slots.pop((entry.match, entry.priority))
        self._put(entry, None, old)

    def set_miss(self, slot: Slot) -> None:
        """Do nothing: the packet path finds it in `default_slot`."""

    def _put(
        self, entry: TableEntry, new: _Candidate | None, old: _Candidate | None = None
    ) -> None:
        """Build the changed group and swap in the tuple of groups: copy on write."""
        masks, masked = self._masks(entry)
        groups = {group.masks: group for group in self._groups}
        buckets = dict(groups[masks].buckets) if masks in groups else {}
        bucket = [c for c in buckets.get(masked, ()) if c is not old]
        if new is not None:
            bucket.append(new)
            self._slots[entry.match, entry.priority] = new
        if bucket:
            buckets[masked] = tuple(sorted(bucket, key=lambda c: c.rank, reverse=True))
        else:
            buckets.pop(masked, None)
        if buckets:
            groups[masks] = _MaskGroup(masks, max(b[0].rank for b in buckets.values()), buckets)
        else:
            del groups[masks]
        self._groups = tuple(sorted(groups.values(), key=lambda g: g.best, reverse=True))

    def _prefix_length(self, entry: TableEntry) -> int:
        lengths = [
            value[1]
            for field, value in zip(self._key, entry.match, strict=True)
            if field.kind == "lpm" and isinstance(value, tuple)
        ]
        return lengths[0]

    def _masks(self, entry: TableEntry) -> tuple[tuple[int, ...], tuple[int, ...]]:
        masks: list[int] = []
        masked: list[int] = []
        for field, value in zip(self._key, entry.match, strict=True):
            mask = field_mask(field, value)
            first = value[0] if isinstance(value, tuple) else value or 0
            masks.append(mask)
            masked.append(first & mask)
        return tuple(masks), tuple(masked)

    def _ranges(self, entry: TableEntry) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (i, *value)
            for i, (field, value) in enumerate(zip(self._key, entry.match, strict=True))
            if field.kind == "range" and isinstance(value, tuple)
        )


def field_mask(field: MatchKey, value: MatchValue) -> int:
    """Return the bits of a key field that a dict lookup compares. Ranges are tested afterwards."""
    if field.kind == "range" or value is None:
        return 0
    if isinstance(value, int):
        return (1 << field.width) - 1
    return value[1] if field.kind == "ternary" else _prefix_mask(field.width, value[1])
