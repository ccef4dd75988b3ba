# SPDX-License-Identifier: Apache-2.0
"""Direct counters and direct meters by P4Runtime, which belong to a table's entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, not_found, unsupported
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import only_modify
from p4reduce_switch.p4runtime.entities.counters import check_counter_data, encode_counts
from p4reduce_switch.p4runtime.entities.entry_reads import (
    EntryRow,
    encode_row_key,
    selected_tables,
    snapshot_of,
)
from p4reduce_switch.p4runtime.entities.entry_writes import find_entry
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.meters import (
    configure_entry,
    decode_rates,
    encode_rates,
    refuse_counters,
)
from p4reduce_switch.p4runtime.entities.table_entries import find_table
from p4reduce_switch.p4runtime.p4info import TableSpec


@dataclass(frozen=True, slots=True)
class _DirectKind:
    """Direct counters or direct meters.

    Attributes:
        what: "counter" or "meter".
        is_of: whether a table has them.
        fill: puts what an entry has into a message.
    """

    what: str
    is_of: Callable[[TableSpec], bool]
    fill: Callable[[EntryRow, Any], None]


_COUNTERS = _DirectKind(
    "counter",
    lambda table: table.has_direct_counter,
    lambda row, out: encode_counts(row.packets, row.bytes, out.data),
)
_METERS = _DirectKind(
    "meter",
    lambda table: table.meter is not None,
    lambda row, out: encode_rates(row.rates, out.config),
)


def plan_direct_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `DirectCounterEntry` update."""
    table = _table(config, message, _COUNTERS)
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


def plan_direct_meter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `DirectMeterEntry` update."""
    table = _table(config, message, _METERS)
    _refuse_default(message)
    only_modify(update_type, f"a direct meter of table '{table.name}'")
    rates = decode_rates(message, f"an entry of table '{table.name}'")
    find = find_entry(config, table, message.table_entry)
    return lambda: configure_entry(config, table, find(), rates)


def query_direct_counters(config: ForwardingConfig, message: Any) -> Query:
    """Query the counts of one entry, of a table's entries, or of all tables with counters."""
    return _query(config, message, _COUNTERS)


def query_direct_meters(config: ForwardingConfig, message: Any) -> Query:
    """Query the rates of one entry, of a table's entries, or of all tables with meters."""
    refuse_counters(message, "a read")
    _refuse_default(message)
    return _query(config, message, _METERS)


def _table(config: ForwardingConfig, message: Any, kind: _DirectKind) -> TableSpec:
    """The table of a `DirectCounterEntry` or `DirectMeterEntry`."""
    if not message.HasField("table_entry"):
        name = message.DESCRIPTOR.name
        raise invalid(f"a {name} must give the table_entry that it belongs to")
    table = find_table(config.p4info, message.table_entry.table_id)
    if not kind.is_of(table):
        raise invalid(f"table '{table.name}' has no direct {kind.what}")
    return table


def _refuse_default(message: Any) -> None:
    if message.table_entry.is_default_action:
        raise unsupported("default entries have no direct meter, as in BMv2")


def _query(config: ForwardingConfig, message: Any, kind: _DirectKind) -> Query:
    key = message.table_entry
    if message.HasField("table_entry") and not key.table_id:
        tables = [table for table in selected_tables(config, key) if kind.is_of(table)]
    else:
        tables = [_table(config, message, kind)]
    rows = snapshot_of(config, tables, key)

    def snapshot() -> list[EntryRow]:
        found = rows()
        if key.match and not found:
            raise not_found(f"table '{tables[0].name}' has no entry with this key")
        return found

    def encode(row: EntryRow) -> Any:
        entity = p4runtime_pb2.Entity()
        out = getattr(entity, f"direct_{kind.what}_entry")
        encode_row_key(row, out.table_entry)
        kind.fill(row, out)
        return entity

    return Query(snapshot, encode)
