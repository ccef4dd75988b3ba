# SPDX-License-Identifier: Apache-2.0
"""Expressions as functions of a packet. Values are unbounded integers, as in BMv2."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from p4reduce_switch.interpreter.packet import PacketState
from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MAX_WIDTH

_T = TypeVar("_T")
Value = Callable[[PacketState], int]
"""Computes a value; of a condition, 0 is false and all else is true."""
Run = Callable[[PacketState], None]
"""Runs a part of a program."""
Store = Callable[[PacketState, int], None]
"""Sets a field to a number, cut to the field's width."""

_OPERATORS: Mapping[str, Callable[[Value, Value], Value]] = {
    "and": lambda a, b: lambda packet: a(packet) and b(packet),
    "or": lambda a, b: lambda packet: a(packet) or b(packet),
    "+": lambda a, b: lambda packet: a(packet) + b(packet),
    "-": lambda a, b: lambda packet: a(packet) - b(packet),
    "*": lambda a, b: lambda packet: a(packet) * b(packet),
    # P4 divides only non-negative numbers. By zero BMv2 would end; here the result is zero.
    "/": lambda a, b: lambda packet: a(packet) // by if (by := b(packet)) else 0,
    "%": lambda a, b: lambda packet: a(packet) % by if (by := b(packet)) else 0,
    # A shift by more than the widest field leaves nothing in any.
    "<<": lambda a, b: lambda packet: a(packet) << by if 0 <= (by := b(packet)) <= MAX_WIDTH else 0,
    ">>": lambda a, b: lambda packet: a(packet) >> by if (by := b(packet)) >= 0 else 0,
    "&": lambda a, b: lambda packet: a(packet) & b(packet),
    "|": lambda a, b: lambda packet: a(packet) | b(packet),
    "^": lambda a, b: lambda packet: a(packet) ^ b(packet),
    "two_comp_mod": lambda a, b: lambda packet: _signed(a(packet), b(packet)),
    "sat_cast": lambda a, b: (
        lambda packet: max(-1 << b(packet) - 1, min((1 << b(packet) - 1) - 1, a(packet)))
    ),
    "usat_cast": lambda a, b: lambda packet: max(0, min((1 << b(packet)) - 1, a(packet))),
    "<": lambda a, b: lambda packet: a(packet) < b(packet),
    "<=": lambda a, b: lambda packet: a(packet) <= b(packet),
    ">": lambda a, b: lambda packet: a(packet) > b(packet),
    ">=": lambda a, b: lambda packet: a(packet) >= b(packet),
    "==": lambda a, b: lambda packet: a(packet) == b(packet),
    "!=": lambda a, b: lambda packet: a(packet) != b(packet),
    "==b": lambda a, b: lambda packet: bool(a(packet)) == bool(b(packet)),
    "!=b": lambda a, b: lambda packet: bool(a(packet)) != bool(b(packet)),
}


class Expressions:
    """Makes functions of a program's expressions.

    Args:
        headers: the program's, by name.
    """

    def __init__(self, headers: Mapping[str, ir.HeaderInstance]) -> None:
        self._headers = headers

    def value(self, expr: ir.Expr) -> Value:
        """Return what computes an expression."""
        match expr:
            case ir.Const() | ir.BoolConst():
                constant = int(expr.value)
                return lambda packet: constant
            case ir.FieldRef():
                return operator.itemgetter(str(expr))
            case ir.Param():
                index = expr.index
                return lambda packet: packet.args[index]
            case ir.Valid():
                header = expr.header
                return lambda packet: 1 if header in packet.valid else 0
            case ir.Unary():
                operand = self.value(expr.operand)
                if expr.op == "~":
                    return lambda packet: ~operand(packet)
                if expr.op == "not":
                    return lambda packet: 0 if operand(packet) else 1
                return lambda packet: 1 if operand(packet) else 0
            case ir.Ternary():
                return self._choice(expr)
            case ir.Binary(op="==h" | "!=h"):
                return self._same_header(expr)
        assert isinstance(expr, ir.Binary)
        left = self.value(expr.left)
        if expr.op == "&" and isinstance(expr.right, ir.Const):  # p4c writes one for each operation
            mask = expr.right.value
            return lambda packet: left(packet) & mask
        return _OPERATORS[expr.op](left, self.value(expr.right))

    def bits(self, field: ir.FieldRef) -> Value:
        """Return what gives a field's bits as a number that is not negative."""
        if not field.signed:
            return self.value(field)
        key, mask = str(field), (1 << field.width) - 1
        return lambda packet: packet[key] & mask

    def _choice(self, expr: ir.Expr) -> Value:
        """A loop, because stacks make long chains of these."""
        choices: list[tuple[Value, Value]] = []
        while isinstance(expr, ir.Ternary):
            choices.append((self.value(expr.condition), self.value(expr.left)))
            expr = expr.right
        return partial(first_of, choices, self.value(expr))

    def _same_header(self, expr: ir.Binary) -> Value:
        """Both valid and all fields equal; as in BMv2, an invalid header equals nothing."""
        assert isinstance(expr.left, ir.HeaderValue)
        assert isinstance(expr.right, ir.HeaderValue)
        left, right = self._headers[expr.left.header], self._headers[expr.right.header]
        names, wanted = {left.name, right.name}, expr.op == "==h"
        fields = [(str(a), str(b)) for a, b in zip(left.fields, right.fields, strict=True)]
        return lambda packet: (
            (packet.valid >= names and all(packet[a] == packet[b] for a, b in fields)) == wanted
        )


def _signed(value: int, width: int) -> int:
    """Return the number that the low bits are in two's complement."""
    half = 1 << width - 1
    return (value + half & 2 * half - 1) - half


def store_to(field: ir.FieldRef) -> Store:
    """Return what sets a field."""
    key, mask = str(field), (1 << field.width) - 1
    half = 1 << field.width - 1 if field.signed else 0

    def store_signed(packet: PacketState, value: int) -> None:
        packet[key] = (value + half & mask) - half

    def store(packet: PacketState, value: int) -> None:
        packet[key] = value & mask

    return store_signed if field.signed else store


def first_of(
    choices: Sequence[tuple[Value, Callable[[PacketState], _T]]],
    last: Callable[[PacketState], _T],
    packet: PacketState,
) -> _T:
    """Run the first choice whose condition holds, or `last`."""
    for test, chosen in choices:
        if test(packet):
            return chosen(packet)
    return last(packet)
