# SPDX-License-Identifier: Apache-2.0
"""Entities of a Read: what to take from the pipeline, and its form on the wire.

`plan` turns one requested entity into a `Query`. Its `snapshot` runs in the data plane, between two
packets, and only copies; `encode`, the slow part in pure-Python protobuf, runs in the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.clones import encode_replicas, query_sessions
from p4reduce_switch.p4runtime.entities.digests import query_digests
from p4reduce_switch.p4runtime.entities.meters import encode_rates, metered_table, query_meters
from p4reduce_switch.p4runtime.entities.profiles import encode_target, query_groups, query_members
from p4reduce_switch.p4runtime.entities.registers import query_registers
from p4reduce_switch.p4runtime.entities.table_entries import (
    UNSUPPORTED,
    decode_match,
    encode_action,
    encode_key,
    find_table,
)
from p4reduce_switch.p4runtime.entities.value_sets import query_value_sets
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.tables import Entry

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig, GroupForm
    from p4reduce_switch.p4runtime.p4info import CounterSpec, P4Info, TableSpec
    from p4reduce_switch.state.meters import Rates
    from p4reduce_switch.state.multicast import Replica
    from p4reduce_switch.state.tables import MatchValue
    from p4reduce_switch.state.targets import Target

__all__ = ["Query", "plan"]


@dataclass(frozen=True, slots=True)
class Query:
    """What one requested entity asks for.

    Attributes:
        snapshot: copies the rows out of the pipeline; raises `P4RuntimeError` (NOT_FOUND).
        encode: makes a `p4.v1.Entity` of one row.
    """

    snapshot: Callable[[], list[Any]]
    encode: Callable[[Any], Any]


def plan(config: ForwardingConfig, entity: Any) -> Query:
    """The query of one `p4.v1.Entity` of a ReadRequest.

    Raises:
        P4RuntimeError: the request is malformed or of a kind that is not supported.
    """
    kind = entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the entity is empty; set the kind of entity to read")
    message = getattr(entity, kind)
    if kind in UNSUPPORTED:
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, UNSUPPORTED[kind])
    if kind == "table_entry":
        return _plan_table_entries(config, message)
    if kind == "counter_entry":
        return _plan_counter(config, message)
    if kind == "direct_counter_entry":
        return _plan_direct_counters(config, message)
    if kind == "meter_entry":
        return Query(*query_meters(config, message))
    if kind == "direct_meter_entry":
        return _plan_direct_meters(config, message)
    if kind == "digest_entry":
        return Query(*query_digests(config, message))
    if kind == "action_profile_member":
        return Query(*query_members(config, message))
    if kind == "action_profile_group":
        return Query(*query_groups(config, message))
    if kind == "register_entry":
        return Query(*query_registers(config, message))
    if kind == "value_set_entry":
        return Query(*query_value_sets(config, message))
    return _plan_replication(config, message)


# -- Table entries -------------------------------------------------------------------------------


class _EntryRow(NamedTuple):
    """A copy of an `Entry`: the live one goes on counting."""

    table: TableSpec
    is_default: bool
    match: tuple[MatchValue, ...]
    priority: int
    action: str
    args: tuple[int, ...]
    packet_count: int
    byte_count: int
    controller_metadata: int
    metadata: bytes
    is_const: bool
    target: Target | None
    rates: Rates | None
    idle_timeout_ns: int
    last_hit_ns: int


def _row(table: TableSpec, entry: Entry, *, is_default: bool = False) -> _EntryRow:
    return _EntryRow(
        table,
        is_default,
        entry.match,
        entry.priority,
        entry.action,
        entry.args,
        entry.packets,
        entry.bytes,
        entry.controller_metadata,
        entry.metadata,
        entry.is_const,
        entry.target,
        entry.meter.rates if entry.meter is not None else None,
        entry.idle_timeout_ns,
        entry.last_hit_ns,
    )


def _plan_table_entries(config: ForwardingConfig, message: Any) -> Query:
    tables = _selected_tables(config, message)
    with_time = message.HasField("time_since_last_hit")
    if with_time and (
        message.is_default_action or not any(t.supports_idle_timeout for t in tables)
    ):
        raise invalid(
            "time_since_last_hit is set, but no selected entry has an idle timeout; leave it unset"
        )
    clock = config.pipeline.timers.clock
    with_rates = message.HasField("meter_config")
    if message.HasField("meter_counter_data"):
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "meters have no counters here")
    keep = _filter(message, tables[0] if message.table_id else None)
    with_counters = message.HasField("counter_data")

    def encode(row: _EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.table_entry
        _encode_key(row, out)
        if row.target is not None:
            encode_target(config.p4info, row.target, out.action)
        else:
            encode_action(config.p4info, row.action, row.args, out.action)
        if row.controller_metadata:
            out.controller_metadata = row.controller_metadata
        if row.metadata:
            out.metadata = row.metadata
        if row.is_const:
            out.is_const = True
        if with_rates:
            encode_rates(row.rates, out.meter_config)
        if row.idle_timeout_ns:
            out.idle_timeout_ns = row.idle_timeout_ns
        if with_time and row.table.supports_idle_timeout:
            out.time_since_last_hit.elapsed_ns = max(0, clock() - row.last_hit_ns)
            out.time_since_last_hit.SetInParent()
        if with_counters and row.table.has_direct_counter:
            _encode_counts(row.packet_count, row.byte_count, out.counter_data)
        return entity

    return Query(_table_snapshot(config, tables, message, keep), encode)


def _selected_tables(config: ForwardingConfig, message: Any) -> list[TableSpec]:
    if message.table_id:
        return [find_table(config.p4info, message.table_id)]
    # "no other filter can be used"; BMv2 takes is_default_action all the same, and so does this.
    for field in ("match", "priority", "controller_metadata", "metadata"):
        if getattr(message, field):
            raise invalid(f"{field} is set, but table_id 0 (all tables) takes no filter")
    if message.HasField("action"):
        raise invalid("action is set, but table_id 0 (all tables) takes no filter")
    return list(config.p4info.tables.values())


def _filter(message: Any, table: TableSpec | None) -> Callable[[_EntryRow], bool]:
    """The filters of "Wildcard Reads" that are not the key."""
    action_name = None
    if message.HasField("action"):
        assert table is not None
        if message.action.WhichOneof("type") != "action":
            raise invalid(f"table '{table.name}' can only be filtered by an action")
        use = table.actions.get(message.action.action.action_id)
        if use is None:
            raise invalid(
                f"action_id {message.action.action.action_id:#x} is not an action of table "
                f"'{table.name}'; its actions are "
                f"{names(u.action.name for u in table.actions.values())}"
            )
        action_name = use.action.name

    def keep(row: _EntryRow) -> bool:
        return (
            (not message.priority or row.priority == message.priority)
            and (action_name is None or row.action == action_name)
            and (
                not message.controller_metadata
                or row.controller_metadata == message.controller_metadata
            )
            and (not message.metadata or row.metadata == message.metadata)
        )

    return keep


def _table_snapshot(
    config: ForwardingConfig,
    tables: list[TableSpec],
    message: Any,
    keep: Callable[[_EntryRow], bool],
) -> Callable[[], list[_EntryRow]]:
    targets = [(table, config.pipeline.tables[table.name]) for table in tables]
    if message.is_default_action:
        if message.match or message.priority:
            raise invalid(
                "is_default_action is set, and the default entry has no key: match must be empty "
                "and priority 0"
            )

        def default_entries() -> list[_EntryRow]:
            rows = [_row(spec, table.default_entry, is_default=True) for spec, table in targets]
            return [row for row in rows if keep(row)]

        return default_entries

    if message.match:
        spec, table = targets[0]
        match = decode_match(spec, message.match)

        def one_key() -> list[_EntryRow]:
            # Without a priority a key may stand for several entries.
            rows = [_row(spec, entry) for entry in table.entries() if entry.match == match]
            return [row for row in rows if keep(row)]

        if spec.needs_priority and not message.priority:
            return one_key

        def one_entry() -> list[_EntryRow]:
            entry = table.find(match, message.priority)
            return [row for row in [_row(spec, entry)] if keep(row)] if entry is not None else []

        return one_entry

    def all_entries() -> list[_EntryRow]:
        rows = [_row(spec, entry) for spec, table in targets for entry in table.entries()]
        return [row for row in rows if keep(row)]

    return all_entries


def _encode_key(row: _EntryRow, out: Any) -> None:
    out.table_id = row.table.id
    if row.is_default:
        out.is_default_action = True
    else:
        encode_key(row.table, row.match, row.priority, out)


def _encode_counts(packets: int, size: int, out: Any) -> None:
    out.packet_count = _int64(packets)
    out.byte_count = _int64(size)
    out.SetInParent()  # a counter of zero is still a counter


def _int64(value: int) -> int:
    """A count as `CounterData` holds it; it wraps as a 63-bit counter would."""
    return value & ((1 << 63) - 1)


# -- Counters ------------------------------------------------------------------------------------


class _CounterRow(NamedTuple):
    counter: CounterSpec
    cell: int
    packet_count: int
    byte_count: int


def _plan_counter(config: ForwardingConfig, message: Any) -> Query:
    counters = _selected_counters(config.p4info, message.counter_id)
    ranges = [(spec, _indices(spec, message)) for spec in counters]

    def snapshot() -> list[_CounterRow]:
        return [
            _CounterRow(spec, i, *config.pipeline.counters[spec.name].read(i))
            for spec, indices in ranges
            for i in indices
        ]

    def encode(row: _CounterRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.counter_entry
        out.counter_id = row.counter.id
        out.index.index = row.cell
        _encode_counts(row.packet_count, row.byte_count, out.data)
        return entity

    return Query(snapshot, encode)


def _selected_counters(p4info: P4Info, counter_id: int) -> Iterable[CounterSpec]:
    if counter_id == 0:
        return p4info.counters.values()
    spec = p4info.counters.get(counter_id)
    if spec is None:
        raise invalid(
            f"counter_id {counter_id:#x} is not an indirect counter of this pipeline; "
            f"its counters are {names(c.name for c in p4info.counters.values())}"
        )
    return [spec]


def _indices(spec: CounterSpec, message: Any) -> range:
    if not message.HasField("index"):
        return range(spec.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"index {index} of counter '{spec.name}' is negative")
    if index >= spec.size:
        raise P4RuntimeError(
            code_pb2.OUT_OF_RANGE,
            f"index {index} of counter '{spec.name}' is not within 0 to {spec.size - 1}",
        )
    return range(index, index + 1)


def _plan_direct_counters(config: ForwardingConfig, message: Any) -> Query:
    if not message.HasField("table_entry"):
        raise invalid("a DirectCounterEntry must give the table_entry that it belongs to")
    key = message.table_entry
    if key.table_id:
        table = find_table(config.p4info, key.table_id)
        if not table.has_direct_counter:
            raise invalid(f"table '{table.name}' has no direct counter")
        tables = [table]
    else:
        tables = [t for t in _selected_tables(config, key) if t.has_direct_counter]
    rows = _table_snapshot(config, tables, key, _filter(key, tables[0] if key.table_id else None))

    def snapshot() -> list[_EntryRow]:
        found = rows()
        if key.match and not found:
            raise P4RuntimeError(
                code_pb2.NOT_FOUND, f"table '{tables[0].name}' has no entry with this key"
            )
        return found

    def encode(row: _EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.direct_counter_entry
        _encode_key(row, out.table_entry)
        _encode_counts(row.packet_count, row.byte_count, out.data)
        return entity

    return Query(snapshot, encode)


def _plan_direct_meters(config: ForwardingConfig, message: Any) -> Query:
    if message.HasField("counter_data"):
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "meters have no counters here")
    key = message.table_entry
    if message.HasField("table_entry") and not key.table_id:
        tables = [t for t in _selected_tables(config, key) if t.meter is not None]
    elif message.HasField("table_entry") and find_table(config.p4info, key.table_id).meter is None:
        raise invalid(f"this pipeline has no direct meter of table id {key.table_id:#x}")
    else:
        tables = [metered_table(config, message)]
    rows = _table_snapshot(config, tables, key, _filter(key, tables[0] if key.table_id else None))

    def snapshot() -> list[_EntryRow]:
        found = rows()
        if key.match and not found:
            raise P4RuntimeError(
                code_pb2.NOT_FOUND, f"table '{tables[0].name}' has no entry with this key"
            )
        return found

    def encode(row: _EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.direct_meter_entry
        _encode_key(row, out.table_entry)
        encode_rates(row.rates, out.config)
        return entity

    return Query(snapshot, encode)


# -- Packet replication --------------------------------------------------------------------------


class _GroupRow(NamedTuple):
    group_id: int
    replicas: tuple[Replica, ...]
    form: GroupForm | None


def _plan_replication(config: ForwardingConfig, message: Any) -> Query:
    kind = message.WhichOneof("type")
    if kind is None:
        raise invalid("the packet_replication_engine_entry is empty; give a multicast_group_entry")
    if kind == "clone_session_entry":
        return Query(*query_sessions(config, message.clone_session_entry.session_id))
    wanted = message.multicast_group_entry.multicast_group_id
    groups, forms = config.pipeline.multicast, config.group_forms

    def snapshot() -> list[_GroupRow]:
        if not wanted:
            return [
                _GroupRow(group_id, tuple(replicas), forms.get(group_id))
                for group_id, replicas in sorted(groups.groups().items())
            ]
        replicas = groups.groups().get(wanted)
        if replicas is None:
            raise P4RuntimeError(code_pb2.NOT_FOUND, f"multicast group {wanted} does not exist")
        return [_GroupRow(wanted, tuple(replicas), forms.get(wanted))]

    return Query(snapshot, _encode_group)


def _encode_group(row: _GroupRow) -> Any:
    entity = p4runtime_pb2.Entity()
    out = entity.packet_replication_engine_entry.multicast_group_entry
    out.multicast_group_id = row.group_id
    if row.form is not None and row.form.metadata:
        out.metadata = row.form.metadata
    as_bytes = row.form.ports_as_bytes if row.form is not None else frozenset()
    encode_replicas(row.replicas, as_bytes, out.replicas)
    return entity
