# SPDX-License-Identifier: Apache-2.0
"""Expressions as Python source.

BMv2 computes with unbounded integers and truncates a value only when it is assigned. Python's
integers are unbounded too, so expressions translate one to one. Each piece of source has the bounds
of its value and the bits that may be set. So most of p4c's masks can be left out; on 2,048 bits
each costs as much as an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from p4reduce_switch.codegen_python.text import PyNames
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Expr, FieldRef
from p4reduce_switch.program.limits import MAX_TEXT, MAX_VALUE_BITS, MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError

# Python's operator precedence, loosest first.
_TERNARY, OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, SUM, _PRODUCT = range(11)
_SIGN, ATOM = 11, 12

# A shift by more than this leaves nothing in any field; computing it would only eat memory.
_MAX_SHIFT = MAX_WIDTH


@dataclass(frozen=True, slots=True)
class Code:
    """The source of an expression whose value is within low..high.

    `ones`: the bits that may be set, where low >= 0 (otherwise meaningless).
    """

    text: str
    precedence: int
    low: int
    high: int
    ones: int

    def at(self, precedence: int) -> str:
        """Return the text, in parentheses if it binds less tightly than that."""
        return self.text if self.precedence >= precedence else f"({self.text})"

    @property
    def is_name(self) -> bool:
        return self.text.isidentifier()


def _code(text: str, precedence: int, low: int, high: int, ones: int | None = None) -> Code:
    if len(text) > MAX_TEXT:
        raise LoadError(f"an expression of more than {MAX_TEXT} characters: {text[:60]} …")
    if max(low.bit_length(), high.bit_length()) > MAX_VALUE_BITS:
        raise LoadError(f"a value of more than {MAX_VALUE_BITS} bits: {text[:60]} …")
    if low < 0:
        return Code(text, precedence, low, high, 0)
    bits = (1 << high.bit_length()) - 1
    ones = bits if ones is None else ones & bits
    return Code(text, precedence, low, min(high, ones), ones)


class PyExpressions:
    """Turns expressions into source."""

    def __init__(self, names: PyNames, headers: Mapping[str, ir.HeaderInstance]) -> None:
        self._names = names
        self._headers = headers
        self.params: Mapping[int, Code] = {}
        """The parameters of the action that is being generated."""

    # -- Values ------------------------------------------------------------------------------------

    def data(self, expr: Expr) -> Code:
        """Return an integer that is not truncated to any width."""
        if isinstance(expr, ir.Const):
            return self._constant(expr.value)
        if isinstance(expr, FieldRef):
            return self.field(expr)
        if isinstance(expr, ir.Param):
            return self.params[expr.index]
        if isinstance(expr, ir.Valid):
            return _code(self._names.valid(expr.header), ATOM, 0, 1)
        if isinstance(expr, ir.Unary):
            return self._unary(expr)
        if isinstance(expr, ir.Binary):
            return self._binary(expr)
        if isinstance(expr, ir.Ternary):
            return self._choice(expr)
        raise AssertionError(f"not a data expression: {expr}")

    def field(self, field: FieldRef) -> Code:
        return _code(self._names.field(field), ATOM, field.low, field.high)

    def assigned(self, expr: Expr, width: int, signed: bool = False) -> Code:
        """Return an integer truncated to a width, as an assignment to a field does."""
        return self.fit(self.data(expr), width, signed)

    def fit(self, code: Code, width: int, signed: bool = False) -> Code:
        if signed:
            return self._signed(code, width)
        full = (1 << width) - 1
        if code.low >= 0 and code.high <= full:
            return code
        return _code(f"{code.at(_BIT_AND)} & {self._names.constant(full)}", _BIT_AND, 0, full)

    def _signed(self, code: Code, width: int) -> Code:
        half = 1 << (width - 1)
        if code.low >= -half and code.high < half:
            return code
        half_text = self._names.constant(half)
        full = self._names.constant((1 << width) - 1)
        text = f"({code.at(SUM)} + {half_text} & {full}) - {half_text}"
        return _code(text, SUM, -half, half - 1)

    def _constant(self, value: int) -> Code:
        precedence = ATOM if value >= 0 else _SIGN
        return _code(self._names.constant(value), precedence, value, value, value)

    def _unary(self, expr: ir.Unary) -> Code:
        if expr.op == "b2d":
            return _code(*self._strict(expr.operand), 0, 1)
        operand = self.data(expr.operand)
        return _code(f"~{operand.at(_SIGN)}", _SIGN, ~operand.high, ~operand.low)

    def _choice(self, expr: ir.Ternary) -> Code:
        left, right = self.data(expr.left), self.data(expr.right)
        condition = self.condition(expr.condition)
        text = f"{left.at(OR)} if {_paren(condition, OR)} else {right.at(_TERNARY)}"
        low, high = min(left.low, right.low), max(left.high, right.high)
        return _code(text, _TERNARY, low, high, left.ones | right.ones)

    def _binary(self, expr: ir.Binary) -> Code:
        if expr.op in ("two_comp_mod", "sat_cast", "usat_cast"):
            assert isinstance(expr.right, ir.Const)
            return self._cast(expr.op, self.data(expr.left), expr.right.value)
        if expr.op == "&":
            inverted = self._inverted(expr)
            if inverted is not None:
                return inverted
        return _OPERATORS[expr.op](self.data(expr.left), self.data(expr.right))

    def _inverted(self, expr: ir.Binary) -> Code | None:
        """~x & (all ones) as x ^ (all ones): no negative number on the way."""
        for inversion, mask in ((expr.left, expr.right), (expr.right, expr.left)):
            if (
                isinstance(inversion, ir.Unary)
                and inversion.op == "~"
                and isinstance(mask, ir.Const)
                and mask.value > 0
                and mask.value & (mask.value + 1) == 0
            ):
                operand = self.data(inversion.operand)
                if operand.low >= 0 and operand.high <= mask.value:
                    full = self._names.constant(mask.value)
                    return _code(f"{operand.at(_BIT_XOR)} ^ {full}", _BIT_XOR, 0, mask.value)
        return None

    def _cast(self, op: str, code: Code, width: int) -> Code:
        if op == "two_comp_mod":
            return self._signed(code, width)
        low, high = 0, (1 << width) - 1
        if op == "sat_cast":
            low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
        if code.low >= low and code.high <= high:
            return code
        low_text, high_text = self._names.constant(low), self._names.constant(high)
        return _code(f"max({low_text}, min({high_text}, {code.text}))", ATOM, low, high)

    # -- Conditions --------------------------------------------------------------------------------

    def condition(self, expr: Expr) -> tuple[str, int]:
        """Return source that is true or false in Python's sense, and its precedence."""
        if isinstance(expr, ir.Unary) and expr.op == "d2b":
            operand = self.data(expr.operand)
            return operand.text, operand.precedence
        if isinstance(expr, ir.Unary):
            return f"not {_paren(self.condition(expr.operand), _NOT)}", _NOT
        if isinstance(expr, ir.Binary):
            if expr.op in ("and", "or"):
                precedence = _AND if expr.op == "and" else OR
                left = _paren(self.condition(expr.left), precedence)
                right = _paren(self.condition(expr.right), precedence)
                return f"{left} {expr.op} {right}", precedence
            if expr.op in ("==h", "!=h"):
                return self._same_header(expr)
            operator, operand_of = expr.op, self._data_operand
            if expr.op in ("==b", "!=b"):
                operator, operand_of = expr.op[:2], self._strict_operand
            return f"{operand_of(expr.left)} {operator} {operand_of(expr.right)}", _COMPARE
        if isinstance(expr, ir.Ternary):
            left, right = (_paren(self.condition(e), OR) for e in (expr.left, expr.right))
            return f"{left} if {_paren(self.condition(expr.condition), OR)} else {right}", _TERNARY
        if isinstance(expr, ir.BoolConst):
            return str(expr.value), ATOM
        assert isinstance(expr, ir.Valid)
        return self._names.valid(expr.header), ATOM

    def _data_operand(self, expr: Expr) -> str:
        return self.data(expr).at(_BIT_OR)

    def _strict_operand(self, expr: Expr) -> str:
        return _paren(self._strict(expr), _BIT_OR)

    def _strict(self, expr: Expr) -> tuple[str, int]:
        """Source that gives True or False, not just something true or false."""
        if isinstance(expr, (ir.BoolConst, ir.Valid)):
            return self.condition(expr)
        if isinstance(expr, ir.Binary) and expr.op not in ("and", "or", "==h", "!=h"):
            return self.condition(expr)
        if isinstance(expr, ir.Unary) and expr.op == "d2b":
            operand = self.data(expr.operand)
            if isinstance(expr.operand, ir.Valid):
                return operand.text, operand.precedence
            return f"{operand.at(_BIT_OR)} != 0", _COMPARE
        if isinstance(expr, ir.Unary):
            return self.condition(expr)
        if isinstance(expr, ir.Binary) and expr.op in ("and", "or"):
            precedence = _AND if expr.op == "and" else OR
            left, right = (_paren(self._strict(e), precedence) for e in (expr.left, expr.right))
            return f"{left} {expr.op} {right}", precedence
        return f"bool({self.condition(expr)[0]})", ATOM

    def _same_header(self, expr: ir.Binary) -> tuple[str, int]:
        """Both valid and all fields equal; as in BMv2, an invalid header equals nothing."""
        assert isinstance(expr.left, ir.HeaderValue)
        assert isinstance(expr.right, ir.HeaderValue)
        left, right = expr.left.header, expr.right.header
        tests = [self._names.valid(left), self._names.valid(right)]
        tests += [
            f"{self._names.field(a)} == {self._names.field(b)}"
            for a, b in zip(self._headers[left].fields, self._headers[right].fields, strict=True)
        ]
        same = " and ".join(tests)
        return (same, _AND) if expr.op == "==h" else (f"not ({same})", _NOT)


