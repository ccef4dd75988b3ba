# SPDX-License-Identifier: Apache-2.0
"""Parser value sets by P4Runtime ("ValueSetEntry"), which BMv2's server does not have."""

from __future__ import annotations

from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import already_exists, invalid
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities import match_fields
from p4reduce_switch.p4runtime.entities.common import find, selected
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import ValueSetSpec
from p4reduce_switch.state.tables import Match

_Row = tuple[ValueSetSpec, tuple[Match, ...]]


def plan_value_set(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of one update: all members at once."""
    spec = find(config.p4info.value_sets, message.value_set_id, "value set")
    owner = f"value set '{spec.name}'"
    if update_type != p4runtime_pb2.Update.MODIFY:
        raise invalid(f"{owner} can only be changed as a whole, with MODIFY")
    members = [match_fields.decode(owner, spec.fields, m.match) for m in message.members]
    if len(set(members)) < len(members):
        raise already_exists(f"a member of {owner} is given more than once")
    value_set = config.pipeline.value_sets[spec.name]
    return lambda: value_set.replace(members)


def query_value_sets(config: ForwardingConfig, message: Any) -> Query:
    """Query one value set, or all for id 0."""
    specs = selected(config.p4info.value_sets, message.value_set_id, "value set")
    value_sets = config.pipeline.value_sets
    return Query(lambda: [(spec, value_sets[spec.name].members) for spec in specs], _encode)


def _encode(row: _Row) -> Any:
    spec, members = row
    entity = p4runtime_pb2.Entity()
    entity.value_set_entry.value_set_id = spec.id
    for member in members:
        match_fields.encode(spec.fields, member, entity.value_set_entry.members.add().match)
    return entity
