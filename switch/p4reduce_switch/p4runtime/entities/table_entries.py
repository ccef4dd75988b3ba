# SPDX-License-Identifier: Apache-2.0
"""Converts table entries between P4Runtime messages and the pipeline's form.

Decoding checks everything P4Runtime 1.4.1 asks of a well-formed entry ("Action Specification"; keys
are in `match_fields.py`). Encoding uses the canonical form, so a read returns an entry as it was
written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4reduce_switch.errors import denied, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.entities import match_fields
from p4reduce_switch.p4runtime.entities.common import find
from p4reduce_switch.p4runtime.p4info import ActionUse, P4Info, P4InfoField, TableSpec, names
from p4reduce_switch.state.tables import MatchValue

_MAX_PRIORITY = (1 << 31) - 1


def find_table(p4info: P4Info, table_id: int) -> TableSpec:
    """Return the table of an id, or raise INVALID_ARGUMENT."""
    return find(p4info.tables, table_id, "table")


# -- Keys ----------------------------------------------------------------------------------------


def decode_match(table: TableSpec, fields: Iterable[Any]) -> tuple[MatchValue, ...]:
    """Return an entry's key, in the order of the table's key."""
    return match_fields.decode(f"table '{table.name}'", table.fields, fields)


def decode_priority(table: TableSpec, priority: int) -> int:
    """Return the entry's priority: positive if the key has ternary, range or optional fields, else
    0."""
    if table.needs_priority:
        if not 0 < priority <= _MAX_PRIORITY:
            raise invalid(
                f"priority {priority} of an entry of table '{table.name}': a table with ternary, "
                f"range or optional fields takes 1 to {_MAX_PRIORITY}, the larger wins"
            )
    elif priority != 0:
        raise invalid(
            f"priority {priority} of an entry of table '{table.name}': it must be 0, "
            "as the key has no ternary, range or optional field"
        )
    return priority


def encode_key(table: TableSpec, match: Iterable[MatchValue], priority: int, message: Any) -> None:
    """Fill `match` and `priority` of a `TableEntry`. "Don't care" fields are omitted."""
    match_fields.encode(table.fields, match, message.match)
    if table.needs_priority:
        message.priority = priority


# -- Actions -------------------------------------------------------------------------------------


def decode_action(
    table: TableSpec, message: Any, *, as_default: bool
) -> tuple[str, tuple[int, ...]]:
    """Return name and arguments of a `TableAction`, in the order of the parameters."""
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(
            f"table '{table.name}' takes an action, but the entry gives {kind or 'nothing'}"
        )
    return decode_table_action(table, message.action, as_default=as_default)


def find_action(table: TableSpec, action_id: int) -> ActionUse:
    """The action of a table, or INVALID_ARGUMENT."""
    use = table.actions.get(action_id)
    if use is None:
        raise invalid(
            f"action_id {action_id:#x} is not an action of table '{table.name}'; "
            f"its actions are {names(u.action.name for u in table.actions.values())}"
        )
    return use


def decode_table_action(
    table: TableSpec, message: Any, *, as_default: bool
) -> tuple[str, tuple[int, ...]]:
    """Return name and arguments of a table's `Action`."""
    use = find_action(table, message.action_id)
    if as_default and not use.as_default:
        raise denied(
            f"action '{use.action.name}' is @tableonly in table '{table.name}': "
            "it cannot be the default action"
        )
    if not as_default and not use.in_entries:
        raise denied(
            f"action '{use.action.name}' is @defaultonly in table '{table.name}': "
            "it cannot be used in an entry"
        )
    where = f"action '{use.action.name}' of table '{table.name}'"
    return use.action.name, _arguments(use.action.params, message.params, where)


def _arguments(
    params: tuple[P4InfoField, ...], messages: Iterable[Any], where: str
) -> tuple[int, ...]:
    known = {param.id: param for param in params}
    values: dict[int, int] = {}
    for message in messages:
        param = known.get(message.param_id)
        if param is None:
            raise invalid(
                f"{where} has no parameter with id {message.param_id}; "
                f"its parameters are {names(f'{p.name} (id {p.id})' for p in params)}"
            )
        if param.id in values:
            raise invalid(f"{where}: parameter '{param.name}' is given more than once")
        about = f"{where}, parameter '{param.name}' (id {param.id})"
        match_fields.check_number(param, about)
        values[param.id] = bytestrings.decode(message.value, param.width, about)
    missing = [param.name for param in params if param.id not in values]
    if missing:
        raise invalid(f"{where}: parameters are missing: {names(missing)}")
    return tuple(values[param.id] for param in params)


def encode_action(p4info: P4Info, name: str, args: Iterable[int], message: Any) -> None:
    """Fill a `TableAction`.

    An action that only the compiler knows (a hidden default) has no id, so it is left out.
    """
    spec = p4info.actions_by_name.get(name)
    if spec is None:
        return
    message.action.action_id = spec.id
    for param, value in zip(spec.params, args, strict=True):
        # The program's own argument may be negative: then these are its bits.
        bits = value & (1 << param.width) - 1
        message.action.params.add(param_id=param.id, value=bytestrings.encode(bits))
