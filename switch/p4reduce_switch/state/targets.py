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
    action: str
    args: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class ActionSet:
    """A group for a single entry (P4Runtime's one-shot programming)."""

    actions: tuple[WeightedAction, ...]


Target = MemberRef | GroupRef | ActionSet
