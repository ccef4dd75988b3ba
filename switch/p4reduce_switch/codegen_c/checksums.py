# SPDX-License-Identifier: Apache-2.0
"""Checksums and hashes as C source.

The Internet checksum needs no 16-bit words: a one's complement sum is a sum modulo 65535, where
2**16 = 1. So fields are added as they are, shifted by their bit offset modulo 16.
"""

from __future__ import annotations

from contextlib import nullcontext

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.layout import put_field
from p4reduce_switch.codegen_c.values import Value, kind_of_width, limbs_of, literal, make
from p4reduce_switch.program import ir
from p4reduce_switch.program.hashes import BITS, C_NAMES
from p4reduce_switch.program.ir import FieldRef

Payload = tuple[str, str]
"""Where the rest of the frame begins, and how many bytes it has."""

_SCRATCH_BYTES = 1 << 17


def write_verify(context: CContext, expressions: CExpressions) -> None:
    """Set `checksum_error` if a checksum is wrong. Invalid headers are not verified."""
    error = context.live_field("checksum_error")
    if error is None:
        return
    for checksum in context.program.verify:
        with context.writer.block(f"if ({_guard(context, expressions, checksum)})"):
            if context.usage.is_raw_verified(checksum):
                wrong = _raw_mismatch(context, checksum)
            else:
                value = _value(context, checksum, ("frame + at", "size - at"))
                target = expressions.field(checksum.target)
                wrong = expressions.compare("!=", value, target)
            with context.writer.block(f"if ({wrong})"):
                context.writer.line(f"{context.field(error)} = 1;")


def write_update(context: CContext, expressions: CExpressions) -> None:
    """Compute the checksums of the headers that leave."""
    for checksum in context.program.update:
        if not context.is_live(checksum.target):
            continue
        with context.optional(_guard(context, expressions, checksum)):
            value = _value(context, checksum, ("payload", "payload_size"))
            target = checksum.target
            value = expressions.fit(value, target.width, target.signed)
            name = context.field(target)
            kind = kind_of_width(target.width, target.signed)
            if kind == "wide":
                limbs = limbs_of(target.width)
                text = expressions.wide.text(value, limbs).replace("§", "i")
                context.writer.limbs(limbs, f"{name}[i] = {text};")
                context.function.flow.write(target)
            else:
                context.writer.line(f"{name} = {expressions.scalar(value, kind)};")


def write_hash(context: CContext, calculation: ir.Calculation, payload: Payload | None) -> Value:
    """Write the statements that collect the input and compute the hash; return its value."""
    bits = _write_bits(context, calculation, payload)
    function = C_NAMES[calculation.algorithm]
    name = context.function.temporary("hash")
    context.writer.line(f"const uint64_t {name} = p4r_hash_{function}({bits}.bytes, {bits}.used);")
    return make("u64", name, 0, (1 << BITS[calculation.algorithm]) - 1, atom=True)


def _guard(context: CContext, expressions: CExpressions, checksum: ir.Checksum) -> str:
    """When the checksum counts: its header is there, and its condition holds."""
    tests = []
    if not context.program.headers[checksum.target.header].is_metadata:
        tests.append(context.valid(checksum.target.header))
    if checksum.condition is not None:
        tests.append(f"({expressions.condition(checksum.condition)})")
    return " && ".join(tests) or "true"


def _raw_mismatch(context: CContext, checksum: ir.Checksum) -> str:
    """Whether the checksum is wrong, on the bytes of the header as they came in."""
    header = context.program.headers[checksum.target.header]
    before = 0
    for field in header.fields:
        if field == checksum.target:
            break
        before += field.width
    offset = context.offset(header.name)
    return f"p4r_checksum_wrong(frame + {offset}, {header.size}, {before // 8})"


def _value(context: CContext, checksum: ir.Checksum, payload: Payload) -> Value:
    """The checksum that should be there."""
    calculation = checksum.calculation
    total = _sum(context, calculation, checksum.target.header)
    full = (1 << min(checksum.target.width, 64)) - 1
    if total is None:
        value = write_hash(context, calculation, payload)
        text = f"{value.text} & {literal(full, 'u64')}"
        return make("u64", text, 0, min(value.high, full))
    name = context.function.temporary("sum")
    context.writer.line(f"const uint64_t {name} = p4r_sum_to_checksum({total});")
    return make("u64", name, 0, 65535, atom=True)


