# SPDX-License-Identifier: Apache-2.0
"""Meters by P4Runtime: indirect ones, and the rates of direct ones in a `TableEntry`.

`direct.py` has `DirectMeterEntry`. P4Runtime 1.4.1, "MeterEntry & DirectMeterEntry". Counters by
colour are not supported, as in BMv2.
"""

from __future__ import annotations

from typing import Any

from p4reduce_switch.errors import invalid, unsupported
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import (
    find,
    indices,
    only_modify,
    query_cells,
    selected,
)
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import TableSpec
from p4reduce_switch.state.meters import Rates
from p4reduce_switch.state.tables import TableEntry

_KIND = "indirect meter"


def decode_rates(message: Any, where: str) -> Rates | None:
    """Return the rates of a message's `config` or `meter_config`; None if it is not set.

    Raises:
        P4RuntimeError: the rates do not fit a meter of two rates; UNIMPLEMENTED for counters.
    """
    refuse_counters(message, where)
    config = "meter_config" if _is_table_entry(message) else "config"
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


def refuse_counters(message: Any, where: str) -> None:
    """Refuse counts by colour, of a meter's message or of a `TableEntry`."""
    field = "meter_counter_data" if _is_table_entry(message) else "counter_data"
    if message.HasField(field):
        raise unsupported(f"{field} of {where}: meters have no counters here")


def _is_table_entry(message: Any) -> bool:
    """Whether it is one: its fields of a meter begin with "meter_"."""
    return "meter_config" in message.DESCRIPTOR.fields_by_name


def encode_rates(rates: Rates | None, config: Any) -> None:
    """Fill a `MeterConfig`; it stays unset for a meter that is not configured."""
    if rates is None:
        return
    config.cir, config.cburst = rates.cir, rates.cburst
    config.pir, config.pburst = rates.pir, rates.pburst
    config.SetInParent()


# -- Direct meters -------------------------------------------------------------------------------


def check_direct_meter(table: TableSpec, message: Any) -> Rates | None:
    """Return the rates of a `TableEntry`; INVALID_ARGUMENT if it has rates and the table has no
    meter."""
    if table.meter is not None:
        return decode_rates(message, f"an entry of table '{table.name}'")
    for field in ("meter_config", "meter_counter_data"):
        if message.HasField(field):
            raise invalid(f"{field} is set, but table '{table.name}' has no direct meter")
    return None


def configure_entry(
    config: ForwardingConfig, table: TableSpec, entry: TableEntry, rates: Rates | None
) -> None:
    """Configure an entry's direct meter. With None every packet is green."""
    if table.meter is None:
        return
    if rates is None:
        entry.meter = None
        return
    if entry.meter is None:
        entry.meter = config.pipeline.meters[table.meter.name].make()
    entry.meter.configure(rates)


# -- Indirect meters -----------------------------------------------------------------------------


def plan_meter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `MeterEntry` update."""
    spec = find(config.p4info.meters, message.meter_id, _KIND)
    only_modify(update_type, f"meter '{spec.name}'")
    chosen = indices(f"meter '{spec.name}'", spec.size, message)
    rates = decode_rates(message, f"meter '{spec.name}'")
    cells = config.pipeline.meters[spec.name].cells

    def write() -> None:
        for index in chosen:
            cells[index].configure(rates)

    return write


def query_meters(config: ForwardingConfig, message: Any) -> Query:
    """Query one cell, all cells of a meter, or all indirect meters."""
    refuse_counters(message, "a read")
    return query_cells(
        "meter",
        selected(config.p4info.meters, message.meter_id, _KIND),
        message,
        lambda spec, cell: config.pipeline.meters[spec.name].cells[cell].rates,
        lambda rates, out: encode_rates(rates, out.config),
    )
