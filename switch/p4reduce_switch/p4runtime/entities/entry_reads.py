# SPDX-License-Identifier: Apache-2.0
"""Reads of table entries, with their direct counters and meters."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.counters import encode_counts
from p4reduce_switch.p4runtime.entities.kinds import Query
from p4reduce_switch.p4runtime.entities.meters import encode_rates, refuse_counters
from p4reduce_switch.p4runtime.entities.profiles import encode_target
from p4reduce_switch.p4runtime.entities.table_entries import (
    decode_match,
    encode_action,
    encode_key,
    find_action,
    find_table,
)
from p4reduce_switch.p4runtime.p4info import TableSpec
from p4reduce_switch.state.meters import Rates
from p4reduce_switch.state.tables import Match, TableEntry
from p4reduce_switch.state.targets import Target


class EntryRow(NamedTuple):
    """A copy of a `TableEntry`, as the live one continues to count, and of its meter's rates."""

    table: TableSpec
    is_default: bool
    rates: Rates | None
    match: Match
    priority: int
    action: str
    args: tuple[int, ...]
    target: Target | None
    packets: int
    bytes: int
    controller_metadata: int
    metadata: builtins.bytes
    is_const: bool
    idle_timeout_ns: int
    last_hit_ns: int


_values = attrgetter(*EntryRow._fields[3:])


def _row(table: TableSpec, entry: TableEntry) -> EntryRow:
    rates = entry.meter.rates if entry.meter is not None else None
    return EntryRow(table, False, rates, *_values(entry))


def _default_row(table: TableSpec, entry: TableEntry) -> EntryRow:
    row = _row(table, entry)._replace(is_default=True, is_const=table.has_const_default)
    # Of an indirect table it is a constant NoAction, which the program does not name.
    return row if table.profile is None else row._replace(action="NoAction")


def query_entries(config: ForwardingConfig, message: Any) -> Query:
    """Query entries by key, by content, or all; of one table or of all."""
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
    refuse_counters(message, "a read")
    with_counters = message.HasField("counter_data")

    def encode(row: EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.table_entry
        encode_row_key(row, out)
        if row.target is not None:
            encode_target(config.p4info, row.target, out.action)
        else:
            encode_action(config.p4info, row.action, row.args, out.action)
        # Setting a field of a message costs more than looking whether it has its default.
        if row.controller_metadata:
            out.controller_metadata = row.controller_metadata
        if row.metadata:
            out.metadata = row.metadata
        if row.is_const:
            out.is_const = True
        if row.idle_timeout_ns:
            out.idle_timeout_ns = row.idle_timeout_ns
        if with_rates:
            encode_rates(row.rates, out.meter_config)
        if with_time and row.table.supports_idle_timeout:
            out.time_since_last_hit.elapsed_ns = max(0, clock() - row.last_hit_ns)
            out.time_since_last_hit.SetInParent()
        if with_counters and row.table.has_direct_counter:
            encode_counts(row.packets, row.bytes, out.counter_data)
        return entity

    return Query(snapshot_of(config, tables, message), encode)


def selected_tables(config: ForwardingConfig, message: Any) -> list[TableSpec]:
    """Return the table of a `TableEntry` to read, or all tables."""
    if message.table_id:
        return [find_table(config.p4info, message.table_id)]
    # "no other filter can be used"; BMv2 takes is_default_action all the same, and so does this.
    for field in ("match", "priority", "controller_metadata", "metadata"):
        if getattr(message, field):
            raise invalid(f"{field} is set, but table_id 0 (all tables) takes no filter")
    if message.HasField("action"):
        raise invalid("action is set, but table_id 0 (all tables) takes no filter")
    return list(config.p4info.tables.values())


def _filter_of(config: ForwardingConfig, message: Any) -> Callable[[EntryRow], bool]:
    """The filters of "Wildcard Reads" that are not the key."""
    action_name = None
    if message.HasField("action"):
        table = find_table(config.p4info, message.table_id)
        if message.action.WhichOneof("type") != "action":
            raise invalid(f"table '{table.name}' can only be filtered by an action")
        action_name = find_action(table, message.action.action.action_id).action.name

    # Reading a message's field costs more than the comparison.
    priority, metadata = message.priority, message.metadata
    controller_metadata = message.controller_metadata

    def keep(row: EntryRow) -> bool:
        return (
            priority in (0, row.priority)
            and action_name in (None, row.action)
            and controller_metadata in (0, row.controller_metadata)
            and metadata in (b"", row.metadata)
        )

    return keep


def snapshot_of(
    config: ForwardingConfig, tables: list[TableSpec], message: Any
) -> Callable[[], list[EntryRow]]:
    """Return a function that copies the rows of a `TableEntry` out of the tables."""
    keep = _filter_of(config, message)
    targets = [(spec, config.pipeline.tables[spec.name]) for spec in tables]
    if message.is_default_action and (message.match or message.priority):
        raise invalid(
            "is_default_action is set, and the default entry has no key: match must be empty "
            "and priority 0"
        )
    match = decode_match(tables[0], message.match) if message.match else None

    def rows() -> Iterator[EntryRow]:
        for spec, table in targets:
            if message.is_default_action:
                yield _default_row(spec, table.default_entry)
            elif match is None:
                yield from (_row(spec, entry) for entry in table.entries())
            elif spec.needs_priority and not message.priority:
                # Without a priority a key may stand for several entries.
                yield from (_row(spec, entry) for entry in table.entries() if entry.match == match)
            elif (entry := table.find(match, message.priority)) is not None:
                yield _row(spec, entry)

    return lambda: [row for row in rows() if keep(row)]


def encode_row_key(row: EntryRow, out: Any) -> None:
    """Fill the key of a `TableEntry`."""
    out.table_id = row.table.id
    if row.is_default:
        out.is_default_action = True
    else:
        encode_key(row.table, row.match, row.priority, out)
