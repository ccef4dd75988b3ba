# SPDX-License-Identifier: Apache-2.0
"""All kinds of P4Runtime entities: how each is written, and how it is read.

A plan checks all of a message that does not depend on the pipeline's state. What is left to do is
short, so that the data plane, which does it between two packets, is not held up by protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, unsupported
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import refuse_unknown
from p4reduce_switch.p4runtime.entities.counters import plan_counter, query_counters
from p4reduce_switch.p4runtime.entities.digests import plan_digest, query_digests
from p4reduce_switch.p4runtime.entities.direct import (
    plan_direct_counter,
    plan_direct_meter,
    query_direct_counters,
    query_direct_meters,
)
from p4reduce_switch.p4runtime.entities.entry_reads import query_entries
from p4reduce_switch.p4runtime.entities.entry_writes import plan_entry
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.meters import plan_meter, query_meters
from p4reduce_switch.p4runtime.entities.profiles import (
    plan_group,
    plan_member,
    query_groups,
    query_members,
)
from p4reduce_switch.p4runtime.entities.registers import plan_register, query_registers
from p4reduce_switch.p4runtime.entities.replication import plan_replication, query_replication
from p4reduce_switch.p4runtime.entities.value_sets import plan_value_set, query_value_sets

_Update = p4runtime_pb2.Update
_Plan: TypeAlias = "Callable[[ForwardingConfig, int, Any], Operation]"
"""Takes the type of the update and the message. Raises `P4RuntimeError` for a malformed one."""
_Read: TypeAlias = "Callable[[ForwardingConfig, Any], Query]"
"""Takes the message, which selects rows. Raises `P4RuntimeError` for a malformed one."""


def _no_extern(*_: object) -> NoReturn:
    raise unsupported("ExternEntry is not supported: v1model has no extern with such entries")


ENTITIES: dict[str, tuple[_Plan, _Read]] = {
    "table_entry": (plan_entry, query_entries),
    "counter_entry": (plan_counter, query_counters),
    "direct_counter_entry": (plan_direct_counter, query_direct_counters),
    "meter_entry": (plan_meter, query_meters),
    "direct_meter_entry": (plan_direct_meter, query_direct_meters),
    "digest_entry": (plan_digest, query_digests),
    "action_profile_member": (plan_member, query_members),
    "action_profile_group": (plan_group, query_groups),
    "register_entry": (plan_register, query_registers),
    "value_set_entry": (plan_value_set, query_value_sets),
    "packet_replication_engine_entry": (plan_replication, query_replication),
    "extern_entry": (_no_extern, _no_extern),
}
"""By the field of `p4.v1.Entity`."""


def plan_update(config: ForwardingConfig, update: Any) -> Operation:
    """Check one `p4.v1.Update` and return the operation that carries it out."""
    refuse_unknown(update)
    kind = update.entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the update has no entity")
    if update.type not in (_Update.INSERT, _Update.MODIFY, _Update.DELETE):
        raise invalid(
            f"update type {update.type} is not one of INSERT (1), MODIFY (2) and DELETE (3)"
        )
    return ENTITIES[kind][0](config, update.type, getattr(update.entity, kind))


def plan_read(config: ForwardingConfig, entity: Any) -> Query:
    """The query of one `p4.v1.Entity` of a ReadRequest."""
    refuse_unknown(entity)
    kind = entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the entity is empty; set the kind of entity to read")
    return ENTITIES[kind][1](config, getattr(entity, kind))
