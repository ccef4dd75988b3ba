# SPDX-License-Identifier: Apache-2.0
"""Tables: keys, default actions, initial entries, and the action profiles of indirect tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p4reduce_switch.loader.checksums import check_algorithm, load_calculation
from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.json_values import (
    Json,
    as_hex,
    as_number,
    as_size,
    as_text,
    find,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import at_index
from p4reduce_switch.program.ir import NOWHERE, FieldRef, SourceLocation
from p4reduce_switch.program.limits import MAX_ENTRIES
from p4reduce_switch.program.load_error import LoadError

_NOTHING = ir.Action(-1, "", (), (), NOWHERE)
"""What an indirect table does on a miss, or with an empty group."""


def load_profile(context: LoaderContext, item: Json) -> ir.ActionProfileDecl:
    name = as_text(item["name"], "the name of an action profile")
    source = source_of(item)
    size = as_size(item["max_size"], f"action profile {name}")
    selector = None
    if "selector" in item:
        hashing = item["selector"]
        selector = load_calculation(
            context, {"name": name, "algo": hashing["algo"], "input": hashing["input"]}, source
        )
        check_algorithm(selector, source)
    return ir.ActionProfileDecl(name, size, selector, source)


def load_table(context: LoaderContext, item: Json) -> ir.ApplyTable:
    name = as_text(item["name"], "the name of a table")
    source = source_of(item)
    profile = None
    if item["type"] != "simple":
        profile = find(context.profiles, item["action_profile"], "action profile", source)
        item = _with_no_default(context, item, name, source)
    meter = item.get("direct_meters")
    key = tuple(_key_field(context, field, name, source) for field in item["key"])
    actions = tuple(
        as_number(number, "the id of an action", _NOTHING.id) for number in item["action_ids"]
    )
    names = [find(context.actions, action, "action", source).name for action in actions]
    if len(set(names)) < len(names):
        raise LoadError(f"{source}: table '{name}' has two actions of the same name")
    default = item.get("default_entry")
    if default is None:
        raise LoadError(f"{source}: table '{name}' has no default action")
    entries = _initial_entries(context, item.get("entries", ()), key, name, source)
    if default["action_id"] not in actions:
        raise LoadError(f"{source}: the default action of table '{name}' is not one of its own")
    next_tables = item["next_tables"]
    by_action: dict[int, str | None] | None = None
    if "__HIT__" not in next_tables and "__MISS__" not in next_tables:
        base = item.get("base_default_next")
        by_action = {
            action: next_tables.get(action_name, base)
            for action, action_name in zip(actions, names, strict=True)
        }
    return ir.ApplyTable(
        name=name,
        key=key,
        size=max(item["max_size"], len(entries)),
        actions=actions,
        default_action=default["action_id"],
        default_args=_action_args(
            default,
            context.actions[default["action_id"]],
            f"the default action of '{name}'",
            source,
        ),
        const_default_action=bool(default.get("action_const")),
        has_direct_counter=bool(item["with_counters"]),
        initial_entries=entries,
        next_hit=next_tables.get("__HIT__", item.get("base_default_next")),
        next_miss=next_tables.get("__MISS__", item.get("base_default_next")),
        next_by_action=by_action,
        source=source,
        profile=profile,
        meter=find(context.kept.meters, meter, "meter", source) if meter else None,
        has_idle_timeout=bool(item.get("support_timeout")),
    )


def _with_no_default(
    context: LoaderContext, item: Json, table: str, source: SourceLocation
) -> Json:
    """An indirect table with an action that does nothing as its default: p4c writes none."""
    if item.get("default_entry") is not None:
        raise refusal(f"default action of indirect table '{table}'", source)
    if item.get("entries"):
        raise refusal(f"const entries of indirect table '{table}'", source)
    context.actions[_NOTHING.id] = _NOTHING
    default = {"action_id": _NOTHING.id, "action_const": True, "action_data": []}
    return {**item, "action_ids": [*item["action_ids"], _NOTHING.id], "default_entry": default}


def negative_arguments(root: Json) -> frozenset[tuple[int, int]]:
    """Return action id and parameter number of each negative argument in a table.

    P4Runtime has unsigned values only, but BMv2 takes the program's arguments as they are.
    """
    found = set()
    for pipeline in root["pipelines"]:
        for table in pipeline["tables"]:
            if table["type"] != "simple":
                continue  # which has neither
            given = [entry["action_entry"] for entry in table.get("entries", ())]
            given += [table["default_entry"]] if table.get("default_entry") else []
            for entry in given:
                for number, value in enumerate(entry["action_data"]):
                    if as_hex(value, "an argument") < 0:
                        found.add((entry["action_id"], number))
    return frozenset(found)


def _action_args(
    entry: Json, action: ir.Action, what: str, source: SourceLocation
) -> tuple[int, ...]:
    args = tuple(as_hex(value, "an argument") for value in entry["action_data"])
    if len(args) != len(action.params):
        raise LoadError(
            f"{source}: {what} gives {len(args)} arguments to '{action.name}', which takes "
            f"{len(action.params)}"
        )
    return args


# -- Keys ------------------------------------------------------------------------------------------


def _key_field(
    context: LoaderContext, item: Json, table: str, source: SourceLocation
) -> ir.KeyField:
    kind = item["match_type"]
    if kind == "valid":
        valid = ir.Valid(context.headers.header(item["target"], source), is_bool=False)
        return ir.KeyField(item.get("name", valid.header), "exact", valid, 1, None)
    if kind not in ("exact", "lpm", "ternary", "range", "optional"):
        raise refusal(f"match kind '{kind}' of table '{table}'", source)
    value, width = _key_value(context, item["target"], table, source)
    mask = as_hex(item["mask"], "a mask") if item.get("mask") is not None else None
    name = item["name"] if "name" in item else ".".join(item["target"])
    return ir.KeyField(name, kind, value, width, mask)


def _key_value(
    context: LoaderContext, target: Any, table: str, source: SourceLocation
) -> tuple[ir.Expr, int]:
    """What a key field looks for, and its width.

    As in BMv2 it is the bits of a signed field, also in ranges. `target` is a header's name and a
    field's, with an expression in their place for an element of a stack at a run-time index.
    """
    headers = context.headers
    if isinstance(target, list):
        place, name = target
        element = context.expressions.element(place, source)
        if element is None or name == "$valid$":
            value = context.expressions.value({"type": "field", "value": target}, source)
            if isinstance(value, FieldRef):
                headers.check_fixed(f"key of table '{table}'", value, source)
                return _bits(context, value), value.width
            return value, 1
        raise refusal(f"key of table '{table}'", source)
    element_field = context.expressions.element_field(target, source)
    if element_field is None:
        raise refusal(f"key of table '{table}'", source)
    stack, index, number = element_field

    def field(header: str) -> ir.Expr:
        value = headers.by_name[header].fields[number]
        return _if_valid(header, _bits(context, value))

    first = headers.by_name[stack.elements[0]].fields[number]
    headers.check_fixed(f"key of table '{table}'", first, source)
    return at_index(stack, index, field, ir.Const(0)), first.width


def _bits(context: LoaderContext, field: FieldRef) -> ir.Expr:
    if not field.signed:
        return field
    bits = ir.Binary("&", field, ir.Const((1 << field.width) - 1))
    is_metadata = context.headers.by_name[field.header].is_metadata
    return bits if is_metadata else _if_valid(field.header, bits)


def _if_valid(header: str, value: ir.Expr) -> ir.Expr:
    """The fields of an invalid header are zero in keys (and only there)."""
    return ir.Ternary(ir.Valid(header, is_bool=True), value, ir.Const(0))


# -- Initial entries -------------------------------------------------------------------------------


def _initial_entries(
    context: LoaderContext,
    items: Sequence[Json],
    key: Sequence[ir.KeyField],
    table: str,
    source: SourceLocation,
) -> tuple[ir.InitialEntry, ...]:
    # In BMv2 the smaller number wins, in P4Runtime the larger. p4c numbers 1..n by default;
    # turned over that is n..1, which is also what its P4Info has.
    priorities = [
        as_number(item.get("priority", 0), f"a priority in table {table}", 0, MAX_ENTRIES)
        for item in items
    ]
    highest = max(priorities, default=0)
    entries = []
    for item, priority in zip(items, priorities, strict=True):
        where = source_of(item, source)
        if len(item["match_key"]) != len(key):
            raise LoadError(f"{where}: an entry of table '{table}' has another key")
        match = tuple(
            _entry_match(field, value) for field, value in zip(key, item["match_key"], strict=True)
        )
        action = find(context.actions, item["action_entry"]["action_id"], "action", where)
        what = f"an entry of table '{table}'"
        args = _action_args(item["action_entry"], action, what, where)
        entries.append(ir.InitialEntry(match, highest + 1 - priority, action.id, args))
    return tuple(entries)


def _entry_match(field: ir.KeyField, item: Json) -> int | tuple[int, int]:
    def bits(text: str) -> int:
        # p4c writes the numbers of signed fields with their sign.
        value = as_hex(text, "a key")
        return value if value >= 0 else value & (1 << field.width) - 1

    if field.kind == "exact":
        return int(item["key"]) if isinstance(item["key"], bool) else bits(item["key"])
    if field.kind == "lpm":
        return bits(item["key"]), as_number(item["prefix_length"], "the length of a prefix")
    if field.kind == "range":
        return bits(item["start"]), bits(item["end"])
    return bits(item["key"]), as_hex(item["mask"], "a mask")
