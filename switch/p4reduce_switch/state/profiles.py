# SPDX-License-Identifier: Apache-2.0
"""Action profiles and action selectors: members and groups that table entries refer to.

A packet gets the same member of a group as in BMv2. BMv2 numbers members by handles, the lowest
free one first, and its P4Runtime server makes further members for a weight above 1. A group's
members are ordered by handle. The hash of the selector key, cut to 32 bits, modulo their number
selects one. So handles are kept here as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p4reduce_switch.state.errors import (
    AlreadyThereError,
    FullError,
    InUseError,
    MixedUseError,
    NotThereError,
)
from p4reduce_switch.state.tables import ActionInfo, Match, Slot, Table, TableEntry
from p4reduce_switch.state.targets import ActionSet, GroupRef, MemberRef, Target

CHOOSE = -1
"""In the place of a slot's action index: the arguments are the choices of the selector."""


@dataclass(slots=True)
class ProfileMember:
    id: int
    action: str
    args: tuple[int, ...]
    handles: list[int]


@dataclass(slots=True)
class ProfileGroup:
    """A group: `weights` by member id. The rest is only stored for the controller.

    `watching`: the members that were given with an empty watch port.
    """

    id: int
    weights: dict[int, int]
    max_size: int
    watching: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Handles:
    """Hands out the lowest number that is free."""

    _next: int = 0
    _freed: list[int] = field(default_factory=list)

    def take(self) -> int:
        if self._freed:
            return heapq.heappop(self._freed)
        self._next += 1
        return self._next - 1

    def release(self, handle: int) -> None:
        heapq.heappush(self._freed, handle)


class ActionProfile:
    """The members, and with a selector the groups, of an action profile.

    Args:
        name: as in p4info.
        size: its maximum number of members.
        has_selector: whether it has groups.
    """

    def __init__(self, name: str, size: int, *, has_selector: bool) -> None:
        self.name = name
        self.size = size
        self.has_selector = has_selector
        self.members: dict[int, ProfileMember] = {}
        self.groups: dict[int, ProfileGroup] = {}
        self.tables: list[IndirectTable] = []
        self._handles = _Handles()
        self._one_shots = 0  # entries with an action set
        self._users: dict[
            Target, dict[tuple[str, Match, int], tuple[IndirectTable, TableEntry]]
        ] = {}

    # -- Members -----------------------------------------------------------------------------------

    def insert_member(self, member_id: int, action: str, args: Sequence[int]) -> None:
        """Add a member. Raises AlreadyThereError, FullError, MixedUseError, ValueError."""
        arguments = self._check_action(action, args)
        self.check_use(one_shot=False)
        if member_id in self.members:
            raise AlreadyThereError(f"{self._where} already has a member {member_id}")
        if len(self.members) >= self.size:
            raise FullError(f"{self._where} is full: it holds {self.size} members")
        self.members[member_id] = ProfileMember(
            member_id, action, arguments, [self._handles.take()]
        )

    def modify_member(self, member_id: int, action: str, args: Sequence[int]) -> None:
        """Give a member another action, also where it is in use. Raises NotThereError."""
        arguments = self._check_action(action, args)
        member = self.member(member_id)
        member.action = action
        member.args = arguments
        self._refresh(MemberRef(member_id))
        for group in self.groups.values():
            if member_id in group.weights:
                self._refresh(GroupRef(group.id))

    def delete_member(self, member_id: int) -> None:
        """Remove a member. Raises NotThereError, InUseError."""
        member = self.member(member_id)
        for group in self.groups.values():
            if member_id in group.weights:
                raise InUseError(f"member {member_id} of {self._where} is in group {group.id}")
        self._check_unused(MemberRef(member_id), f"member {member_id}")
        for handle in member.handles:
            self._handles.release(handle)
        del self.members[member_id]

    def member(self, member_id: int) -> ProfileMember:
        """The member of an id. Raises NotThereError."""
        member = self.members.get(member_id)
        if member is None:
            raise NotThereError(f"{self._where} has no member {member_id}")
        return member

    # -- Groups ------------------------------------------------------------------------------------

    def insert_group(
        self,
        group_id: int,
        weights: Mapping[int, int],
        max_size: int,
        watching: frozenset[int] = frozenset(),
    ) -> None:
        """Add a group. Raises AlreadyThereError, MixedUseError, NotThereError (a member)."""
        self.check_use(one_shot=False)
        if group_id in self.groups:
            raise AlreadyThereError(f"{self._where} already has a group {group_id}")
        for member_id in weights:
            self.member(member_id)
        self.groups[group_id] = ProfileGroup(group_id, {}, max_size, watching)
        self._set_weights(self.groups[group_id], weights)

    def modify_group(
        self, group_id: int, weights: Mapping[int, int], watching: frozenset[int] = frozenset()
    ) -> None:
        """Give a group other members. Raises NotThereError."""
        group = self.group(group_id)
        for member_id in weights:
            self.member(member_id)
        self._set_weights(group, weights)
        group.watching = watching
        self._refresh(GroupRef(group_id))

    def delete_group(self, group_id: int) -> None:
        """Remove a group; its members stay. Raises NotThereError, InUseError."""
        group = self.group(group_id)
        self._check_unused(GroupRef(group_id), f"group {group_id}")
        del self.groups[group_id]
        self._trim(group.weights)

    def group(self, group_id: int) -> ProfileGroup:
        """The group of an id. Raises NotThereError."""
        group = self.groups.get(group_id)
        if group is None:
            raise NotThereError(f"{self._where} has no group {group_id}")
        return group

    def chosen(self, group_id: int) -> list[ProfileMember]:
        """Return the members of a group in the hash's order, each as often as its weight."""
        group = self.group(group_id)
        ordered = sorted(
            (handle, member_id)
            for member_id, weight in group.weights.items()
            for handle in self.members[member_id].handles[:weight]
        )
        return [self.members[member_id] for _, member_id in ordered]

    # -- Users -------------------------------------------------------------------------------------

    def check_use(self, *, one_shot: bool) -> None:
        """Raises MixedUseError: action sets beside members and groups, or these beside those."""
        if one_shot and (self.members or self.groups):
            raise MixedUseError(
                f"{self._where} has {len(self.members)} members and {len(self.groups)} groups, so "
                "its entries cannot have action sets of their own (one-shot programming)"
            )
        if self._one_shots and not one_shot:
            raise MixedUseError(
                f"{self._where} is programmed by action sets of {self._one_shots} entries "
                "(one-shot programming), so it takes neither members nor groups"
            )

    def add_user(self, target: Target, table: IndirectTable, entry: TableEntry) -> None:
        """Note that an entry refers to `target`."""
        key = (table.name, entry.match, entry.priority)
        self._users.setdefault(target, {})[key] = (table, entry)
        self._one_shots += isinstance(target, ActionSet)

    def remove_user(self, target: Target, table: IndirectTable, entry: TableEntry) -> None:
        """Note that an entry no longer refers to `target`."""
        users = self._users[target]
        del users[table.name, entry.match, entry.priority]
        self._one_shots -= isinstance(target, ActionSet)
        if not users:
            del self._users[target]

    def _refresh(self, target: Target) -> None:
        for table, entry in self._users.get(target, {}).values():
            table.refresh(entry)

    def _check_unused(self, target: Target, what: str) -> None:
        users = self._users.get(target)
        if users:
            table = next(iter(users))[0]
            raise InUseError(
                f"{what} of {self._where} is used by {len(users)} entries, as in {table}"
            )

    # -- Details -----------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{'action selector' if self.has_selector else 'action profile'} {self.name}"

    def _check_action(self, action: str, args: Sequence[int]) -> tuple[int, ...]:
        # All tables of a profile have the same actions.
        return self.tables[0].check_action(action, args)

    def _set_weights(self, group: ProfileGroup, weights: Mapping[int, int]) -> None:
        changed = sorted({*group.weights, *weights})
        for member_id in changed:
            handles = self.members[member_id].handles
            while len(handles) < weights.get(member_id, 0):
                handles.append(self._handles.take())
        group.weights = dict(weights)
        self._trim(changed)

    def _trim(self, member_ids: Iterable[int]) -> None:
        """Give back the handles beyond the largest weight that a member has in any group."""
        for member_id in sorted(member_ids):
            handles = self.members[member_id].handles
            wanted = max((g.weights.get(member_id, 0) for g in self.groups.values()), default=0)
            while len(handles) > max(wanted, 1):
                self._handles.release(handles.pop())


