# SPDX-License-Identifier: Apache-2.0
"""Direct counters and direct meters by P4Runtime: what belongs to a table's entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.cells import only_modify
from p4reduce_switch.p4runtime.entities.counters import check_counter_data, encode_counts
from p4reduce_switch.p4runtime.entities.entry_reads import (
    EntryRow,
    encode_row_key,
    filter_of,
    selected_tables,
    snapshot_of,
)
from p4reduce_switch.p4runtime.entities.entry_writes import find_entry
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.meters import (
    configure_entry,
    decode_rates,
    encode_rates,
    metered_table,
)
from p4reduce_switch.p4runtime.entities.table_entries import find_table

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import TableSpec

__all__ = [
    "plan_direct_counter",
    "plan_direct_meter",
    "query_direct_counters",
    "query_direct_meters",
]


def plan_direct_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `DirectCounterEntry`."""
    table = _counted_table(config, message)
    only_modify(update_type, f"a direct counter of table '{table.name}'")
    check_counter_data(message.data)
    find = find_entry(config, table, message.table_entry)
    has_data = message.HasField("data")
    packets, size = message.data.packet_count, message.data.byte_count

    def write() -> None:
        entry = find()
        if has_data:
            entry.packets, entry.bytes = packets, size

    return write


def query_direct_counters(config: ForwardingConfig, message: Any) -> Query:
    """The counts of one entry, of a table's entries, or of all tables' that have counters."""
    if message.HasField("table_entry") and not message.table_entry.table_id:
        tables = [t for t in selected_tables(config, message.table_entry) if t.has_direct_counter]
    else:
        tables = [_counted_table(config, message)]

    def encode(row: EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.direct_counter_entry
        encode_row_key(row, out.table_entry)
        encode_counts(row.packet_count, row.byte_count, out.data)
        return entity

    return Query(_rows(config, tables, message.table_entry), encode)


def _counted_table(config: ForwardingConfig, message: Any) -> TableSpec:
    """The table of a `DirectCounterEntry`."""
    if not message.HasField("table_entry"):
        raise invalid("a DirectCounterEntry must give the table_entry that it belongs to")
    table = find_table(config.p4info, message.table_entry.table_id)
    if not table.has_direct_counter:
        raise invalid(f"table '{table.name}' has no direct counter")
    return table


def plan_direct_meter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `DirectMeterEntry`."""
    table = metered_table(config, message)
    only_modify(update_type, f"a direct meter of table '{table.name}'")
    rates = decode_rates(message, f"an entry of table '{table.name}'")
    find = find_entry(config, table, message.table_entry)
    return lambda: configure_entry(config, table, find(), rates)


def query_direct_meters(config: ForwardingConfig, message: Any) -> Query:
    """The rates of one entry, of a table's entries, or of all tables' that have meters."""
    if message.HasField("counter_data"):
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "meters have no counters here")
    if message.HasField("table_entry") and not message.table_entry.table_id:
        tables = [t for t in selected_tables(config, message.table_entry) if t.meter is not None]
    else:
        tables = [metered_table(config, message)]

    def encode(row: EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.direct_meter_entry
        encode_row_key(row, out.table_entry)
        encode_rates(row.rates, out.config)
        return entity

    return Query(_rows(config, tables, message.table_entry), encode)


def _rows(
    config: ForwardingConfig, tables: list[TableSpec], key: Any
) -> Callable[[], list[EntryRow]]:
    """What copies the entries of a key; a key that is not there is NOT_FOUND."""
    rows = snapshot_of(config, tables, key, filter_of(key, tables[0] if key.table_id else None))

    def snapshot() -> list[EntryRow]:
        found = rows()
        if key.match and not found:
            raise P4RuntimeError(
                code_pb2.NOT_FOUND, f"table '{tables[0].name}' has no entry with this key"
            )
        return found

    return snapshot