def _paren(source: tuple[str, int], precedence: int) -> str:
    text, own = source
    return text if own >= precedence else f"({text})"


# -- Operators -------------------------------------------------------------------------------------


def _infix(operator: str, precedence: int, left: Code, right: Code) -> str:
    return f"{left.at(precedence)} {operator} {right.at(precedence + 1)}"


def _trailing_zeros(code: Code) -> int:
    return (code.ones & -code.ones).bit_length() - 1 if code.low >= 0 and code.ones else 0


def _add(left: Code, right: Code) -> Code:
    high = left.high + right.high
    zeros = min(_trailing_zeros(left), _trailing_zeros(right))
    ones = (1 << high.bit_length()) - (1 << zeros) if high > 0 else 0
    return _code(_infix("+", SUM, left, right), SUM, left.low + right.low, high, ones)


def _subtract(left: Code, right: Code) -> Code:
    text = _infix("-", SUM, left, right)
    return _code(text, SUM, left.low - right.high, left.high - right.low)


def _multiply(left: Code, right: Code) -> Code:
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    return _code(_infix("*", _PRODUCT, left, right), _PRODUCT, min(corners), max(corners))


def _divide(left: Code, right: Code) -> Code:
    """P4 divides only non-negative numbers. By zero BMv2 would die; here the result is zero."""
    text = _infix("//", _PRODUCT, left, right)
    bound = max(abs(left.low), abs(left.high))
    low = 0 if left.low >= 0 and right.low >= 0 else -bound
    if right.low > 0:
        return _code(text, _PRODUCT, low, bound)
    return _code(f"{text} if {right.at(OR)} else 0", _TERNARY, low, bound)


