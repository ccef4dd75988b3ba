# SPDX-License-Identifier: Apache-2.0
"""Converts matches between P4Runtime's `FieldMatch` and the pipeline's form.

Keys of table entries and members of value sets follow the same rules (P4Runtime 1.4.1, "Match
Format"). Encoding gives the canonical form, so that a match is read back as it was written. BMv2's
server and the spec's entity sections agree that a bad byte string is INVALID_ARGUMENT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from p4reduce_switch.errors import invalid, unsupported
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.bytestrings import format_value
from p4reduce_switch.p4runtime.p4info import MatchField, P4InfoField, names
from p4reduce_switch.state.tables import MatchValue


def decode(
    owner: str, fields: Sequence[MatchField], messages: Iterable[Any]
) -> tuple[MatchValue, ...]:
    """Return a match, in the order of `fields`. `owner` is what has these fields, for messages.

    Omitted fields are "don't care": range the full range, all other kinds (0, 0). p4c makes an
    optional field a ternary one whose mask is all or nothing, and so does this.
    """
    given: dict[int, Any] = {}
    known = {field.id: field for field in fields}
    for message in messages:
        if message.field_id not in known:
            raise invalid(
                f"{owner} has no match field with id {message.field_id}; "
                f"its key is {names(f'{f.name} (id {f.id})' for f in fields)}"
            )
        if message.field_id in given:
            raise invalid(
                f"match field '{known[message.field_id].name}' (id {message.field_id}) of {owner} "
                "is given more than once"
            )
        given[message.field_id] = message
    return tuple(_match_value(owner, field, given.get(field.id)) for field in fields)


def _match_value(owner: str, field: MatchField, message: Any | None) -> MatchValue:
    where = f"match field '{field.name}' (id {field.id}) of {owner}"
    if message is None:
        if field.kind == "exact":
            raise invalid(f"{where} is missing; an exact field must always be given")
        return _dont_care(field)
    check_number(field, where)
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind:
        raise invalid(f"{where} is of kind {field.kind}, but the entry gives {kind or 'nothing'}")
    value = getattr(message, kind)
    if kind == "exact":
        return bytestrings.decode(value.value, field.width, where)
    if kind == "lpm":
        return _lpm(value, field.width, where)
    if kind == "ternary":
        return _ternary(value, field.width, where)
    if kind == "range":
        return _range(value, field.width, where)
    return bytestrings.decode(value.value, field.width, where), (1 << field.width) - 1


def _dont_care(field: MatchField) -> MatchValue:
    if field.kind == "range":
        return (0, (1 << field.width) - 1)
    return (0, 0)


def check_number(field: P4InfoField | MatchField, where: str) -> None:
    """Refuse a string, because no translation from strings to numbers is known."""
    if field.translation == "string":
        raise unsupported(
            f"{where} is translated to strings (p4runtime_translation), which is not supported"
        )


def _lpm(message: Any, width: int, where: str) -> tuple[int, int]:
    value = bytestrings.decode(message.value, width, where)
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
    value = bytestrings.decode(message.value, width, where)
    mask = bytestrings.decode(message.mask, width, f"{where}, mask")
    if mask == 0:
        raise invalid(f"{where}: mask 0 matches everything; omit the field instead")
    if value & ~mask:
        raise invalid(
            f"{where}: {format_value(value)} has bits outside its mask {format_value(mask)}; "
            f"{format_value(value & mask)} would be right"
        )
    return value, mask


def _range(message: Any, width: int, where: str) -> tuple[int, int]:
    low = bytestrings.decode(message.low, width, f"{where}, low")
    high = bytestrings.decode(message.high, width, f"{where}, high")
    if low > high:
        raise invalid(
            f"{where}: low {format_value(low)} is above high {format_value(high)}; "
            "low must not exceed high"
        )
    if low == 0 and high == (1 << width) - 1:
        raise invalid(f"{where}: the range holds every value; omit the field instead")
    return low, high


def encode(fields: Sequence[MatchField], match: Iterable[MatchValue], messages: Any) -> None:
    """Add a match to a repeated field of `FieldMatch`. "Don't care" fields are omitted."""
    for field, value in zip(fields, match, strict=True):
        if field.kind != "exact" and value == _dont_care(field):
            continue
        out = messages.add()
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


def _pair(value: MatchValue) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return value


def _single(value: MatchValue) -> int:
    assert isinstance(value, int)
    return value
