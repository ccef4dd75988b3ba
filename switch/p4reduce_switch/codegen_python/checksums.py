# SPDX-License-Identifier: Apache-2.0
"""Checksums and hashes as Python source.

The Internet checksum needs no 16-bit words: a one's complement sum is a sum modulo 65535, where
2**16 = 1. So fields are added as they are, shifted by their bit offset modulo 16.
"""

from __future__ import annotations

from contextlib import nullcontext

from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.layout import unsigned
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef


def emit_verify(context: PyContext) -> None:
    """Set `checksum_error` if a checksum is wrong. Invalid headers are not verified."""
    error = context.intrinsic("checksum_error")
    if error is None:
        return
    for checksum in context.program.verify:
        with context.writer.block(f"if {_guard(context, checksum)}:"):
            if context.usage.is_raw_verified(checksum):
                wrong = _raw_mismatch(context, checksum)
            else:
                wrong = (
                    f"{_value(context, checksum, '_frame[_at:]')} != {_target(context, checksum)}"
                )
            with context.writer.block(f"if {wrong}:"):
                context.writer.line(f"{error} = 1")


def emit_update(context: PyContext) -> None:
    """Compute the checksums of the headers that leave."""
    for checksum in context.program.update:
        if not context.is_live(checksum.target):
            continue
        with context.writer.block(f"if {_guard(context, checksum)}:"):
            value = _value(context, checksum, "_payload")
            context.writer.line(f"{_target(context, checksum)} = {value}")


def emit_hash(context: PyContext, calculation: ir.Calculation, payload: str) -> str:
    """Write the statements that collect the input; return the expression for the hash."""
    return f"{context.bind('hash', calculation.algorithm)}({_bytes(context, calculation, payload)})"


def _guard(context: PyContext, checksum: ir.Checksum) -> str:
    """When the checksum counts: its header is there, and its condition holds."""
    tests = []
    if not context.program.headers[checksum.target.header].is_metadata:
        tests.append(context.names.valid(checksum.target.header))
    if checksum.condition is not None:
        condition, _ = context.expressions.condition(checksum.condition)
        tests.append(f"({condition})" if tests else condition)
    return " and ".join(tests) or "True"


def _target(context: PyContext, checksum: ir.Checksum) -> str:
    return context.names.field(checksum.target)


def _raw_mismatch(context: PyContext, checksum: ir.Checksum) -> str:
    """Whether the sum over the whole header, checksum included, is not zero (modulo 65535).

    0xFFFF in the place of a checksum is equal to 0 there, but right only if all else is zero.
    """
    header = context.program.headers[checksum.target.header]
    below = header.bits
    for field in header.fields:
        below -= field.width
        if field == checksum.target:
            break
    offset = context.names.offset(header.name)
    writer = context.writer
    writer.line(f'_sum = from_bytes(_frame[{offset}:{offset} + {header.size}], "big")')
    ones = context.names.constant(0xFFFF << below)
    return f"_sum % 65535 or not _sum or (_sum & {ones} == {ones} and _sum != {ones})"


def _value(context: PyContext, checksum: ir.Checksum, payload: str) -> str:
    """The checksum that should be there."""
    calculation = checksum.calculation
    total = _sum(context, calculation, checksum.target.header)
    if total is None:
        value = emit_hash(context, calculation, payload)
        full = (1 << checksum.target.width) - 1
        return f"({value} & {context.names.constant(full)})"
    context.writer.line(f"_sum = {total}")
    return "(-_sum % 65535 if _sum else 65535)"


def _sum(context: PyContext, calculation: ir.Calculation, valid: str) -> str | None:
    """The sum of the input; None if how fields are aligned depends on which headers are valid.

    `valid` is a header that is known to be valid.
    """
    if calculation.algorithm != "csum16" or calculation.with_payload:
        return None
    terms: list[str] = []
    for header, parts in calculation.groups:
        below = bits = sum(part.width for part in parts)
        if bits % 16 or any(context.varbit_length(part) for part in parts):
            return None
        group_terms = []
        for part in parts:
            below -= part.width
            text = _input(context, part)
            group_terms.append(f"({text} << {below % 16})" if below % 16 else text)
        total = " + ".join(group_terms)
        optional = header and header != valid and not context.program.headers[header].is_metadata
        terms.append(f"({total} if {context.names.valid(header)} else 0)" if optional else total)
    return " + ".join(terms)


def _input(context: PyContext, part: FieldRef | ir.ConstBits) -> str:
    if isinstance(part, FieldRef):
        return unsigned(context.names, part)
    return context.names.constant(part.value)


def _bytes(context: PyContext, calculation: ir.Calculation, payload: str) -> str:
    """Statements that string the input together, bit by bit; the expression for its bytes."""
    writer = context.writer
    writer.line("_bits = _width = 0")
    for header, parts in calculation.groups:
        is_header = header and not context.program.headers[header].is_metadata
        test = f"if {context.names.valid(header)}:" if is_header else ""
        with writer.block(test) if test else nullcontext():
            for part in parts:
                width = context.varbit_length(part) or str(part.width)
                writer.line(f"_bits = _bits << {width} | {_input(context, part)}")
                writer.line(f"_width += {width}")
    data = '(_bits << -_width % 8).to_bytes((_width + 7) // 8, "big")'
    return f"{data} + {payload}" if calculation.with_payload else data
