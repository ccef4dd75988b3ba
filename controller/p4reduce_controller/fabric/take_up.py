# SPDX-License-Identifier: Apache-2.0
"""Takes over a switch as it is: only entries that differ from what should be there are changed.

A frame can be anywhere in the switch meanwhile, so the order is that of `layout.Layout`. An entry
is added after what it refers to, and deleted before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_controller.fabric.schema import (
    Entity,
    MeterRate,
    MulticastGroup,
    Op,
    TableRow,
    Update,
)

# Kinds of entities, in the order in which they are installed.
ORDER = (
    "delivery",
    "group",
    "uplink",
    "admission",
    "own_source",
    "own_sender_ip",
    "own_sender_mac",
    "own_address",
    "bridge",
)


@dataclass(frozen=True)
class EntryDifference:
    """The updates that are needed: all deletions first, then insertions in stages."""

    stages: tuple[tuple[Update, ...], ...]

    @property
    def updates(self) -> list[Update]:
        """All updates in one list."""
        return [update for stage in self.stages for update in stage]


def difference(there: Iterable[Entity], wanted: Iterable[Entity]) -> EntryDifference:
    """Return the updates that turn the present entries into the wanted ones."""
    have = {_key(entity): entity for entity in there}
    want = {_key(entity): entity for entity in wanted}
    gone = [Update(Op.DELETE, key_only(entity)) for key, entity in have.items() if key not in want]
    new = []
    for key, entity in want.items():
        if key not in have:
            new.append(Update(Op.INSERT, entity))
        elif _content(have[key]) != _content(entity):
            new.append(Update(Op.MODIFY, entity))
    stages = [_of_kind(gone, kind) for kind in reversed(ORDER)]
    stages += [_of_kind(new, kind) for kind in ORDER]
    return EntryDifference(tuple(stage for stage in stages if stage))


def read_all(client: SwitchClient) -> list[Entity]:
    """Return all entries and groups on the switch. Raises SwitchError."""
    entities: list[Entity] = list(client.read_groups())
    for table in ORDER:
        if table != "group":
            entities += client.read_table(table)
    return entities


def key_only(entity: Entity) -> Entity:
    """Return only the key of an entity, which is enough to delete it."""
    if isinstance(entity, TableRow):
        return TableRow(entity.table, entity.match)
    if isinstance(entity, MulticastGroup):
        return MulticastGroup(entity.group)
    return entity


def _kind(entity: Entity) -> str:
    return entity.table if isinstance(entity, TableRow) else "group"


def _of_kind(updates: Iterable[Update], kind: str) -> tuple[Update, ...]:
    return tuple(update for update in updates if _kind(update.entity) == kind)


def _key(entity: Entity) -> Hashable:
    if isinstance(entity, TableRow):
        return entity.table, frozenset(entity.match.items())
    if isinstance(entity, MeterRate):
        raise TypeError("meters are set, not compared")
    return entity.group


def _content(entity: Entity) -> Hashable:
    if isinstance(entity, TableRow):
        return entity.action, frozenset(entity.params.items())
    assert isinstance(entity, MulticastGroup)
    return tuple(sorted(entity.replicas))  # a switch may list them in another order
