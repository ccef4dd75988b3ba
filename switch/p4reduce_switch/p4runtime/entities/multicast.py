# SPDX-License-Identifier: Apache-2.0
"""Multicast groups by P4Runtime ("MulticastGroupEntry" of the packet replication engine)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.config import GroupForm
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.replicas import decode_replicas, encode_replicas
from p4reduce_switch.state.multicast import GroupExists, NoSuchGroup, Replica

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig

__all__ = ["plan_group", "query_groups"]

# BMv2's server keeps the upper half of the group ids for clone sessions.
_MAX_GROUP_ID = (1 << 15) - 1

_Update = p4runtime_pb2.Update


def plan_group(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `MulticastGroupEntry`."""
    group_id = message.multicast_group_id
    if group_id == 0:
        raise invalid("multicast_group_id 0 means no group; use 1 or above")
    if group_id > _MAX_GROUP_ID:
        raise P4RuntimeError(
            code_pb2.OUT_OF_RANGE,
            f"multicast_group_id {group_id} is above the maximum of {_MAX_GROUP_ID}",
        )
    groups = config.pipeline.multicast
    forms = config.group_forms

    if update_type == _Update.DELETE:

        def delete() -> None:
            try:
                groups.delete(group_id)
            except NoSuchGroup:
                raise _no_such_group(group_id) from None
            forms.pop(group_id, None)

        return delete

    replicas, as_bytes = decode_replicas(message.replicas, f"multicast group {group_id}")
    form = GroupForm(message.metadata, as_bytes)
    if update_type == _Update.INSERT:

        def insert() -> None:
            try:
                groups.insert(group_id, replicas)
            except GroupExists:
                raise P4RuntimeError(
                    code_pb2.ALREADY_EXISTS,
                    f"multicast group {group_id} already exists; use MODIFY to change it",
                ) from None
            forms[group_id] = form

        return insert

    def modify() -> None:
        try:
            groups.modify(group_id, replicas)
        except NoSuchGroup:
            raise _no_such_group(group_id) from None
        forms[group_id] = form

    return modify


def _no_such_group(group_id: int) -> P4RuntimeError:
    return P4RuntimeError(code_pb2.NOT_FOUND, f"multicast group {group_id} does not exist")


class _Row(NamedTuple):
    group_id: int
    replicas: tuple[Replica, ...]
    form: GroupForm | None


def query_groups(config: ForwardingConfig, message: Any) -> Query:
    """One group, or all of them for id 0."""
    wanted = message.multicast_group_id
    groups, forms = config.pipeline.multicast, config.group_forms

    def snapshot() -> list[_Row]:
        if not wanted:
            return [
                _Row(group_id, tuple(replicas), forms.get(group_id))
                for group_id, replicas in sorted(groups.groups().items())
            ]
        replicas = groups.groups().get(wanted)
        if replicas is None:
            raise _no_such_group(wanted)
        return [_Row(wanted, tuple(replicas), forms.get(wanted))]

    return Query(snapshot, _encode)


def _encode(row: _Row) -> Any:
    entity = p4runtime_pb2.Entity()
    out = entity.packet_replication_engine_entry.multicast_group_entry
    out.multicast_group_id = row.group_id
    if row.form is not None and row.form.metadata:
        out.metadata = row.form.metadata
    as_bytes = row.form.ports_as_bytes if row.form is not None else frozenset()
    encode_replicas(row.replicas, as_bytes, out.replicas)
    return entity
