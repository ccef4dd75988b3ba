# SPDX-License-Identifier: Apache-2.0
"""Table entries between P4Runtime messages and the pipeline's own form.

Decoding checks everything P4Runtime 1.4.1 asks of a well-formed entry ("Match Format", "Action
Specification"); encoding gives the canonical form, so that an entry is read back as it was written.
BMv2's server and the spec's entity sections agree that a bad byte string in a key or a parameter is
INVALID_ARGUMENT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.bytestrings import format_value
from p4reduce_switch.p4runtime.p4info import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from p4reduce_switch.p4runtime.p4info import Field, MatchField, P4Info, TableSpec
    from p4reduce_switch.state.tables import MatchValue

__all__ = [
    "UNSUPPORTED",
    "decode_action",
    "decode_match",
    "decode_priority",
    "decode_table_action",
    "encode_action",
    "encode_key",
    "find_table",
]

_MAX_PRIORITY = (1 << 31) - 1

UNSUPPORTED = {
    "extern_entry": "externs are not supported",
}
"""Kinds of entities that P4Runtime knows and this server does not."""


def find_table(p4info: P4Info, table_id: int) -> TableSpec:
    """The table of an id, or INVALID_ARGUMENT."""
    table = p4info.tables.get(table_id)
    if table is None:
        raise invalid(
            f"table_id {table_id:#x} is not a table of this pipeline; "
            f"its tables are {names(t.name for t in p4info.tables.values())}"
        )
    return table


# -- Keys ----------------------------------------------------------------------------------------


def decode_match(table: TableSpec, fields: Iterable[Any]) -> tuple[MatchValue, ...]:
    """The key of an entry, in the order of the table's key.

    Omitted fields are "don't care": range the full range, all other kinds (0, 0). p4c makes an
    optional field a ternary one whose mask is all or nothing, so that is what it becomes here.
    """
    given: dict[int, Any] = {}
    known = {field.id: field for field in table.fields}
    for message in fields:
        if message.field_id not in known:
            raise invalid(
                f"table '{table.name}' has no match field with id {message.field_id}; "
                f"its key is {names(f'{f.name} (id {f.id})' for f in table.fields)}"
            )
        if message.field_id in given:
            raise invalid(
                f"match field '{known[message.field_id].name}' (id {message.field_id}) of table "
                f"'{table.name}' is given more than once"
            )
        given[message.field_id] = message
    return tuple(_match_value(table, field, given.get(field.id)) for field in table.fields)


def _match_value(table: TableSpec, field: MatchField, message: Any | None) -> MatchValue:
    where = f"match field '{field.name}' (id {field.id}) of table '{table.name}'"
    if message is None:
        if field.kind == "exact":
            raise invalid(f"{where} is missing; an exact field must always be given")
        return _dont_care(field)
    _check_number(field, where)
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind:
        raise invalid(f"{where} is of kind {field.kind}, but the entry gives {kind or 'nothing'}")
    value = getattr(message, kind)
    if kind == "exact":
        return _integer(value.value, field.width, where)
    if kind == "lpm":
        return _lpm(value, field.width, where)
    if kind == "ternary":
        return _ternary(value, field.width, where)
    if kind == "range":
        return _range(value, field.width, where)
    return _integer(value.value, field.width, where), (1 << field.width) - 1


def _dont_care(field: MatchField) -> MatchValue:
    if field.kind == "range":
        return (0, (1 << field.width) - 1)
    return (0, 0)


def _check_number(field: Field | MatchField, where: str) -> None:
    """Refuse a string: there is nothing here that says what number stands for which."""
    if field.translation == "string":
        raise P4RuntimeError(
            code_pb2.UNIMPLEMENTED,
            f"{where} is translated to strings (p4runtime_translation), which is not supported",
        )


def _integer(data: bytes, width: int, where: str) -> int:
    try:
        return bytestrings.decode(data, width)
    except bytestrings.BytestringError as error:
        raise invalid(f"{where}: {error}") from None


def _lpm(message: Any, width: int, where: str) -> tuple[int, int]:
    value = _integer(message.value, width, where)
    length = message.prefix_len
    if length == 0:
        raise invalid(f"{where}: prefix length 0 matches everything; omit the field instead")
    if not 0 < length <= width:
        raise invalid(f"{where}: prefix length {length} is not within 1 to {width}")
    host_bits = value & ((1 << (width - length)) - 1)
    if host_bits:
        raise invalid(
            f"{where}: {format_value(value)} has bits below its prefix of {length} bits; "
            f"{format_value(value - host_bits)} would be right"
        )
    return value, length


def _ternary(message: Any, width: int, where: str) -> tuple[int, int]:
    value = _integer(message.value, width, where)
    mask = _integer(message.mask, width, f"{where}, mask")
    if mask == 0:
        raise invalid(f"{where}: mask 0 matches everything; omit the field instead")
    if value & ~mask:
        raise invalid(
            f"{where}: {format_value(value)} has bits outside its mask {format_value(mask)}; "
            f"{format_value(value & mask)} would be right"
        )
    return value, mask


def _range(message: Any, width: int, where: str) -> tuple[int, int]:
    low = _integer(message.low, width, f"{where}, low")
    high = _integer(message.high, width, f"{where}, high")
    if low > high:
        raise invalid(
            f"{where}: low {format_value(low)} is above high {format_value(high)}; "
            "low must not exceed high"
        )
    if low == 0 and high == (1 << width) - 1:
        raise invalid(f"{where}: the range holds every value; omit the field instead")
    return low, high


def decode_priority(table: TableSpec, priority: int) -> int:
    """The entry's priority: positive if the key has ternary, range or optional fields, else 0."""
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
    """Fill `match` and `priority` of a `TableEntry`; "don't care" fields are omitted."""
    for field, value in zip(table.fields, match, strict=True):
        if field.kind != "exact" and value == _dont_care(field):
            continue
        out = message.match.add()
        out.field_id = field.id
        if field.kind == "lpm":
            prefix, length = _pair(value)
            out.lpm.value = bytestrings.encode(prefix)
            out.lpm.prefix_len = length
        elif field.kind == "ternary":
            bits, mask = _pair(value)
            out.ternary.value = bytestrings.encode(bits)
            out.ternary.mask = bytestrings.encode(mask)
        elif field.kind == "range":
            low, high = _pair(value)
            out.range.low = bytestrings.encode(low)
            out.range.high = bytestrings.encode(high)
        elif field.kind == "optional":
            out.optional.value = bytestrings.encode(_pair(value)[0])
        else:
            out.exact.value = bytestrings.encode(_single(value))
    if table.needs_priority:
        message.priority = priority


