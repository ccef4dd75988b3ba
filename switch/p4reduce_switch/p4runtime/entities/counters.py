# SPDX-License-Identifier: Apache-2.0
"""Counters by P4Runtime ("CounterEntry & DirectCounterEntry"): the indirect ones."""

from __future__ import annotations

from typing import Any

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import (
    find,
    indices,
    only_modify,
    query_cells,
    selected,
)
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query

_KIND = "indirect counter"


def check_counter_data(data: Any) -> None:
    """Refuse negative counts."""
    for field in ("packet_count", "byte_count"):
        value = getattr(data, field)
        if value < 0:
            raise invalid(f"{field} is {value}; it must not be negative")


def encode_counts(packets: int, size: int, out: Any) -> None:
    """Fill a `CounterData`. Counts wrap at 63 bits."""
    out.packet_count = packets & ((1 << 63) - 1)
    out.byte_count = size & ((1 << 63) - 1)
    out.SetInParent()  # a counter of zero is still a counter


def plan_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `CounterEntry` update."""
    spec = find(config.p4info.counters, message.counter_id, _KIND)
    only_modify(update_type, f"counter '{spec.name}'")
    check_counter_data(message.data)
    cells = indices(f"counter '{spec.name}'", spec.size, message)
    target = config.pipeline.counters[spec.name]
    packets, size = message.data.packet_count, message.data.byte_count
    has_data = message.HasField("data")

    def write() -> None:
        if has_data:
            for cell in cells:
                target.write(cell, packets, size)

    return write


def query_counters(config: ForwardingConfig, message: Any) -> Query:
    """Query one cell, all cells of a counter, or all counters."""
    return query_cells(
        "counter",
        selected(config.p4info.counters, message.counter_id, _KIND),
        message,
        lambda spec, cell: config.pipeline.counters[spec.name].read(cell),
        lambda counts, out: encode_counts(counts[0], counts[1], out.data),
    )
