# SPDX-License-Identifier: Apache-2.0
"""Parser value sets: the control plane fills them, and `select` looks up keys in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from p4reduce_switch.state.errors import FullError
from p4reduce_switch.state.tables import (
    Match,
    MatchKey,
    TableEntry,
    TableIndex,
    canonical_match,
    make_index,
)


class ValueSet:
    """A set of matches, empty at the start.

    The generated code tests `key in value_set`, where a key is an integer, or a tuple of them if
    the `select` has several fields. Change it only between two packets.

    Args:
        name: its name in the P4 program.
        widths: of the key's fields, in bits. They match exactly until `match_by` is called, because
            the program's JSON does not have `@match`.
        size: the maximum number of members.

    Attributes:
        members: in the order in which they were given.
    """

    def __init__(self, name: str, widths: Sequence[int], size: int) -> None:
        self.name = name
        self.key = tuple(
            MatchKey(str(number), width, "exact") for number, width in enumerate(widths, 1)
        )
        self.size = size
        self.members: tuple[Match, ...] = ()
        self._index: TableIndex = make_index(self.key)

    def __contains__(self, key: Any) -> bool:
        return self._index.lookup(key) is not None

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the key's fields, in bits."""
        return tuple(field.width for field in self.key)

    def match_by(self, key: Sequence[MatchKey]) -> None:
        """Set the match kinds of the key, and delete all members."""
        self.key = tuple(key)
        self.replace(())

    def replace(self, members: Iterable[Match]) -> None:
        """Have these members from now on, each with a value for each key field as in `TableEntry`.

        Raises:
            FullError: there are more than `size` different ones.
            ValueError: one does not fit the key.
        """
        owner = f"value set {self.name}"
        found: dict[Match, None] = {}
        for match in members:
            if len(match) != len(self.key):
                raise ValueError(f"a key of {owner} has {len(self.key)} fields, not {match}")
            found[canonical_match(owner, self.key, match)] = None
        if len(found) > self.size:
            raise FullError(f"{owner} has room for {self.size} members, not {len(found)}")
        index = make_index(self.key)
        for match in found:
            entry = TableEntry(match, 0, "", ())
            index.add(entry, (0, (), entry))  # a table's slot; here only its being there counts
        self._index = index
        self.members = tuple(found)