def _pair(value: MatchValue) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return value


def _single(value: MatchValue) -> int:
    assert isinstance(value, int)
    return value


# -- Actions -------------------------------------------------------------------------------------


def decode_action(
    table: TableSpec, message: Any, *, as_default: bool
) -> tuple[str, tuple[int, ...]]:
    """Name and arguments of a `TableAction`, the arguments in the order of the parameters."""
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(
            f"table '{table.name}' takes an action, but the entry gives {kind or 'nothing'}"
        )
    return decode_table_action(table, message.action, as_default=as_default)


def decode_table_action(
    table: TableSpec, message: Any, *, as_default: bool
) -> tuple[str, tuple[int, ...]]:
    """Name and arguments of an `Action` of a table."""
    use = table.actions.get(message.action_id)
    if use is None:
        raise invalid(
            f"action_id {message.action_id:#x} is not an action of table '{table.name}'; "
            f"its actions are {names(u.action.name for u in table.actions.values())}"
        )
    if as_default and not use.as_default:
        raise P4RuntimeError(
            code_pb2.PERMISSION_DENIED,
            f"action '{use.action.name}' is @tableonly in table '{table.name}': "
            "it cannot be the default action",
        )
    if not as_default and not use.in_entries:
        raise P4RuntimeError(
            code_pb2.PERMISSION_DENIED,
            f"action '{use.action.name}' is @defaultonly in table '{table.name}': "
            "it cannot be used in an entry",
        )
    where = f"action '{use.action.name}' of table '{table.name}'"
    return use.action.name, _arguments(use.action.params, message.params, where)


def _arguments(params: tuple[Field, ...], messages: Iterable[Any], where: str) -> tuple[int, ...]:
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
        _check_number(param, f"{where}, parameter '{param.name}' (id {param.id})")
        values[param.id] = _integer(
            message.value, param.width, f"{where}, parameter '{param.name}' (id {param.id})"
        )
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
