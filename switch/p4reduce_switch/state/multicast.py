# SPDX-License-Identifier: Apache-2.0
"""Multicast groups: the packet replication engine between ingress and egress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from p4reduce_switch.state.errors import AlreadyThereError, NotThereError

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a packet: its port, and the value of `egress_rid`."""

    port: int
    instance: int


class ReplicaSets(ABC, Generic[_Item]):
    """What makes copies of packets, by number: multicast groups or clone sessions.

    The packet path only calls `destinations.get(number)`. A value is an immutable tuple that is
    replaced as a whole, so a packet sees it either before or after a change.

    Args:
        what: one of them is called.
        numbers: those that there may be.
    """

    def __init__(self, what: str, numbers: range) -> None:
        self._what = what
        self._numbers = numbers
        self._items: dict[int, _Item] = {}
        self.destinations: dict[int, Any] = {}
        """Number -> what the generated code needs: plain tuples."""

    def insert(self, number: int, item: _Item) -> None:
        """Add one. Raises AlreadyThereError, or ValueError for a number or replica out of range."""
        if number in self._items:
            raise AlreadyThereError(f"{self._what} {number} already exists")
        self._set(number, item)

    def modify(self, number: int, item: _Item) -> None:
        """Replace one. Raises NotThereError or ValueError."""
        self.get(number)
        self._set(number, item)

    def delete(self, number: int) -> None:
        """Remove one; nothing is copied by it from then on. Raises NotThereError."""
        self.get(number)
        del self.destinations[number]
        del self._items[number]

    def get(self, number: int) -> _Item:
        """One of them. Raises NotThereError."""
        if number not in self._items:
            raise NotThereError(f"{self._what} {number} does not exist")
        return self._items[number]

    def all(self) -> dict[int, _Item]:
        """A copy of all of them."""
        return dict(self._items)

    @abstractmethod
    def _set(self, number: int, item: _Item) -> None:
        """Check, and put in or replace."""

    def _check(self, number: int, replicas: Iterable[Replica]) -> None:
        if number not in self._numbers:
            least, most = self._numbers[0], self._numbers[-1]
            raise ValueError(f"a {self._what}'s id is {least}..{most}, not {number}")
        for replica in replicas:
            if not 0 <= replica.instance <= 0xFFFF:
                raise ValueError(f"a replica's instance is 0..65535, not {replica.instance}")


def pairs(replicas: Iterable[Replica]) -> tuple[tuple[int, int], ...]:
    """(port, instance) of each copy."""
    return tuple((replica.port, replica.instance) for replica in replicas)


class MulticastGroups(ReplicaSets[Iterable[Replica]]):
    """The groups by id (1..65535; 0 means "no multicast" in v1model)."""

    def __init__(self) -> None:
        super().__init__("multicast group", range(1, 1 << 16))

    def _set(self, number: int, item: Iterable[Replica]) -> None:
        replicas = tuple(item)
        self._check(number, replicas)
        self._items[number] = replicas
        self.destinations[number] = pairs(replicas)
