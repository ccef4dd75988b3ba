# SPDX-License-Identifier: Apache-2.0
"""Operators: p4c's JSON for every one, and random expressions, against plain evaluation."""

from __future__ import annotations

import random
import struct

import pytest
from p4reduce_switch.interpreter.expressions import Expressions, store_to
from p4reduce_switch.interpreter.packet import PacketState
from p4reduce_switch.program import ir
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

WIDE = (1 << 2048) - 1
value_of = Expressions({}).value


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


# -- One program with every operator ---------------------------------------------------------------


def expected(a: int, b: int, c: int, d: int, s: int, t: int, p: int, q: int) -> bytes:
    """The header `results_h` of operators.p4, by the P4 specification."""
    w32 = 0xFFFFFFFF
    bits = [a == b, a != b, a < b, a <= b, a > b, a >= b, s < t, s >= t]
    logic = [
        p and q,
        p or q,
        not p,
        p == q,
        bool(p) != (a > b),
        (p and (a < b or c != d)) or (q and s < 0),
        (a if p else b) > 100,
        False,
    ]
    expr = (((c + d) & w32) ^ (c << 7 & w32) ^ (d >> 5)) - ((c & ~d & w32) * 3 & w32) & w32
    return struct.pack(
        ">13B H B I B I 6h h i b H h B B I",
        a + b & 255,
        a - b & 255,
        a * b & 255,
        a & b,
        a | b,
        a ^ b,
        ~a & 255,
        -a & 255,
        a << 3 & 255,
        a >> 3,
        a << b & 255,
        clamp(a + b, 0, 255),
        clamp(a - b, 0, 255),
        a << 8 | b,
        (a >> 3 & 15) << 4 | (b & 3) << 1,
        a,
        c & 255,
        c if a < b else d,
        signed(s + t, 16),
        signed(s - t, 16),
        signed(s * t, 16),
        clamp(s + t, -(1 << 15), (1 << 15) - 1),
        clamp(s - t, -(1 << 15), (1 << 15) - 1),
        signed(-s, 16),
        s >> 2,
        s,
        signed(s, 8),
        s & 0xFFFF,
        signed(s ^ t, 16),
        sum(bool(bit) << 7 - i for i, bit in enumerate(bits)),
        sum(bool(bit) << 7 - i for i, bit in enumerate(logic)),
        expr,
    )


def expected_wide(x: int, y: int, mask: int) -> bytes:
    low = WIDE & ~mask
    lanes = ((x & low) + (y & low) & WIDE) ^ ((x ^ y) & mask)
    overflow = ~(x ^ y) & (x ^ lanes) & mask
    values = (x + y & WIDE, lanes, overflow, WIDE ^ (x << 200 & WIDE | y >> 200))
    return b"".join(value.to_bytes(256, "big") for value in values)


def test_every_operator_of_p4() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    pipeline = load("operators")
    edges8, edges16, edges32 = (0, 1, 127, 128, 255), (-(1 << 15), -1, 0, 1), (0, 1, 0xFFFFFFFF)
    for _ in range(400):
        a, b = (generator.choice([generator.randrange(256), *edges8]) for _ in "ab")
        c, d = (generator.choice([generator.randrange(1 << 32), *edges32]) for _ in "cd")
        s, t = (
            generator.choice([generator.randrange(1 << 16) - (1 << 15), *edges16]) for _ in "st"
        )
        p, q = generator.randrange(2), generator.randrange(2)
        x, y, mask = (generator.choice([generator.getrandbits(2048), 0, WIDE]) for _ in "xym")
        operands = struct.pack(">BBIIhhB", a, b, c, d, s, t, p << 7 | q << 6)
        wide = b"".join(value.to_bytes(256, "big") for value in (x, y, mask))
        ((port, frame),) = pipeline.process(5, operands + wide + b"rest" * 200)
        assert port == 1
        result = expected(a, b, c, d, s, t, p, q)
        assert frame[: len(result)] == result
        assert frame[len(result) : -800] == expected_wide(x, y, mask)
        assert frame[-800:] == b"rest" * 200


# -- Random expressions ----------------------------------------------------------------------------

FIELDS = [
    ir.FieldRef("h", f"f{width}{'s' if is_signed else ''}", width, is_signed)
    for width in (1, 7, 8, 16, 33, 64, 130)
    for is_signed in (False, True)
    if width > 1 or not is_signed
]
DATA = ("+", "-", "*", "&", "|", "^", "<<", ">>")
COMPARE = ("<", "<=", ">", ">=", "==", "!=")


