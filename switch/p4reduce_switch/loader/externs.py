# SPDX-License-Identifier: Apache-2.0
"""State and messages of a program beside its packets.

Parser value sets, counters, meters and registers; digests, and the field lists of packets that are
cloned, resubmitted or recirculated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.json_values import (
    Json,
    as_flag,
    as_number,
    as_size,
    as_text,
    as_width,
    find,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MAX_STATE_BYTES
from p4reduce_switch.program.load_error import LoadError

_LIST_TYPE = re.compile(r"tuple_\d+")
"""What p4c calls the struct that it makes of a list's type."""


def load_state(context: LoaderContext, root: Json) -> None:
    """Load value sets, counters, meters, registers, digests and field lists."""
    _load_value_sets(context, root.get("parse_vsets", ()))
    # Direct counters and meters are as many as their table has entries.
    sizes = {
        table["name"]: as_size(table["max_size"], f"table {table['name']}")
        for pipeline in root["pipelines"]
        for table in pipeline["tables"]
    }
    _load_counters(context, root.get("counter_arrays", ()), sizes)
    _load_meters(context, root.get("meter_arrays", ()), sizes)
    _load_registers(context, root.get("register_arrays", ()))
    _check_room(context)
    _load_digests(context, root.get("learn_lists", ()))
    for item in root.get("field_lists", ()):
        context.field_lists[item["id"]] = _field_list(context, item)


def _load_value_sets(context: LoaderContext, items: Iterable[Json]) -> None:
    for item in items:
        name = as_text(item["name"], "the name of a parser value set")
        size = as_size(item["max_size"], f"parser value set {name}")
        context.kept.value_sets[name] = ir.ValueSetDecl(name, (), size)


def _load_counters(
    context: LoaderContext, items: Iterable[Json], table_sizes: Mapping[str, int]
) -> None:
    for item in items:
        name = as_text(item["name"], "the name of a counter")
        is_direct = as_flag(item["is_direct"], f"is_direct of counter {name}")
        table = item["binding"] if is_direct else None
        if table is None:
            size = as_number(item["size"], f"the size of counter {name}")
        else:
            size = find(table_sizes, table, "table", source_of(item))
        context.kept.counters[name] = ir.CounterArray(name, size, table)


def _load_meters(
    context: LoaderContext, items: Iterable[Json], table_sizes: Mapping[str, int]
) -> None:
    for item in items:
        name = as_text(item["name"], "the name of a meter")
        source = source_of(item)
        if item["rate_count"] != 2:
            raise refusal(f"meter '{name}' of {item['rate_count']} rates", source)
        table, target = None, None
        if as_flag(item["is_direct"], f"is_direct of meter {name}"):
            table = item["binding"]
            size = find(table_sizes, table, "table", source)
            target = context.headers.field(
                item["result_target"][0], item["result_target"][1], source
            )
            context.headers.check_fixed(f"result of meter '{name}'", target, source)
        else:
            size = as_number(item["size"], f"the size of meter {name}")
        in_bytes = item["type"] == "bytes"
        context.kept.meters[name] = ir.MeterArrayDecl(name, size, in_bytes, table, target)


def _load_registers(context: LoaderContext, items: Iterable[Json]) -> None:
    for item in items:
        name = as_text(item["name"], "the name of a register")
        width = as_width(item["bitwidth"], f"register {name}")
        size = as_number(item["size"], f"the size of register {name}")
        context.kept.registers[name] = ir.RegisterArray(name, width, size)


def _check_room(context: LoaderContext) -> None:
    """Refuse more state than there is room for: cells are made when the program is loaded."""
    cells = [
        *(
            (f"counter {c.name}", c.size, 16)
            for c in context.kept.counters.values()
            if c.table is None
        ),
        *(
            (f"meter {m.name}", m.size, 128)
            for m in context.kept.meters.values()
            if m.table is None
        ),
        *(
            (f"register {r.name}", r.size, 8 + r.width // 8)
            for r in context.kept.registers.values()
        ),
    ]
    total = 0
    for what, size, cell_bytes in cells:
        total += size * cell_bytes
        if total > MAX_STATE_BYTES:
            raise LoadError(
                f"the size of {what} is {size}; counters, meters and registers of more than "
                f"{MAX_STATE_BYTES >> 20} MiB together are not supported"
            )


def _load_digests(context: LoaderContext, items: Iterable[Json]) -> None:
    for item in items:
        name = as_text(item["name"], "the name of a digest")
        complaint = f"digest '{name}' of a value that is not a field"
        fields = tuple(
            context.expressions.field(part, source_of(item), complaint) for part in item["elements"]
        )
        for field in fields:
            context.headers.check_fixed(f"digest '{name}'", field, source_of(item))
        number = as_number(item["id"], f"the id of digest {name}", 1)
        if _LIST_TYPE.fullmatch(name):
            # Lists of the same type are digests of their own.
            name = f"{name}#{number}"
        if name in context.kept.digests:
            raise refusal(f"digest '{name}' at several places", source_of(item))
        context.kept.digests[name] = ir.DigestDecl(number, name, fields)


def _field_list(context: LoaderContext, item: Json) -> ir.FieldList:
    name, source = item["name"], context.mentions.of_field_list(item["id"])
    complaint = f"field list '{name}' with a field that is not metadata"
    fields = []
    for part in item["elements"]:
        if part["type"] == "field" and part["value"][1] == "<null>":
            # So p4c writes an annotated header or struct.
            raise refusal(complaint, source)
        field = context.expressions.field(part, source, complaint)
        if not context.headers.by_name[field.header].is_metadata:
            raise refusal(complaint, source)
        context.headers.check_fixed(f"field list '{name}'", field, source)
        if field.header == "standard_metadata":
            raise refusal(
                f"field list '{name}' with {field}, which is not your own metadata,", source
            )
        fields.append(field)
    return ir.FieldList(tuple(fields))
