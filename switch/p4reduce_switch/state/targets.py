# SPDX-License-Identifier: Apache-2.0
"""The targets of entries in indirect tables, which replace actions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberRef:
    """An entry's reference to a member."""

    id: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """An entry's reference to a group."""

    id: int


@dataclass(frozen=True, slots=True)
class WeightedAction:
    """An action of a set. `watches`: it was given with an empty watch port."""

    action: str
    args: tuple[int, ...]
    weight: int
    watches: bool = False


@dataclass(frozen=True, slots=True)
class ActionSet:
    """A group for a single entry (P4Runtime's one-shot programming).

    `size_semantics`: P4Runtime's, if the set spells out what the selector does by default; else 0.
    """

    actions: tuple[WeightedAction, ...]
    size_semantics: int = 0


Target = MemberRef | GroupRef | ActionSet
