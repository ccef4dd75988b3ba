# SPDX-License-Identifier: Apache-2.0
"""The targets of entries in indirect tables, which have no action of their own."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ActionSet", "GroupRef", "MemberRef", "Target", "WeightedAction"]


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A table entry's reference to a member."""

    id: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A table entry's reference to a group."""

    id: int


@dataclass(frozen=True, slots=True)
class WeightedAction:
    action: str
    args: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class ActionSet:
    """A group of its own for one table entry (P4Runtime's one-shot programming)."""

    actions: tuple[WeightedAction, ...]


Target = MemberRef | GroupRef | ActionSet