def random_data(generator: random.Random, depth: int) -> ir.Expr:
    if depth == 0 or generator.random() < 0.15:
        if generator.random() < 0.6:
            return generator.choice(FIELDS)
        ones = (1 << generator.choice((1, 4, 8, 16, 32, 64))) - 1
        return ir.Const(generator.choice((0, 1, 3, ones, ones << 8, generator.getrandbits(40))))
    kind = generator.randrange(10)
    if kind == 0:
        return ir.Unary("~", random_data(generator, depth - 1))
    if kind == 1:
        return ir.Unary("b2d", random_bool(generator, depth - 1))
    if kind == 2:
        op = generator.choice(("two_comp_mod", "sat_cast", "usat_cast"))
        width = ir.Const(generator.choice((2, 8, 16, 33)))
        return ir.Binary(op, random_data(generator, depth - 1), width)
    if kind == 3:
        return ir.Ternary(
            random_bool(generator, depth - 1),
            random_data(generator, depth - 1),
            random_data(generator, depth - 1),
        )
    if kind == 4:  # what p4c writes around ~ and other operators
        ones = ir.Const((1 << generator.choice((8, 16, 64, 130))) - 1)
        return ir.Binary("&", ir.Unary("~", random_data(generator, depth - 1)), ones)
    op = generator.choice(DATA)
    right = random_data(generator, depth - 1)
    if op in ("<<", ">>"):
        right = generator.choice((ir.Const(generator.randrange(80)), FIELDS[0], FIELDS[1]))
    return ir.Binary(op, random_data(generator, depth - 1), right)


def random_bool(generator: random.Random, depth: int) -> ir.Expr:
    kind = generator.randrange(5)
    if depth == 0 or kind == 0:
        return ir.Unary("d2b", generator.choice(FIELDS))
    if kind == 1:
        return ir.Unary("not", random_bool(generator, depth - 1))
    if kind == 2:
        op = generator.choice(("and", "or", "==b", "!=b"))
        return ir.Binary(op, random_bool(generator, depth - 1), random_bool(generator, depth - 1))
    if kind == 3:
        return ir.BoolConst(generator.random() < 0.5)
    op = generator.choice(COMPARE)
    return ir.Binary(op, random_data(generator, depth - 1), random_data(generator, depth - 1))


def evaluate(expr: ir.Expr, values: dict[ir.FieldRef, int]) -> int:
    """What the expression means, by BMv2's data.h; booleans are 0 and 1."""
    if isinstance(expr, (ir.Const, ir.BoolConst)):
        return int(expr.value)
    if isinstance(expr, ir.FieldRef):
        return values[expr]
    if isinstance(expr, ir.Ternary):
        chosen = expr.left if evaluate(expr.condition, values) else expr.right
        return evaluate(chosen, values)
    if isinstance(expr, ir.Unary):
        operand = evaluate(expr.operand, values)
        return {"~": ~operand, "not": 1 - operand, "d2b": int(operand != 0), "b2d": operand}[
            expr.op
        ]
    assert isinstance(expr, ir.Binary)
    left, right = evaluate(expr.left, values), evaluate(expr.right, values)
    if expr.op == "<<":
        return left << right
    if expr.op == ">>":
        return left >> right
    if expr.op == "two_comp_mod":
        return signed(left, right)
    if expr.op == "sat_cast":
        return clamp(left, -(1 << right - 1), (1 << right - 1) - 1)
    if expr.op == "usat_cast":
        return clamp(left, 0, (1 << right) - 1)
    return int(
        {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "&": left & right,
            "|": left | right,
            "^": left ^ right,
            "and": left and right,
            "or": left or right,
            "==b": left == right,
            "!=b": left != right,
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[expr.op]
    )


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_random_expressions(depth: int) -> None:
    """Value, truth, and what an assignment to a field of any width makes of it."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    packet = PacketState(dict.fromkeys(map(str, FIELDS), 0))
    for _ in range(500):
        expr, condition = random_data(generator, depth), random_bool(generator, depth)
        target = generator.choice(FIELDS)
        for _ in range(5):
            values = {}
            for field in FIELDS:
                value = generator.choice((0, 1, (1 << field.width) - 1, generator.getrandbits(200)))
                store_to(field)(packet, value)
                value &= (1 << field.width) - 1
                values[field] = signed(value, field.width) if field.signed else value
                assert packet[str(field)] == values[field]
            wanted = evaluate(expr, values)
            assert value_of(expr)(packet) == wanted, (expr, values)
            assert bool(value_of(condition)(packet)) == evaluate(condition, values)
            store_to(target)(packet, wanted)
            cut = signed(wanted, target.width) if target.signed else wanted
            cut = cut if target.signed else cut & (1 << target.width) - 1
            assert packet[str(target)] == cut


X, Y = ir.FieldRef("h", "x", 8), ir.FieldRef("h", "y", 32)


def result(expr: ir.Expr, x: int, y: int = 0) -> int:
    packet = PacketState({str(X): 0, str(Y): 0})
    store_to(X)(packet, x)
    store_to(Y)(packet, y)
    store_to(X)(packet, value_of(expr)(packet))
    return packet[str(X)]


@pytest.mark.parametrize("amount", [Y, ir.Const(1 << 40)])
def test_shift_by_a_huge_amount_is_zero_and_takes_no_memory(amount: ir.Expr) -> None:
    assert result(ir.Binary("<<", X, amount), 255, 0xFFFFFFFF) == 0


@pytest.mark.parametrize("op", ["/", "%"])
def test_division(op: str) -> None:
    assert result(ir.Binary(op, X, Y), 17, 5) == (3 if op == "/" else 2)
    assert result(ir.Binary(op, X, Y), 17, 0) == 0
