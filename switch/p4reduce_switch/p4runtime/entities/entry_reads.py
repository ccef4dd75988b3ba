# SPDX-License-Identifier: Apache-2.0
"""Reads of table entries, also of what belongs to them: direct counters and meters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.counters import encode_counts
from p4reduce_switch.p4runtime.entities.kinds import Query
from p4reduce_switch.p4runtime.entities.meters import encode_rates
from p4reduce_switch.p4runtime.entities.profiles import encode_target
from p4reduce_switch.p4runtime.entities.table_entries import (
    decode_match,
    encode_action,
    encode_key,
    find_table,
)
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.tables import Entry

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import TableSpec
    from p4reduce_switch.state.meters import Rates
    from p4reduce_switch.state.tables import MatchValue
    from p4reduce_switch.state.targets import Target

__all__ = [
    "EntryRow",
    "encode_row_key",
    "filter_of",
    "query_entries",
    "selected_tables",
    "snapshot_of",
]


class EntryRow(NamedTuple):
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


def _row(table: TableSpec, entry: Entry, *, is_default: bool = False) -> EntryRow:
    return EntryRow(
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


def query_entries(config: ForwardingConfig, message: Any) -> Query:
    """Entries by key, by what they have, or all; of one table or of all."""
    tables = selected_tables(config, message)
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
    keep = filter_of(message, tables[0] if message.table_id else None)
    with_counters = message.HasField("counter_data")

    def encode(row: EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.table_entry
        encode_row_key(row, out)
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
            encode_counts(row.packet_count, row.byte_count, out.counter_data)
        return entity

    return Query(snapshot_of(config, tables, message, keep), encode)


def selected_tables(config: ForwardingConfig, message: Any) -> list[TableSpec]:
    """The table of a `TableEntry` to read, or all."""
    if message.table_id:
        return [find_table(config.p4info, message.table_id)]
    # "no other filter can be used"; BMv2 takes is_default_action all the same, and so does this.
    for field in ("match", "priority", "controller_metadata", "metadata"):
        if getattr(message, field):
            raise invalid(f"{field} is set, but table_id 0 (all tables) takes no filter")
    if message.HasField("action"):
        raise invalid("action is set, but table_id 0 (all tables) takes no filter")
    return list(config.p4info.tables.values())


def filter_of(message: Any, table: TableSpec | None) -> Callable[[EntryRow], bool]:
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

    def keep(row: EntryRow) -> bool:
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


def snapshot_of(
    config: ForwardingConfig,
    tables: list[TableSpec],
    message: Any,
    keep: Callable[[EntryRow], bool],
) -> Callable[[], list[EntryRow]]:
    """What copies the rows of a `TableEntry` to read out of the tables."""
    targets = [(table, config.pipeline.tables[table.name]) for table in tables]
    if message.is_default_action:
        if message.match or message.priority:
            raise invalid(
                "is_default_action is set, and the default entry has no key: match must be empty "
                "and priority 0"
            )

        def default_entries() -> list[EntryRow]:
            rows = [_row(spec, table.default_entry, is_default=True) for spec, table in targets]
            return [row for row in rows if keep(row)]

        return default_entries

    if message.match:
        spec, table = targets[0]
        match = decode_match(spec, message.match)

        def one_key() -> list[EntryRow]:
            # Without a priority a key may stand for several entries.
            rows = [_row(spec, entry) for entry in table.entries() if entry.match == match]
            return [row for row in rows if keep(row)]

        if spec.needs_priority and not message.priority:
            return one_key

        def one_entry() -> list[EntryRow]:
            entry = table.find(match, message.priority)
            return [row for row in [_row(spec, entry)] if keep(row)] if entry is not None else []

        return one_entry

    def all_entries() -> list[EntryRow]:
        rows = [_row(spec, entry) for spec, table in targets for entry in table.entries()]
        return [row for row in rows if keep(row)]

    return all_entries


def encode_row_key(row: EntryRow, out: Any) -> None:
    """Fill what says which entry a `TableEntry` is."""
    out.table_id = row.table.id
    if row.is_default:
        out.is_default_action = True
    else:
        encode_key(row.table, row.match, row.priority, out)
