# SPDX-License-Identifier: Apache-2.0
"""Keys of tables and value sets: each field takes whole words of 64 bits, the lowest first."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.values import Value, limbs_of


def write_key(
    context: CContext, expressions: CExpressions, fields: Sequence[tuple[Value, int]]
) -> tuple[str, int]:
    """Write an array of values with their widths; return its name and number of words."""
    writer = context.writer
    words = sum(limbs_of(width) for _, width in fields)
    arrays = [
        expressions.wide.array(value, limbs_of(width)) if width > 64 else value
        for value, width in fields
    ]
    name = context.function.temporary("key")
    context.function.take_stack(words)
    if all(width <= 64 for _, width in fields):
        parts = ", ".join(expressions.scalar(value, "u64") for value in arrays)
        writer.line(f"const uint64_t {name}[] = {{{parts}}};")
        return name, words
    writer.line(f"uint64_t {name}[{words}];")
    at = 0
    for value, (_, width) in zip(arrays, fields, strict=True):
        if width <= 64:
            writer.line(f"{name}[{at}] = {expressions.scalar(value, 'u64')};")
        else:
            writer.line(f"p4r_wide_copy({name} + {at}, {value.name}, {limbs_of(width)});")
        at += limbs_of(width)
    return name, words
