# SPDX-License-Identifier: Apache-2.0
"""All entities of P4Runtime, by the name of their field in `p4.v1.Entity`.

Another one is a module in this folder, and an entry here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2

from p4reduce_switch.errors import P4RuntimeError
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
from p4reduce_switch.p4runtime.entities.kinds import EntityKind
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

if TYPE_CHECKING:
    from typing import NoReturn

    from p4reduce_switch.p4runtime.config import ForwardingConfig

__all__ = ["ENTITIES"]


def _plan_extern(config: ForwardingConfig, update_type: int, message: Any) -> NoReturn:
    raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "externs are not supported")


def _query_externs(config: ForwardingConfig, message: Any) -> NoReturn:
    raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "externs are not supported")


ENTITIES = {
    kind.name: kind
    for kind in (
        EntityKind("table_entry", plan_entry, query_entries),
        EntityKind("counter_entry", plan_counter, query_counters),
        EntityKind("direct_counter_entry", plan_direct_counter, query_direct_counters),
        EntityKind("meter_entry", plan_meter, query_meters),
        EntityKind("direct_meter_entry", plan_direct_meter, query_direct_meters),
        EntityKind("digest_entry", plan_digest, query_digests),
        EntityKind("action_profile_member", plan_member, query_members),
        EntityKind("action_profile_group", plan_group, query_groups),
        EntityKind("register_entry", plan_register, query_registers),
        EntityKind("value_set_entry", plan_value_set, query_value_sets),
        EntityKind("packet_replication_engine_entry", plan_replication, query_replication),
        EntityKind("extern_entry", _plan_extern, _query_externs),
    )
}
