# SPDX-License-Identifier: Apache-2.0
"""Counters by P4Runtime ("CounterEntry & DirectCounterEntry"): the indirect ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.entities.cells import indices, only_modify
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import names

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import CounterSpec

__all__ = ["check_counter_data", "encode_counts", "plan_counter", "query_counters"]


def check_counter_data(data: Any) -> None:
    """Refuse negative counts."""
    for field in ("packet_count", "byte_count"):
        value = getattr(data, field)
        if value < 0:
            raise invalid(f"{field} is {value}; it must not be negative")


def encode_counts(packets: int, size: int, out: Any) -> None:
    """Fill a `CounterData`; a count wraps as one of 63 bits would."""
    out.packet_count = packets & ((1 << 63) - 1)
    out.byte_count = size & ((1 << 63) - 1)
    out.SetInParent()  # a counter of zero is still a counter


def plan_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `CounterEntry`."""
    spec = _find(config, message.counter_id)
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


class _Row(NamedTuple):
    counter: CounterSpec
    cell: int
    packet_count: int
    byte_count: int


def query_counters(config: ForwardingConfig, message: Any) -> Query:
    """One cell, all cells of a counter, or all of all counters."""
    wanted = message.counter_id
    specs = [_find(config, wanted)] if wanted else config.p4info.counters.values()
    ranges = [(spec, indices(f"counter '{spec.name}'", spec.size, message)) for spec in specs]

    def snapshot() -> list[_Row]:
        return [
            _Row(spec, cell, *config.pipeline.counters[spec.name].read(cell))
            for spec, cells in ranges
            for cell in cells
        ]

    return Query(snapshot, _encode)


def _encode(row: _Row) -> Any:
    entity = p4runtime_pb2.Entity()
    out = entity.counter_entry
    out.counter_id = row.counter.id
    out.index.index = row.cell
    encode_counts(row.packet_count, row.byte_count, out.data)
    return entity


def _find(config: ForwardingConfig, counter_id: int) -> CounterSpec:
    spec = config.p4info.counters.get(counter_id)
    if spec is None:
        raise invalid(
            f"counter_id {counter_id:#x} is not an indirect counter of this pipeline; "
            f"its counters are {names(c.name for c in config.p4info.counters.values())}"
        )
    return spec