class IndirectTable(Table):
    """A table whose entries have a `target` in an action profile instead of an action.

    A hit on a group returns the slot (`CHOOSE`, choices, entry). Each choice is the index of an
    action and its arguments. A group without members is one choice: the last action, which does
    nothing. It is also the constant default action.
    """

    def __init__(
        self,
        name: str,
        key: Sequence[Any],
        size: int,
        actions: Iterable[ActionInfo],
        default: tuple[str, Sequence[int]],
        profile: ActionProfile,
        **options: Any,
    ) -> None:
        super().__init__(name, key, size, actions, default, **options)
        self.profile = profile
        profile.tables.append(self)

    def retarget(self, match: Match, priority: int, target: Target) -> None:
        """Give an entry another target. Raises NotThereError, ValueError."""
        entry = self.changeable(match, priority)
        old = entry.target
        slot = self._slot(entry, target)
        assert old is not None
        self.profile.remove_user(old, self, entry)
        entry.target = target
        self.profile.add_user(target, self, entry)
        self._index.replace(entry, slot)

    def delete(self, match: Match, priority: int) -> None:
        entry = self.changeable(match, priority)
        super().delete(match, priority)
        assert entry.target is not None
        self.profile.remove_user(entry.target, self, entry)

    def refresh(self, entry: TableEntry) -> None:
        """Update an entry whose target has changed."""
        self._index.replace(entry, self._make_slot(entry))

    def _add(self, entry: TableEntry) -> None:
        super()._add(entry)
        assert entry.target is not None
        self.profile.add_user(entry.target, self, entry)

    def _make_slot(self, entry: TableEntry) -> Slot:
        if entry.target is None:
            raise ValueError(f"table {self.name} is indirect: an entry needs a target")
        return self._slot(entry, entry.target)

    def _slot(self, entry: TableEntry, target: Target) -> Slot:
        self.profile.check_use(one_shot=isinstance(target, ActionSet))
        if isinstance(target, MemberRef):
            member = self.profile.member(target.id)
            return self._action_index[member.action], member.args, entry
        if not self.profile.has_selector:
            raise ValueError(f"action profile {self.profile.name} has no groups")
        choices = tuple(self._choices(target)) or ((len(self.actions) - 1, ()),)
        return CHOOSE, choices, entry

    def _choices(self, target: GroupRef | ActionSet) -> Iterator[tuple[int, tuple[int, ...]]]:
        if isinstance(target, GroupRef):
            for member in self.profile.chosen(target.id):
                yield self._action_index[member.action], member.args
            return
        for part in target.actions:
            choice = self._action_index[part.action], self.check_action(part.action, part.args)
            for _ in range(part.weight):
                yield choice