def _modulo(left: Code, right: Code) -> Code:
    text = _infix("%", _PRODUCT, left, right)
    bound = max(abs(right.low), abs(right.high))
    low = 0 if right.low >= 0 else -bound
    if right.low > 0:
        return _code(text, _PRODUCT, low, bound)
    return _code(f"{text} if {right.at(OR)} else 0", _TERNARY, low, bound)


def _shift_left(left: Code, right: Code) -> Code:
    text = _infix("<<", _SHIFT, left, right)
    most = min(right.high, _MAX_SHIFT)
    least = max(min(right.low, _MAX_SHIFT), 0)
    low = left.low << (most if left.low < 0 else least)
    high = left.high << (least if left.high < 0 else most)
    ones = left.ones << least if least == most and left.low >= 0 else None
    if right.low >= 0 and right.high <= _MAX_SHIFT:
        return _code(text, _SHIFT, low, high, ones)
    guarded = f"{text} if 0 <= {right.at(_BIT_OR)} <= {_MAX_SHIFT} else 0"
    return _code(guarded, _TERNARY, min(low, 0), max(high, 0))


def _shift_right(left: Code, right: Code) -> Code:
    text = _infix(">>", _SHIFT, left, right)
    least = max(min(right.low, _MAX_SHIFT), 0)
    low, high = min(left.low, left.low >> least), max(left.high >> least, 0)
    if left.low >= 0:
        low = 0
    ones = left.ones >> least if right.low == right.high else None
    if right.low >= 0:
        return _code(text, _SHIFT, low, high, ones)
    return _code(f"{text} if {right.at(_BIT_OR)} >= 0 else 0", _TERNARY, low, high)


def _bit_and(left: Code, right: Code) -> Code:
    for value, mask in ((left, right), (right, left)):
        is_constant = mask.low == mask.high and mask.low >= 0
        if is_constant and value.low >= 0 and value.ones & ~mask.low == 0:
            return value
    text = _infix("&", _BIT_AND, left, right)
    if left.low >= 0 and right.low >= 0:
        return _code(text, _BIT_AND, 0, min(left.high, right.high), left.ones & right.ones)
    if left.low >= 0 or right.low >= 0:
        bound = left if left.low >= 0 else right
        return _code(text, _BIT_AND, 0, bound.high, bound.ones)
    return _code(text, _BIT_AND, *_signed_bounds(left, right))


def _or_like(operator: str, precedence: int, left: Code, right: Code) -> Code:
    text = _infix(operator, precedence, left, right)
    if left.low >= 0 and right.low >= 0:
        ones = left.ones | right.ones
        return _code(text, precedence, 0, (1 << ones.bit_length()) - 1, ones)
    return _code(text, precedence, *_signed_bounds(left, right))


def _signed_bounds(left: Code, right: Code) -> tuple[int, int]:
    bits = max(v.bit_length() for v in (left.low, left.high, right.low, right.high))
    return -(1 << bits), (1 << bits) - 1


_OPERATORS: Mapping[str, Callable[[Code, Code], Code]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _modulo,
    "<<": _shift_left,
    ">>": _shift_right,
    "&": _bit_and,
    "|": partial(_or_like, "|", _BIT_OR),
    "^": partial(_or_like, "^", _BIT_XOR),
}