def _sum(context: CContext, calculation: ir.Calculation, valid: str) -> str | None:
    """The sum of the input; None if how fields are aligned depends on which headers are valid.

    `valid` is a header that is known to be valid.
    """
    if calculation.algorithm != "csum16" or calculation.with_payload:
        return None
    for header, parts in calculation.groups:
        bits = sum(part.width for part in parts)
        if bits % 16 or (header and context.program.headers[header].varbit is not None):
            return None
    terms: list[str] = []
    for header, parts in calculation.groups:
        below = sum(part.width for part in parts)
        group_terms = []
        for part in parts:
            below -= part.width
            group_terms.append(_term(context, part, below % 16))
        total = " + ".join(group_terms)
        optional = header and header != valid and not context.program.headers[header].is_metadata
        terms.append(f"({context.valid(header)} ? {total} : 0)" if optional else total)
    if not terms:
        return "UINT64_C(0)"
    name = context.function.temporary("sum")
    context.writer.line(f"uint64_t {name} = {terms[0]};")
    for term in terms[1:]:
        context.writer.line(f"{name} += {term};")
    return name


def _term(context: CContext, part: FieldRef | ir.ConstBits, shift: int) -> str:
    """An addend of less than 2^49, so that thousands of them do not overflow."""
    if isinstance(part, ir.ConstBits):
        value = part.value << shift
        rest = value % 65535
        return literal(rest if rest or not value else 65535, "u64")
    name = context.field(part)
    kind = kind_of_width(part.width)
    if kind == "wide":
        context.function.flow.read(part)
        array = name
        limbs = limbs_of(part.width)
        if part.signed and part.width % 64:
            array = context.function.temporary("wide")
            context.function.take_stack(limbs)
            context.writer.line(f"uint64_t {array}[{limbs}];")
            context.writer.line(f"p4r_wide_copy({array}, {name}, {limbs});")
            context.writer.line(f"p4r_wide_cut({array}, {limbs}, {part.width});")
        text = f"p4r_fold(p4r_fold_wide({array}, {limbs}))"
    elif kind == "u128":
        low = f"(uint64_t){name}"
        high = (
            f"(uint64_t)((p4r_u128){name} >> 64) & {literal((1 << (part.width - 64)) - 1, 'u64')}"
        )
        text = f"(p4r_fold({low}) + p4r_fold({high}))"
    else:
        text = f"(uint64_t){name}" if part.signed else name
        if part.signed and part.width < 64:
            text = f"({text} & {literal((1 << part.width) - 1, 'u64')})"
        if part.width > 32:
            text = f"p4r_fold({text})"
    return f"({text} << {shift})" if shift else text


def _write_bits(context: CContext, calculation: ir.Calculation, payload: Payload | None) -> str:
    """Statements that string the input together, bit by bit; the variable that has it."""
    writer, function = context.writer, context.function
    most = (sum(part.width for part in calculation.inputs) + 7) // 8
    name = function.temporary("input")
    if calculation.with_payload:
        writer.line(f"struct p4r_bits {name} = {{.bytes = program->scratch}};")
        if most > _SCRATCH_BYTES:
            raise NotNativeError(
                f"{calculation.source}: calculation '{calculation.name}' of more than "
                f"{_SCRATCH_BYTES} bytes"
            )
    else:
        function.take_stack((most + 8) // 8)
        writer.line(f"uint8_t {name}_bytes[{most + 1}];")
        writer.line(f"struct p4r_bits {name} = {{.bytes = {name}_bytes}};")
    for header, parts in calculation.groups:
        is_header = header and not context.program.headers[header].is_metadata
        test = f"if ({context.valid(header)})" if is_header else ""
        with writer.block(test) if test else nullcontext():
            for part in parts:
                _put(context, name, part)
    if calculation.with_payload and payload is not None:
        writer.line(f"p4r_put_end(&{name}, {payload[0]}, {payload[1]});")
    else:
        writer.line(f"p4r_put_end(&{name}, NULL, 0);")
    return name


def _put(context: CContext, bits: str, part: FieldRef | ir.ConstBits) -> None:
    if isinstance(part, FieldRef):
        put_field(context, bits, part)
        return
    for at in range((part.width - 1) // 64 * 64, -1, -64):
        value = part.value >> at & (1 << 64) - 1
        width = min(64, part.width - at)
        context.writer.line(f"p4r_put(&{bits}, {literal(value, 'u64')}, {width});")
