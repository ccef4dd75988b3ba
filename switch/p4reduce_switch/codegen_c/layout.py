# SPDX-License-Identifier: Apache-2.0
"""How a header is taken out of a frame and put together again.

It goes unit by unit (`ir.Header.units`), and from a varbit field on bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.values import kind_of_width, limbs_of
from p4reduce_switch.program.ir import FieldRef, HeaderInstance, Unit, Varbit


def load_header(context: CContext, header: HeaderInstance, at: str) -> None:
    """Set a header's variables from the bytes at the pointer `at`."""
    wanted = set(context.variables(header))
    offset = 0
    for number, field in enumerate(header.fields):
        if header.varbit is not None and field == header.varbit.field:
            if field in wanted:
                _load_varbit(context, header.varbit, at, offset)
            if wanted.intersection(header.fields[number + 1 :]):
                behind = context.function.temporary("from")
                length = context.bits_of(field)
                context.writer.line(f"const uint8_t *const {behind} = {at} + {length} / 8;")
                at = behind
            continue
        if field in wanted:
            load_bits(context, field, at, offset, field.width)
        offset += field.width


def _load_varbit(context: CContext, varbit: Varbit, at: str, offset: int) -> None:
    """Set a varbit field to as many bits as its length says, `offset` bits after `at`."""
    writer, function, field = context.writer, context.function, varbit.field
    limbs, name = limbs_of(field.width), context.field(field)
    kind = kind_of_width(field.width)
    to = name
    if kind != "wide":
        to = function.temporary("raw")
        function.take_stack(limbs)
        writer.line(f"uint64_t {to}[{limbs}];")
    pointer = f"{at} + {offset // 8}" if offset >= 8 else at
    length = context.bits_of(field)
    writer.line(f"p4r_varbit_load({to}, {limbs}, {pointer}, {offset % 8}, {length});")
    if kind == "wide":
        function.flow.write(field)
    elif kind == "u64":
        writer.line(f"{name} = {to}[0];")
    else:
        writer.line(f"{name} = (p4r_u128){to}[1] << 64 | {to}[0];")


def load_bits(context: CContext, field: FieldRef, at: str, offset: int, width: int) -> None:
    """Set a field from `width` bits, `offset` bits after the pointer `at`."""
    first, end = offset // 8, (offset + width + 7) // 8
    size, below = end - first, 8 * end - offset - width
    name = context.field(field)
    pointer = f"{at} + {first}" if first else at
    kind = kind_of_width(field.width, field.signed)
    if kind == "wide" or width > 128 or size > 16:
        _load_wide(context, field, pointer, size, below, width)
        return
    cut = field.signed or width > field.width
    if size <= 8:
        text = f"p4r_load({pointer}, {size})" if size > 1 else f"{_byte(at, first)}"
        text = f"{text} >> {below}" if below else text
        if width + below < 8 * size:
            text = (
                f"({text}) & {(1 << width) - 1:#x}" if below else f"{text} & {(1 << width) - 1:#x}"
            )
    else:
        text = f"p4r_load128({pointer}, {size})"
        if below or width + below < 8 * size:
            text = f"p4r_shr128({text} << {128 - below - width}, {128 - width})"
    if cut:
        if kind in ("u64", "i64"):
            text = f"(uint64_t)({text})"
            text = (
                f"p4r_signed64({text}, {field.width})"
                if field.signed
                else f"{text} & {(1 << field.width) - 1:#x}"
            )
        elif field.signed:
            text = f"p4r_signed128({text}, {field.width})"
        else:
            text = f"p4r_shr128(({text}) << {128 - field.width}, {128 - field.width})"
    elif kind in ("u64", "i64") and size > 8:
        text = f"(uint64_t)({text})"
    context.writer.line(f"{name} = {text};")


def _byte(at: str, number: int) -> str:
    return f"(uint64_t){at}[{number}]" if at.isidentifier() else f"(uint64_t)({at})[{number}]"


