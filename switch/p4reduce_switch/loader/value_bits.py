# SPDX-License-Identifier: Apache-2.0
"""Refuses expressions whose values get so large on the way that they eat memory and time."""

from __future__ import annotations

from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MAX_VALUE_BITS, MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError


def check_bits(expr: ir.Expr, source: ir.SourceLocation) -> None:
    """Raise LoadError if a value may take more than `MAX_VALUE_BITS` bits before it is cut."""
    _most_bits(expr, source)


def _most_bits(expr: ir.Expr, source: ir.SourceLocation) -> int:
    """How many bits a value takes at most, without its sign."""
    bits = 1
    while isinstance(expr, ir.Ternary):  # a loop, because stacks make long chains of these
        bits = max(bits, _most_bits(expr.condition, source), _most_bits(expr.left, source))
        expr = expr.right
    if isinstance(expr, ir.Const):
        bits = max(bits, expr.value.bit_length())
    elif isinstance(expr, ir.FieldRef | ir.Param):
        bits = max(bits, expr.width)
    elif isinstance(expr, ir.Unary):
        bits = max(bits, _most_bits(expr.operand, source) + 1)
    elif isinstance(expr, ir.Binary):
        left, right = _most_bits(expr.left, source), _most_bits(expr.right, source)
        bits = max(bits, _bits_of_operator(expr, left, right))
    if bits > MAX_VALUE_BITS:
        raise LoadError(f"{source}: a value of more than {MAX_VALUE_BITS} bits")
    return bits


def _bits_of_operator(expr: ir.Binary, left: int, right: int) -> int:
    if ir.BINARY_OPERATORS[expr.op][1] == "bool":
        return 1
    if expr.op == "*":
        return left + right
    if expr.op == "<<":
        most = expr.right.value if isinstance(expr.right, ir.Const) else (1 << min(right, 32)) - 1
        return left + max(min(most, MAX_WIDTH), 0)
    if isinstance(expr.right, ir.Const) and expr.op in ("two_comp_mod", "sat_cast", "usat_cast"):
        return expr.right.value
    if expr.op == "&":
        masks = [part.value for part in (expr.left, expr.right) if isinstance(part, ir.Const)]
        return min([max(left, right), *(mask.bit_length() for mask in masks if mask >= 0)])
    return max(left, right) + 1
