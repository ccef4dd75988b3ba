# SPDX-License-Identifier: Apache-2.0
"""Translates between a P4 program's names and P4Runtime's messages, by its P4Info.

Section numbers are those of the P4Runtime specification 1.4.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_controller.values.counts import CounterValue


class SchemaError(ValueError):
    """The program has no such table, field, action or parameter, or the value does not fit."""


@dataclass(frozen=True)
class TableRow:
    """An entry of a table. `action` is empty if only the key matters, as for a deletion."""

    table: str
    match: Mapping[str, int]
    action: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    counts: CounterValue | None = None  # of the table's direct counter, when read

    def __str__(self) -> str:
        match = ", ".join(f"{name}={value:#x}" for name, value in self.match.items())
        return f"{self.table}({match})" + (f" -> {self.action}" if self.action else "")


@dataclass(frozen=True)
class MulticastGroup:
    """A multicast group: copies to (port, replica id)."""

    group: int
    replicas: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return f"multicast group {self.group} of {len(self.replicas)} replicas"


@dataclass(frozen=True)
class MeterRate:
    """The rate of an indirect meter's cell: frames within `rate` and `burst` are green, others
    red."""

    meter: str
    index: int
    rate: int  # a second, in the meter's unit
    burst: int  # in the same unit

    def __str__(self) -> str:
        return f"{self.meter}[{self.index}] of {self.rate}/s, burst {self.burst}"


Entity = TableRow | MulticastGroup | MeterRate


class Op(enum.Enum):
    """What to do with an entity."""

    INSERT = p4runtime_pb2.Update.INSERT
    MODIFY = p4runtime_pb2.Update.MODIFY
    DELETE = p4runtime_pb2.Update.DELETE


@dataclass(frozen=True)
class Update:
    """One part of a Write."""

    op: Op
    entity: Entity

    def __str__(self) -> str:
        return f"{self.op.name.lower()} {self.entity}"


def encode(value: int, bits: int, what: str) -> bytes:
    """Return the canonical byte string of `value` (section 8.3), without leading zero bytes."""
    if value < 0 or value.bit_length() > bits:
        raise SchemaError(f"{what}: {value} does not fit {bits} bits")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(value: bytes) -> int:
    """Return the number in a byte string."""
    return int.from_bytes(value, "big")


class Schema:
    """Translates between names and the ids of one p4info. Exact matches only."""

    def __init__(self, p4info: p4info_pb2.P4Info) -> None:
        self._tables = _by_name(p4info.tables)
        self._actions = _by_name(p4info.actions)
        self._counters = _by_name(p4info.counters)
        self._direct_counters = _by_name(p4info.direct_counters)
        self._registers = _by_name(p4info.registers)
        self._meters = _by_name(p4info.meters)
        self._packets = _by_name(p4info.controller_packet_metadata)
        self._by_id = {each.preamble.id: each for each in (*p4info.tables, *p4info.actions)}

    @property
    def tables(self) -> list[str]:
        """The names of all tables."""
        return sorted(self._tables)

    def table(self, name: str) -> Any:
        """Return a table's P4Info. Raises SchemaError that lists the tables."""
        if name not in self._tables:
            raise SchemaError(f"no table {name!r}; there are {', '.join(self.tables)}")
        return self._tables[name]

    def direct_counter(self, table: str) -> str | None:
        """Return the name of a table's direct counter, if it has one."""
        table_id = self.table(table).preamble.id
        for name, counter in self._direct_counters.items():
            if counter.direct_table_id == table_id:
                return name
        return None

    def table_of_counter(self, name: str) -> str | None:
        """Return the table that a direct counter belongs to; None for other counters."""
        for table in self.tables:
            if self.direct_counter(table) == name:
                return table
        return None

    @property
    def counters(self) -> list[str]:
        """The names of all counters, direct and indirect."""
        return sorted([*self._direct_counters, *self._counters])

    def counter(self, name: str) -> Any:
        """Return an indirect counter's P4Info. Raises SchemaError that lists the counters."""
        if name not in self._counters:
            raise SchemaError(f"no counter {name!r}; there are {', '.join(self.counters)}")
        return self._counters[name]

    def register(self, name: str) -> Any:
        """Return a register's p4info. Raises SchemaError."""
        if name not in self._registers:
            raise SchemaError(f"no register {name!r}")
        return self._registers[name]

    def meter(self, name: str) -> Any:
        """Return an indirect meter's p4info. Raises SchemaError."""
        if name not in self._meters:
            raise SchemaError(f"no meter {name!r}")
        return self._meters[name]

    # -- Out ---------------------------------------------------------------------------

    def update(self, update: Update) -> Any:
        """Return a p4.v1.Update. Raises SchemaError."""
        message = p4runtime_pb2.Update(type=update.op.value)
        if isinstance(update.entity, TableRow):
            self._fill_row(message.entity.table_entry, update.entity, update.op)
        elif isinstance(update.entity, MulticastGroup):
            fill_group(message.entity, update.entity)
        else:
            self._fill_meter(message.entity.meter_entry, update.entity)
        return message

    def _fill_meter(self, entry: Any, cell: MeterRate) -> None:
        """Both rates the same, so that nothing is ever yellow (section 9.3)."""
        entry.meter_id = self.meter(cell.meter).preamble.id
        entry.index.index = cell.index
        entry.config.cir = entry.config.pir = cell.rate
        entry.config.cburst = entry.config.pburst = cell.burst

    def _fill_row(self, entry: Any, row: TableRow, op: Op) -> None:
        table = self.table(row.table)
        entry.table_id = table.preamble.id
        entry.priority = row.priority
        expected = {field.name: field for field in table.match_fields}
        if row.match.keys() != expected.keys():
            raise SchemaError(
                f"table {row.table} matches on {', '.join(expected)}, not {', '.join(row.match)}"
            )
        for name, field_ in expected.items():
            where = f"{row.table}.{name}"
            if field_.match_type != p4info_pb2.MatchField.EXACT:
                raise SchemaError(f"{where} is not an exact match, the only kind supported")
            match = entry.match.add(field_id=field_.id)
            match.exact.value = encode(row.match[name], field_.bitwidth, where)
        if op is not Op.DELETE:
            self._fill_action(entry.action.action, table, row)

    def _fill_action(self, message: Any, table: Any, row: TableRow) -> None:
        info = self._actions.get(row.action)
        if info is None or info.preamble.id not in [ref.id for ref in table.action_refs]:
            raise SchemaError(f"table {row.table} has no action {row.action!r}")
        expected = {param.name: param for param in info.params}
        if row.params.keys() != expected.keys():
            raise SchemaError(
                f"action {row.action} takes {', '.join(expected)}, not {', '.join(row.params)}"
            )
        message.action_id = info.preamble.id
        for name, param in expected.items():
            value = encode(row.params[name], param.bitwidth, f"{row.action}.{name}")
            message.params.add(param_id=param.id, value=value)

    def packet_out(self, payload: bytes, metadata: Mapping[str, int]) -> Any:
        """Return a p4.v1.PacketOut with the metadata that the program defines."""
        info = self._packets.get("packet_out")
        if info is None:
            raise SchemaError("the program takes no packets from the controller")
        message = p4runtime_pb2.PacketOut(payload=payload)
        for field_ in info.metadata:
            value = encode(metadata.get(field_.name, 0), field_.bitwidth, field_.name)
            message.metadata.add(metadata_id=field_.id, value=value)
        return message

    # -- In ----------------------------------------------------------------------------

    def row(self, entry: Any) -> TableRow:
        """Return a p4.v1.TableEntry as a `TableRow`."""
        table = self._by_id[entry.table_id]
        fields = {field.id: field.name for field in table.match_fields}
        match = {fields[match.field_id]: decode(match.exact.value) for match in entry.match}
        action, params = "", {}
        if entry.HasField("action"):
            info = self._by_id[entry.action.action.action_id]
            names = {param.id: param.name for param in info.params}
            action = _name(info)
            params = {
                names[param.param_id]: decode(param.value) for param in entry.action.action.params
            }
        counts = None
        if entry.HasField("counter_data"):
            counts = CounterValue(entry.counter_data.packet_count, entry.counter_data.byte_count)
        return TableRow(_name(table), match, action, params, entry.priority, counts)

    def packet_in_metadata(self, packet: Any) -> dict[str, int]:
        """Return the metadata of a p4.v1.PacketIn by name."""
        info = self._packets.get("packet_in")
        names = {field_.id: field_.name for field_ in info.metadata} if info else {}
        return {
            names[field_.metadata_id]: decode(field_.value)
            for field_ in packet.metadata
            if field_.metadata_id in names
        }


def _by_name(objects: Iterable[Any]) -> dict[str, Any]:
    return {_name(each): each for each in objects}


def _name(of: Any) -> str:
    """An object's alias, its shortest unique name (P4Runtime, section 6.1.2).

    For Tofino, p4c puts the pipe before a name, and not before an alias.
    """
    return str(of.preamble.alias or of.preamble.name)


def fill_group(entity: Any, group: MulticastGroup) -> None:
    """Write a multicast group into a p4.v1.Entity (section 9.5.1)."""
    entry = entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = group.group
    for port, instance in group.replicas:
        entry.replicas.add(egress_port=port, instance=instance)
