# SPDX-License-Identifier: Apache-2.0
"""The packet replication engine by P4Runtime: multicast groups and clone sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.entities.clones import plan_session, query_sessions
from p4reduce_switch.p4runtime.entities.kinds import EntityKind, Operation, Query
from p4reduce_switch.p4runtime.entities.multicast import plan_group, query_groups

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig

__all__ = ["plan_replication", "query_replication"]

_KINDS = {
    kind.name: kind
    for kind in (
        EntityKind("multicast_group_entry", plan_group, query_groups),
        EntityKind("clone_session_entry", plan_session, query_sessions),
    )
}


def plan_replication(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `PacketReplicationEngineEntry`."""
    kind, part = _part(message)
    return kind.plan(config, update_type, part)


def query_replication(config: ForwardingConfig, message: Any) -> Query:
    """The groups or the sessions that it asks for."""
    kind, part = _part(message)
    return kind.query(config, part)


def _part(message: Any) -> tuple[EntityKind, Any]:
    name = message.WhichOneof("type")
    if name is None:
        raise invalid("the packet_replication_engine_entry is empty; give a multicast_group_entry")
    return _KINDS[name], getattr(message, name)
