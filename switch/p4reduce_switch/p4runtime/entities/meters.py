# SPDX-License-Identifier: Apache-2.0
"""Meters by P4Runtime: indirect ones, and direct ones where they do not come with an entry.

P4Runtime 1.4.1, "MeterEntry & DirectMeterEntry". Counters by colour are not there, as in BMv2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.cells import indices, only_modify
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.table_entries import find_table
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.meters import Rates

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import MeterSpec, TableSpec
    from p4reduce_switch.state.tables import Entry

__all__ = [
    "check_direct_meter",
    "configure_entry",
    "decode_rates",
    "encode_rates",
    "metered_table",
    "plan_meter",
    "query_meters",
]


def decode_rates(message: Any, where: str) -> Rates | None:
    """The rates of a message with a `config` or `meter_config`; None if that is not set.

    Raises:
        P4RuntimeError: the rates are not those of a meter of two rates, UNIMPLEMENTED for counters.
    """
    counters = "counter_data" if "counter_data" in _fields(message) else "meter_counter_data"
    config = "config" if "config" in _fields(message) else "meter_config"
    if counters == "counter_data" and config == "meter_config":
        counters = "meter_counter_data"  # a TableEntry has both kinds
    if message.HasField(counters):
        raise P4RuntimeError(
            code_pb2.UNIMPLEMENTED, f"{counters} of {where}: meters have no counters here"
        )
    if not message.HasField(config):
        return None
    given = getattr(message, config)
    if given.eburst:
        raise invalid(f"eburst of {where} is {given.eburst}; with two rates it must be 0")
    for field in ("cir", "cburst", "pir", "pburst"):
        if getattr(given, field) < 0:
            raise invalid(f"{field} of {where} is {getattr(given, field)}; it must not be negative")
    if given.cir > given.pir:
        raise invalid(f"cir of {where} is {given.cir}, above its pir, {given.pir}")
    return Rates(given.cir, given.cburst, given.pir, given.pburst)


def _fields(message: Any) -> Any:
    return message.DESCRIPTOR.fields_by_name


def encode_rates(rates: Rates | None, config: Any) -> None:
    """Fill a `MeterConfig`; it stays unset for a meter that is not configured."""
    if rates is None:
        return
    config.cir, config.cburst = rates.cir, rates.cburst
    config.pir, config.pburst = rates.pir, rates.pburst
    config.SetInParent()


# -- Direct meters -------------------------------------------------------------------------------


def check_direct_meter(table: TableSpec, message: Any) -> Rates | None:
    """The rates of a `TableEntry`; INVALID_ARGUMENT if there are any and the table has no meter."""
    if table.meter is not None:
        return decode_rates(message, f"an entry of table '{table.name}'")
    for field in ("meter_config", "meter_counter_data"):
        if message.HasField(field):
            raise invalid(f"{field} is set, but table '{table.name}' has no direct meter")
    return None


def configure_entry(
    config: ForwardingConfig, table: TableSpec, entry: Entry, rates: Rates | None
) -> None:
    """Configure the direct meter of an entry, or with None have it say green."""
    if table.meter is None:
        return
    if rates is None:
        entry.meter = None
        return
    if entry.meter is None:
        entry.meter = config.pipeline.meters[table.meter.name].make()
    entry.meter.configure(rates)


def metered_table(config: ForwardingConfig, message: Any) -> TableSpec:
    """The table of a `DirectMeterEntry`."""
    if not message.HasField("table_entry"):
        raise invalid("a DirectMeterEntry must give the table_entry that it belongs to")
    table = find_table(config.p4info, message.table_entry.table_id)
    if table.meter is None:
        raise invalid(f"table '{table.name}' has no direct meter")
    if message.table_entry.is_default_action:
        raise P4RuntimeError(
            code_pb2.UNIMPLEMENTED, "default entries have no direct meter, as in BMv2"
        )
    return table


# -- Indirect meters -----------------------------------------------------------------------------


def plan_meter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `MeterEntry`."""
    spec = _find(config, message.meter_id)
    only_modify(update_type, f"meter '{spec.name}'")
    chosen = indices(f"meter '{spec.name}'", spec.size, message)
    rates = decode_rates(message, f"meter '{spec.name}'")
    cells = config.pipeline.meters[spec.name].cells

    def write() -> None:
        for index in chosen:
            cells[index].configure(rates)

    return write


def query_meters(config: ForwardingConfig, message: Any) -> Query:
    """One cell, all cells of a meter, or all of all indirect meters."""
    if message.HasField("counter_data"):
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "meters have no counters here")
    specs = [_find(config, message.meter_id)] if message.meter_id else config.p4info.meters.values()
    selected = [(spec, indices(f"meter '{spec.name}'", spec.size, message)) for spec in specs]

    def snapshot() -> list[Any]:
        return [
            (spec.id, index, config.pipeline.meters[spec.name].cells[index].rates)
            for spec, chosen in selected
            for index in chosen
        ]

    def encode(row: Any) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.meter_entry
        out.meter_id, out.index.index, rates = row
        out.index.SetInParent()
        encode_rates(rates, out.config)
        return entity

    return Query(snapshot, encode)


def _find(config: ForwardingConfig, meter_id: int) -> MeterSpec:
    spec = config.p4info.meters.get(meter_id)
    if spec is None:
        raise invalid(
            f"this pipeline has no meter with id {meter_id:#x}; "
            f"its indirect meters are {names(m.name for m in config.p4info.meters.values())}"
        )
    return spec