def _load_wide(
    context: CContext, field: FieldRef, pointer: str, size: int, below: int, width: int
) -> None:
    """A field of more than 128 bits, or one from that many."""
    writer, function = context.writer, context.function
    name = context.field(field)
    kind = kind_of_width(field.width, field.signed)
    limbs = limbs_of(field.width)
    whole = limbs_of(8 * size)
    if kind == "wide" and not below and whole == limbs:
        writer.line(f"p4r_wide_load({name}, {limbs}, {pointer}, {size});")
    else:
        raw = function.temporary("raw")
        function.take_stack(2 * whole)
        writer.line(f"uint64_t {raw}[{whole}];")
        writer.line(f"p4r_wide_load({raw}, {whole}, {pointer}, {size});")
        if below:
            shifted = function.temporary("raw")
            writer.line(f"uint64_t {shifted}[{whole}];")
            writer.line(f"p4r_wide_shr({shifted}, {raw}, {whole}, {below}, false);")
            raw = shifted
        writer.line(f"p4r_wide_cut({raw}, {whole}, {min(width, field.width)});")
        if kind == "wide" and whole >= limbs:
            writer.line(f"p4r_wide_copy({name}, {raw}, {limbs});")
        elif kind == "wide":
            writer.line(f"p4r_wide_extend({name}, {limbs}, {raw}, {whole}, false);")
        else:
            text = f"(p4r_u128){raw}[1] << 64 | {raw}[0]"
            if field.width <= 64:
                text = f"{raw}[0]"
            if field.signed:
                bits = 64 if field.width <= 64 else 128
                text = f"p4r_signed{bits}({text}, {field.width})"
            writer.line(f"{name} = {text};")
            return
    if field.signed:
        writer.line(f"p4r_wide_signed({name}, {limbs}, {field.width});")
    elif (8 * size - below) % 64 and width < 8 * size - below:
        writer.line(f"p4r_wide_cut({name}, {limbs}, {min(width, field.width)});")
    function.flow.write(field)


def store_header(context: CContext, header: HeaderInstance, to: str) -> None:
    """Pack the header's fields at the pointer `to`."""
    done = 0
    for unit in header.units:
        pointer = f"{to} + {unit.offset}" if unit.offset else to
        _store_unit(context, unit, pointer)
        done += len(unit.fields)
    if header.varbit is not None:
        offset = sum(field.width for field in header.fields[:done]) // 8
        pointer = f"{to} + {offset}" if offset else to
        _store_bits(context, header.fields[done:], pointer)


def _store_unit(context: CContext, unit: Unit, pointer: str) -> None:
    writer = context.writer
    first = unit.fields[0]
    if len(unit.fields) == 1 and kind_of_width(first.width) == "wide":
        context.function.flow.read(first)
        writer.line(f"p4r_wide_store({pointer}, {context.field(first)}, {unit.size});")
        return
    if unit.size <= 16:
        kind = "uint64_t" if unit.size <= 8 else "p4r_u128"
        below = 8 * unit.size
        parts = []
        for field in unit.fields:
            below -= field.width
            text = context.field(field)
            if field.signed:
                text = _unsigned(field, text, kind)
            elif kind == "p4r_u128":
                text = f"(p4r_u128){text}"
            parts.append(f"{text} << {below}" if below else text)
        suffix = "" if unit.size <= 8 else "128"
        writer.line(f"p4r_store{suffix}({pointer}, {' | '.join(parts)}, {unit.size});")
        return
    _store_bits(context, unit.fields, pointer)


def _store_bits(context: CContext, fields: Iterable[FieldRef], pointer: str) -> None:
    bits = context.function.temporary("bits")
    context.writer.line(f"struct p4r_bits {bits} = {{.bytes = {pointer}}};")
    for field in fields:
        put_field(context, bits, field)


def _unsigned(field: FieldRef, text: str, kind: str) -> str:
    if field.width == 64:
        # By way of 64 bits: a negative number would fill those above it.
        return f"({kind})(uint64_t){text}"
    if field.width == 128:
        return f"({kind}){text}"
    if field.width < 64:
        return f"(({kind}){text} & {(1 << field.width) - 1:#x})"
    shift = 128 - field.width
    return f"p4r_shr128((p4r_u128){text} << {shift}, {shift})"


def put_field(context: CContext, bits: str, field: FieldRef) -> None:
    """Append a field to a string of bits."""
    name, width = context.field(field), context.bits_of(field)
    kind = kind_of_width(field.width)
    if kind == "wide":
        context.function.flow.read(field)
        context.writer.line(f"p4r_put_wide(&{bits}, {name}, {width});")
    elif kind == "u128":
        context.writer.line(f"p4r_put128(&{bits}, (p4r_u128){name}, {width});")
    else:
        context.writer.line(f"p4r_put(&{bits}, (uint64_t){name}, {width});")
