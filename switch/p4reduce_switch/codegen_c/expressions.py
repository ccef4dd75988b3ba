# SPDX-License-Identifier: Apache-2.0
"""Expressions as C source.

BMv2 computes with unbounded integers and truncates a value only when it is assigned. So each value
has bounds, and a type that holds them. If only its lowest bits are needed (`modulo`), the type
holds these and wraps around. Expressions have no side effects, so parts may be computed in earlier
statements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.text import paren
from p4reduce_switch.codegen_c.values import (
    C_TYPES,
    Kind,
    Value,
    constant,
    fits,
    kind_for,
    kind_of_width,
    limbs_for,
    limbs_of,
    literal,
    make,
    stored,
)
from p4reduce_switch.codegen_c.wide import Wide
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Expr, FieldRef
from p4reduce_switch.program.limits import MAX_VALUE_BITS, MAX_WIDTH

_LONGEST_TEXT = 400  # more is computed beforehand
_BITS: Mapping[Kind, int] = {"u64": 64, "i64": 64, "u128": 128, "i128": 128}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class CExpressions:
    """Turns expressions into source."""

    def __init__(self, context: CContext) -> None:
        self._context = context
        self.wide = Wide(context)
        self.params: Mapping[int, Value] = {}
        """The parameters of the action that is being generated."""

    # -- Values ------------------------------------------------------------------------------------

    def data(self, expr: Expr, modulo: int | None = None) -> Value:
        """Return an integer; with `modulo`, one whose lowest `modulo` bits are right."""
        if isinstance(expr, ir.Const):
            value = expr.value
            return constant(value if modulo is None else value & (1 << modulo) - 1)
        if isinstance(expr, FieldRef):
            return self._lowest(self.field(expr), modulo)
        if isinstance(expr, ir.Param):
            return self._lowest(self.params[expr.index], modulo)
        if isinstance(expr, ir.Valid):
            return make("u64", f"(uint64_t){self._context.valid(expr.header)}", 0, 1)
        if isinstance(expr, ir.Unary):
            return self._unary(expr, modulo)
        if isinstance(expr, ir.Binary):
            return self._short(self._binary(expr, modulo))
        assert isinstance(expr, ir.Ternary), f"not a data expression: {expr}"
        return self._short(self._choice(expr, modulo))

    def field(self, field: FieldRef) -> Value:
        name, ones = self._context.field(field), self._context.possible_ones.get(field)
        if kind_of_width(field.width) == "wide":
            self._context.function.flow.read(field)
        return stored(name, field.width, field.signed, (field.low, field.high), ones)

    def fit(self, value: Value, width: int, signed: bool = False) -> Value:
        """Truncate to a width, as an assignment to a field does."""
        half, full = 1 << (width - 1), (1 << width) - 1
        if signed:
            if value.low >= -half and value.high < half:
                return value
            return self._signed(value, width)
        if value.low >= 0 and value.high <= full:
            return value
        if value.is_constant:
            return constant(value.low & full)
        return self.mask(value, full)

    def assigned(self, expr: Expr, width: int, signed: bool = False) -> Value:
        return self.fit(self.data(expr, width), width, signed)

    def scalar(self, value: Value, kind: Kind) -> str:
        """Return the text of a value as a type of up to 128 bits."""
        if value.is_constant:
            return literal(value.low, kind)
        if value.kind == kind:
            return value.text
        return self._wrapped(value, kind)

    def named(self, value: Value, stem: str) -> Value:
        """Store the value in a variable, and return that."""
        if value.kind == "wide":
            return self.wide.array(value, value.limbs)
        name = self._context.function.temporary(stem)
        self._context.writer.line(
            f"const {C_TYPES[value.kind]} {name} = {self.scalar(value, value.kind)};"
        )
        return make(value.kind, name, value.low, value.high, value.ones, atom=True)

    # -- Helpers -----------------------------------------------------------------------------------

    def _wrapped(self, value: Value, kind: Kind) -> str:
        """The text of a value, modulo what the type holds; it binds tightly."""
        if value.is_constant:
            if -(1 << 31) <= value.low < 1 << 31 and not (value.low < 0 and kind[0] == "u"):
                return str(value.low) if value.low >= 0 else f"({value.low})"
            if kind[0] == "u":
                return literal(value.low % (1 << _BITS[kind]), kind)
            return literal(value.low, kind)
        if value.kind == "wide":
            return self.wide.lowest(value, kind)
        if value.kind == kind:
            return value.at()
        return f"({C_TYPES[kind]}){value.at()}"

    def _lowest(self, value: Value, modulo: int | None) -> Value:
        """Drop limbs that are not used."""
        if modulo is None or value.is_constant or value.kind in ("u64", "i64"):
            return value
        if modulo <= 64:
            return make("u64", self._wrapped(value, "u64"), 0, (1 << 64) - 1)
        if modulo <= 128 and value.kind == "wide":
            return make("u128", self._wrapped(value, "u128"), 0, (1 << 128) - 1)
        if value.kind == "wide" and limbs_of(modulo) < value.limbs:
            limbs = limbs_of(modulo)
            full = (1 << 64 * limbs) - 1
            ones = value.ones & full if value.low >= 0 else full
            return Value("wide", value.text, 0, full, ones, limbs, value.atom, value.name)
        return value

    def _short(self, value: Value) -> Value:
        """Texts that get long become variables."""
        if max(value.low.bit_length(), value.high.bit_length()) > MAX_VALUE_BITS:
            raise NotNativeError(f"a value of more than {MAX_VALUE_BITS} bits")
        if len(value.text) <= _LONGEST_TEXT:
            return value
        return self.named(value, "part")

    def _target(
        self, low: int, high: int, operands: tuple[Value, ...], modulo: int | None
    ) -> tuple[Kind, int, bool]:
        """The type to compute in (with limbs), and whether it wraps around."""
        if modulo is not None:
            limbs = limbs_of(modulo)
            kind: Kind = "u64" if limbs == 1 else "u128" if limbs == 2 else "wide"
            if low < 0 or high >= 1 << 64 * limbs or any(v.low < 0 for v in operands):
                return kind, limbs, True
        least = min(low, *(v.low for v in operands))
        most = max(high, *(v.high for v in operands))
        return kind_for(least, most), limbs_for(least, most), False

    def operation(
        self,
        operator: str,
        left: Value,
        right: Value,
        bounds: tuple[int, int],
        modulo: int | None,
        ones: int | None = None,
    ) -> Value:
        """Return left operator right, for + - * & | ^."""
        low, high = bounds
        kind, limbs, wraps = self._target(low, high, (left, right), modulo)
        if wraps:
            full = (1 << 64 * limbs) - 1
            # What is known of the bits of a sum or difference is lost where it wraps around.
            keeps = operator in "&|^" and left.low >= 0 and right.low >= 0
            low, high, ones = 0, full, ones if keeps else None
        if kind == "wide":
            return self.wide.operation(operator, left, right, limbs, (low, high), ones)
        text = f"{self._wrapped(left, kind)} {operator} {self._wrapped(right, kind)}"
        return make(kind, text, low, high, ones)

    # -- Operators ---------------------------------------------------------------------------------

    def _unary(self, expr: ir.Unary, modulo: int | None) -> Value:
        if expr.op == "b2d":
            return make("u64", f"(uint64_t){paren(self.condition(expr.operand))}", 0, 1)
        operand = self.data(expr.operand, modulo)
        if operand.is_constant:
            return constant(~operand.low)
        low, high = ~operand.high, ~operand.low
        kind, limbs, wraps = self._target(low, high, (operand,), modulo)
        if wraps:
            low, high = 0, (1 << 64 * limbs) - 1
        if kind == "wide":
            return self.wide.invert(operand, limbs, (low, high))
        return make(kind, f"~{self._wrapped(operand, kind)}", low, high)

    def _choice(self, expr: ir.Ternary, modulo: int | None) -> Value:
        left, right = self.data(expr.left, modulo), self.data(expr.right, modulo)
        condition = paren(self.condition(expr.condition))
        low, high = min(left.low, right.low), max(left.high, right.high)
        if left.is_constant and right.is_constant and left.low == right.low:
            return left
        ones = left.ones | right.ones
        kind, limbs = kind_for(low, high), limbs_for(low, high)
        if kind == "wide":
            return self.wide.choice(condition, left, right, limbs, (low, high), ones)
        texts = [
            literal(v.low, kind) if v.is_constant else self._wrapped(v, kind) for v in (left, right)
        ]
        return make(kind, f"{condition} ? {texts[0]} : {texts[1]}", low, high, ones)

    def _binary(self, expr: ir.Binary, modulo: int | None) -> Value:
        op = expr.op
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            assert isinstance(expr.right, ir.Const)
            return self._cast(op, expr.left, expr.right.value, modulo)
        if op == "&":
            return self._and(expr, modulo)
        if op in ("<<", ">>"):
            return self._shift(op, expr, modulo)
        if op in ("/", "%"):
            return self.divide(op, self.data(expr.left), self.data(expr.right))
        left, right = self.data(expr.left, modulo), self.data(expr.right, modulo)
        if left.is_constant and right.is_constant:
            return constant(_FOLDS[op](left.low, right.low))
        if op == "+":
            high = left.high + right.high
            zeros = min(_trailing_zeros(left), _trailing_zeros(right))
            ones = (1 << high.bit_length()) - (1 << zeros) if high > 0 else 0
            return self.operation("+", left, right, (left.low + right.low, high), modulo, ones)
        if op == "-":
            bounds = (left.low - right.high, left.high - right.low)
            return self.operation("-", left, right, bounds, modulo)
        if op == "*":
            corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
            return self.operation("*", left, right, (min(corners), max(corners)), modulo)
        if left.low >= 0 and right.low >= 0:
            ones = left.ones | right.ones
            return self.operation(op, left, right, (0, _full(ones)), modulo, ones)
        return self.operation(op, left, right, _signed_bounds(left, right), modulo)

    def _and(self, expr: ir.Binary, modulo: int | None) -> Value:
        for value, mask in ((expr.left, expr.right), (expr.right, expr.left)):
            if isinstance(mask, ir.Const) and mask.value >= 0:
                bits = max(mask.value.bit_length(), 1)
                if modulo is not None:
                    bits = min(bits, modulo)
                return self.mask(self.data(value, bits), mask.value & (1 << bits) - 1)
        left, right = self.data(expr.left, modulo), self.data(expr.right, modulo)
        if left.is_constant and right.is_constant:
            return constant(left.low & right.low)
        if left.low >= 0 and right.low >= 0:
            high, ones = min(left.high, right.high), left.ones & right.ones
            return self.operation("&", left, right, (0, high), modulo, ones)
        if left.low >= 0 or right.low >= 0:
            bound = left if left.low >= 0 else right
            return self.operation("&", left, right, (0, bound.high), modulo, bound.ones)
        return self.operation("&", left, right, _signed_bounds(left, right), modulo)

    def mask(self, value: Value, mask: int) -> Value:
        """Return value & mask, where only the bits of the mask matter."""
        if value.is_constant:
            return constant(value.low & mask)
        if value.low >= 0 and value.ones & ~mask == 0:
            return value
        if mask == 0:
            return constant(0)
        ones = mask if value.low < 0 else value.ones & mask
        kind, limbs = kind_for(0, mask), limbs_for(0, mask)
        if kind == "i128":
            kind = "u128"
        if kind == "wide":
            # All ones up to the last limb: these limbs, as they are.
            if mask == (1 << 64 * limbs) - 1:
                text = self.wide.text(value, limbs)
                name = value.name if value.kind == "wide" and value.limbs == limbs else ""
                return make("wide", text, 0, mask, ones, limbs=limbs, atom=value.atom, name=name)
            return self.wide.operation("&", value, constant(mask), limbs, (0, mask), ones)
        full = (1 << _BITS[kind]) - 1
        text = self._wrapped(value, kind)
        if mask == full:
            return make(kind, text, 0, mask, ones)
        mask_text = self._wrapped(constant(mask), kind)
        return make(kind, f"{text} & {mask_text}", 0, mask, ones)

    def _signed(self, value: Value, width: int) -> Value:
        """The lowest `width` bits as a two's complement number."""
        half = 1 << (width - 1)
        if value.is_constant:
            return constant((value.low + half) % (2 * half) - half)
        if value.low >= -half and value.high < half:
            return value
        if width <= 64:
            text = f"p4r_signed64({self._wrapped(value, 'u64')}, {width})"
            return make("i64", text, -half, half - 1, atom=True)
        if width <= 128:
            text = f"p4r_signed128({self._wrapped(value, 'u128')}, {width})"
            return make("i128", text, -half, half - 1, atom=True)
        return self.wide.signed(value, width)

    def _cast(self, op: str, operand: Expr, width: int, modulo: int | None) -> Value:
        if op == "two_comp_mod":
            if modulo is not None and modulo <= width:
                return self.data(operand, modulo)
            return self._signed(self.data(operand, width), width)
        low, high = 0, (1 << width) - 1
        if op == "sat_cast":
            low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
        value = self.data(operand)
        if value.low >= low and value.high <= high:
            return value
        if value.is_constant:
            return constant(max(low, min(high, value.low)))
        kind = kind_for(min(value.low, low), max(value.high, high))
        if kind == "wide":
            return self.wide.clamp(value, low, high)
        bounds = [high] if kind[0] == "u" else [low, high]
        arguments = ", ".join([self._wrapped(value, kind), *(literal(b, kind) for b in bounds)])
        return make(kind, f"p4r_clamp_{kind}({arguments})", low, high, atom=True)

    # -- Shifts and division -----------------------------------------------------------------------

    def _amount(self, value: Value) -> str:
        """How far to shift, as 64 bits; what is negative becomes very large."""
        if value.kind == "wide":
            array = self.wide.array(value, value.limbs)
            return f"p4r_wide_amount({array.name}, {array.limbs})"
        if value.kind in ("u128", "i128"):
            return f"p4r_amount128({self._wrapped(value, 'u128')})"
        return self._wrapped(value, "u64")

    def _shift(self, op: str, expr: ir.Binary, modulo: int | None) -> Value:
        by = self.data(expr.right)
        if op == "<<":
            if by.is_constant and modulo is not None and (by.low >= modulo or by.low < 0):
                return constant(0)
            return self._shift_left(self.data(expr.left, modulo), by, modulo)
        return self._shift_right(self.data(expr.left), by)

    def _shift_left(self, left: Value, by: Value, modulo: int | None) -> Value:
        if by.is_constant and not 0 <= by.low <= MAX_WIDTH:
            return constant(0)
        most = min(by.high, MAX_WIDTH)
        least = max(min(by.low, MAX_WIDTH), 0)
        if max(left.low.bit_length(), left.high.bit_length()) + most > 2 * MAX_VALUE_BITS:
            raise NotNativeError(f"a value of more than {MAX_VALUE_BITS} bits")
        if left.is_constant and by.is_constant:
            return constant(left.low << by.low)
        low = left.low << (most if left.low < 0 else least)
        high = left.high << (least if left.high < 0 else most)
        ones = left.ones << least if least == most and left.low >= 0 else None
        if by.low < 0 or by.high > MAX_WIDTH:
            low, high = min(low, 0), max(high, 0)
        kind, limbs, wraps = self._target(low, high, (left,), modulo)
        if wraps:
            low, high = 0, (1 << 64 * limbs) - 1
            ones = None if ones is None else ones & high
        if kind == "wide":
            return self.wide.shift_left(left, self._amount(by), limbs, (low, high), ones)
        unsigned: Kind = "u64" if _BITS[kind] == 64 else "u128"
        text = self._wrapped(left, unsigned)
        if left.is_constant:
            text = literal(left.low % (1 << _BITS[kind]), unsigned)
        if by.is_constant:
            shifted, atom = f"{text} << {by.low}", False
        elif by.low >= 0 and by.high < _BITS[kind]:
            shifted, atom = f"{text} << {self._wrapped(by, 'u64')}", False
        else:
            shifted, atom = f"p4r_shl{_BITS[kind]}({text}, {self._amount(by)})", True
        if kind != unsigned:
            shifted, atom = f"({C_TYPES[kind]})({shifted})", False
        return make(kind, shifted, low, high, ones, atom=atom)

    def _shift_right(self, left: Value, by: Value) -> Value:
        if by.is_constant and by.low < 0:
            return constant(0)
        if left.is_constant and by.is_constant:
            return constant(left.low >> min(by.low, MAX_VALUE_BITS))
        least = max(min(by.low, MAX_WIDTH), 0)
        low, high = min(left.low, left.low >> least), max(left.high >> least, 0)
        if left.low >= 0:
            low = 0
        ones = left.ones >> least if by.low == by.high else None
        if by.low < 0:
            low, high = min(low, 0), max(high, 0)
        if left.kind == "wide" or (left.is_constant and kind_for(left.low, left.low) == "wide"):
            value = self.wide.shift_right(left, self._amount(by), by.low < 0, (low, high), ones)
            return self._narrowed(value)
        kind = left.kind
        bits = _BITS[kind]
        text = literal(left.low, kind) if left.is_constant else left.at()
        if by.low >= 0 and by.high < bits:
            amount = str(by.low) if by.is_constant else self._wrapped(by, "u64")
            return make(kind, f"{text} >> {amount}", low, high, ones)
        name = "shr" if kind[0] == "u" else "sar"
        shifted = f"p4r_{name}{bits}({text}, {self._amount(by)})"
        if by.low < 0 and left.low < 0:
            not_negative = self.compare(">=", by, constant(0))
            shifted = f"({not_negative} ? {shifted} : 0)"
        return make(kind, shifted, low, high, ones, atom=True)

    def _narrowed(self, value: Value) -> Value:
        """A value as the smallest type that holds it."""
        kind = kind_for(value.low, value.high)
        if value.kind == kind or kind == "wide":
            return value
        text = self._wrapped(value, kind)
        return make(kind, text, value.low, value.high, value.ones if value.low >= 0 else None)

    def divide(self, op: str, left: Value, right: Value) -> Value:
        if left.is_constant and right.is_constant:
            return constant(_FOLDS[op](left.low, right.low))
        low, bound = 0, max(abs(left.low), abs(left.high))
        if op == "%":
            bound = max(abs(right.low), abs(right.high))
            if right.low < 0:
                low = -bound
        elif left.low < 0 or right.low < 0:
            low = -bound
        least, most = min(left.low, right.low, low), max(left.high, right.high, bound)
        kind = kind_for(least, most)
        if kind == "wide" or (kind[0] == "i" and not fits("i128", 2 * least, 2 * most)):
            return self._narrowed(self.wide.divide(op, left, right, (low, bound)))
        name = "div" if op == "/" else "mod"
        as_kind: Kind = kind if kind[0] == "u" else "i128"
        function = f"p4r_{name}{_BITS[kind]}" if kind[0] == "u" else f"p4r_floor_{name}"
        operands = f"{self._wrapped(left, as_kind)}, {self._wrapped(right, as_kind)}"
        value = make(as_kind, f"{function}({operands})", low, bound, atom=True)
        return self._narrowed(value)

    # -- Conditions --------------------------------------------------------------------------------

    def condition(self, expr: Expr) -> str:
        """Return source that is 0 or 1 (or false or true)."""
        text = self._condition(expr)
        if len(text) <= _LONGEST_TEXT:
            return text
        name = self._context.function.temporary("is")
        self._context.writer.line(f"const bool {name} = {text};")
        return name

    def _condition(self, expr: Expr) -> str:
        if isinstance(expr, ir.Unary) and expr.op == "d2b":
            if isinstance(expr.operand, ir.Valid):
                return self._context.valid(expr.operand.header)
            if isinstance(expr.operand, ir.Unary) and expr.operand.op == "b2d":
                return self._condition(expr.operand.operand)
            return self.compare("!=", self.data(expr.operand), constant(0))
        if isinstance(expr, ir.Unary):
            return f"!{paren(self.condition(expr.operand))}"
        if isinstance(expr, ir.Binary):
            if expr.op in ("and", "or"):
                operator = "&&" if expr.op == "and" else "||"
                left, right = self.condition(expr.left), self.condition(expr.right)
                return f"{paren(left)} {operator} {paren(right)}"
            if expr.op in ("==h", "!=h"):
                return self._same_header(expr)
            if expr.op in ("==b", "!=b"):
                left, right = self.condition(expr.left), self.condition(expr.right)
                return f"{paren(left)} {expr.op[:2]} {paren(right)}"
            return self.compare(expr.op, self.data(expr.left), self.data(expr.right))
        if isinstance(expr, ir.Ternary):
            condition = paren(self.condition(expr.condition))
            left, right = paren(self.condition(expr.left)), paren(self.condition(expr.right))
            return f"{condition} ? {left} : {right}"
        if isinstance(expr, ir.BoolConst):
            return "true" if expr.value else "false"
        assert isinstance(expr, ir.Valid)
        return self._context.valid(expr.header)

    def compare(self, op: str, left: Value, right: Value) -> str:
        if left.is_constant and right.is_constant:
            return "true" if _COMPARISONS[op](left.low, right.low) else "false"
        if left.is_constant and op in _MIRRORED:
            left, right, op = right, left, _MIRRORED[op]
        elif left.is_constant:
            left, right = right, left
        decided = _decided(op, left, right)
        if decided is not None:
            return "true" if decided else "false"
        low, high = min(left.low, right.low), max(left.high, right.high)
        kind = kind_for(low, high)
        if kind == "wide":
            return self.wide.compare(op, left, right, limbs_for(low, high), low < 0)
        return f"{self._wrapped(left, kind)} {op} {self._wrapped(right, kind)}"

    def _same_header(self, expr: ir.Binary) -> str:
        """Both valid and all fields equal; as in BMv2, an invalid header equals nothing."""
        assert isinstance(expr.left, ir.HeaderValue)
        assert isinstance(expr.right, ir.HeaderValue)
        left, right = expr.left.header, expr.right.header
        headers = self._context.program.headers
        tests = [self._context.valid(left), self._context.valid(right)]
        tests += [
            paren(self.compare("==", self.field(a), self.field(b)))
            for a, b in zip(headers[left].fields, headers[right].fields, strict=True)
        ]
        same = " && ".join(tests)
        return same if expr.op == "==h" else f"!({same})"


def _decided(op: str, left: Value, right: Value) -> bool | None:
    """What a comparison gives whatever the values are, if that is known."""
    if op in ("==", "!="):
        if left.high < right.low or right.high < left.low:
            return op == "!="
        return None
    if op in ("<", "<="):
        if left.high < right.low or (op == "<=" and left.high == right.low):
            return True
        if left.low > right.high or (op == "<" and left.low == right.high):
            return False
        return None
    return _decided(_MIRRORED[op], right, left)


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FOLDS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "|": operator.or_,
    "^": operator.xor,
    "/": lambda left, right: left // right if right else 0,
    "%": lambda left, right: left % right if right else 0,
}


def _trailing_zeros(value: Value) -> int:
    return (value.ones & -value.ones).bit_length() - 1 if value.low >= 0 and value.ones else 0


def _full(ones: int) -> int:
    return (1 << ones.bit_length()) - 1


def _signed_bounds(left: Value, right: Value) -> tuple[int, int]:
    bits = max(v.bit_length() for v in (left.low, left.high, right.low, right.high))
    return -(1 << bits), (1 << bits) - 1
