# SPDX-License-Identifier: Apache-2.0
"""Multicast groups: the packet replication engine between ingress and egress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class GroupExists(Exception):  # noqa: N818
    """The multicast group to insert is already there."""


class NoSuchGroup(Exception):  # noqa: N818
    """The multicast group to change or delete is not there."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a packet: where it goes and what egress finds in `egress_rid`."""

    port: int
    instance: int


class MulticastGroups:
    """The groups by id (1..65535; 0 means "no multicast" in v1model and cannot be inserted).

    The packet path only calls `destinations.get(group)`. A value is an immutable tuple that is
    replaced as a whole, so a packet sees the replicas either before or after a change.
    """

    __slots__ = ("_groups", "destinations")

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self.destinations: dict[int, tuple[tuple[int, int], ...]] = {}
        """Group id -> (port, instance) of each copy: plain tuples, for the generated code."""

    def insert(self, group_id: int, replicas: Iterable[Replica]) -> None:
        """Add a group. Raises GroupExists, or ValueError for an id or replica out of range."""
        if group_id in self._groups:
            raise GroupExists(f"multicast group {group_id} is already there")
        self._set(group_id, tuple(replicas))

    def modify(self, group_id: int, replicas: Iterable[Replica]) -> None:
        """Replace the replicas of a group. Raises NoSuchGroup or ValueError."""
        self._check_present(group_id)
        self._set(group_id, tuple(replicas))

    def delete(self, group_id: int) -> None:
        """Remove a group; packets sent to it are dropped from then on. Raises NoSuchGroup."""
        self._check_present(group_id)
        del self.destinations[group_id]
        del self._groups[group_id]

    def get(self, group_id: int) -> tuple[Replica, ...]:
        """The replicas of a group. Raises NoSuchGroup."""
        self._check_present(group_id)
        return self._groups[group_id]

    def groups(self) -> dict[int, tuple[Replica, ...]]:
        """A copy of all groups."""
        return dict(self._groups)

    def _check_present(self, group_id: int) -> None:
        if group_id not in self._groups:
            raise NoSuchGroup(f"there is no multicast group {group_id}")

    def _set(self, group_id: int, replicas: tuple[Replica, ...]) -> None:
        if not 1 <= group_id <= 0xFFFF:
            raise ValueError(f"a multicast group id is 1..65535, not {group_id}")
        for replica in replicas:
            if not 0 <= replica.instance <= 0xFFFF:
                raise ValueError(f"a replica's instance is 0..65535, not {replica.instance}")
        self._groups[group_id] = replicas
        self.destinations[group_id] = tuple((r.port, r.instance) for r in replicas)
