# SPDX-License-Identifier: Apache-2.0
"""Operations on numbers of more than 128 bits.

Operations without carries stay text, so one statement becomes one loop, which the compiler
vectorises. These are bitwise operations, and additions in which known zero bits exclude a carry
between limbs. All others use arrays and functions of the run-time.
"""

from __future__ import annotations

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.values import C_TYPES, Kind, Value, constant, limbs_for, make

_LONGEST_TEXT = 300


class Wide:
    """Writes operations with a wide operand or result."""

    def __init__(self, context: CContext) -> None:
        self._context = context

    # -- From and to -------------------------------------------------------------------------------

    def text(self, value: Value, limbs: int, *, bare: bool = False) -> str:
        """Return text with § for each of `limbs` limbs, modulo what they hold.

        `bare`: its context needs no parentheses.
        """
        if value.is_constant:
            return self._context.wide_constant(value.low, limbs)
        if value.kind == "wide" and value.limbs >= limbs:
            if bare:
                return value.text
            if len(value.text) > _LONGEST_TEXT:
                return self.array(value, value.limbs).text
            return value.at()
        return self._extended(value, limbs).text

    def array(self, value: Value, limbs: int) -> Value:
        """Return the value in an array of `limbs` limbs."""
        if value.kind == "wide" and value.name and value.limbs == limbs:
            return value
        if not value.is_constant and (value.kind != "wide" or value.limbs < limbs):
            return self._extended(value, limbs)
        text = self.text(value, limbs, bare=True)
        name = self._new(limbs)
        self._context.writer.limbs(limbs, f"{name}[i] = {text.replace('§', 'i')};")
        return self._leaf(name, limbs, value.low, value.high, value.ones)

    def lowest(self, value: Value, kind: Kind) -> str:
        """Return the lowest 64 or 128 bits."""
        if kind in ("u64", "i64"):
            text = self._limb(value, 0)
            return text if kind == "u64" else f"(int64_t){text}"
        text = f"((p4r_u128){self._limb(value, 1)} << 64 | {self._limb(value, 0)})"
        return text if kind == "u128" else f"(p4r_i128){text}"

    def _limb(self, value: Value, number: int) -> str:
        text = value.text.replace("§", str(number))
        return text if value.atom else f"({text})"

    def _new(self, limbs: int) -> str:
        name = self._context.function.temporary("wide")
        self._context.function.take_stack(limbs)
        self._context.writer.before_limbs(limbs, f"uint64_t {name}[{limbs}];")
        return name

    def _leaf(self, name: str, limbs: int, low: int, high: int, ones: int | None) -> Value:
        return make("wide", f"{name}[§]", low, high, ones, limbs=limbs, atom=True, name=name)

    def _extended(self, value: Value, limbs: int) -> Value:
        """A value of less limbs as an array of more."""
        if value.kind == "wide":
            array = self.array(value, value.limbs)
            name = self._new(limbs)
            signed = "true" if value.low < 0 else "false"
            self._context.writer.line(
                f"p4r_wide_extend({name}, {limbs}, {array.name}, {array.limbs}, {signed});"
            )
        else:
            name = self._new(limbs)
            signed_kind = value.kind[0] == "i"
            kind: Kind = "i128" if signed_kind else "u128"
            text = f"({C_TYPES[kind]}){value.at()}"
            self._context.writer.line(f"p4r_wide_from_{kind}({name}, {limbs}, {text});")
        return self._leaf(name, limbs, value.low, value.high, value.ones)

    # -- Limb by limb ------------------------------------------------------------------------------

    def operation(
        self,
        operator: str,
        left: Value,
        right: Value,
        limbs: int,
        bounds: tuple[int, int],
        ones: int | None,
    ) -> Value:
        """Return left operator right, for + - * & | ^, in `limbs` limbs."""
        low, high = bounds
        if operator in "&|^" or (operator == "+" and _carries_nothing(left, right, limbs)):
            text = f"{self.text(left, limbs)} {operator} {self.text(right, limbs)}"
            return make("wide", text, low, high, ones, limbs=limbs)
        function = {"+": "add", "-": "subtract", "*": "multiply"}[operator]
        one, other = self.array(left, limbs), self.array(right, limbs)
        name = self._new(limbs)
        self._context.writer.line(
            f"p4r_wide_{function}({name}, {one.name}, {other.name}, {limbs});"
        )
        return self._leaf(name, limbs, low, high, ones)

    def invert(self, operand: Value, limbs: int, bounds: tuple[int, int]) -> Value:
        return make("wide", f"~{self.text(operand, limbs)}", *bounds, limbs=limbs)

    def choice(
        self,
        condition: str,
        left: Value,
        right: Value,
        limbs: int,
        bounds: tuple[int, int],
        ones: int | None,
    ) -> Value:
        if not condition.isidentifier():
            name = self._context.function.temporary("is")
            # The loop that may be open can be what computes it, so it does not go before that.
            self._context.writer.line(f"const bool {name} = {condition};")
            condition = name
        text = f"{condition} ? {self.text(left, limbs)} : {self.text(right, limbs)}"
        return make("wide", text, *bounds, ones, limbs=limbs)

    # -- Through arrays ----------------------------------------------------------------------------

    def signed(self, value: Value, width: int) -> Value:
        """Return the lowest `width` bits as a two's complement number."""
        limbs, half = (width + 63) // 64, 1 << (width - 1)
        text = self.text(value, limbs).replace("§", "i")
        name = self._new(limbs)
        writer = self._context.writer
        writer.limbs(limbs, f"{name}[i] = {text};")
        if width % 64:
            writer.line(f"p4r_wide_signed({name}, {limbs}, {width});")
        return self._leaf(name, limbs, -half, half - 1, None)

    def clamp(self, value: Value, low: int, high: int) -> Value:
        limbs = max(limbs_for(value.low, value.high), limbs_for(low, high))
        if value.low < 0 or low < 0:
            limbs = limbs_for(min(value.low, low), max(value.high, high))
        array = self.array(value, limbs)
        result = array
        for op, bound in (("<", low), (">", high)):
            if (op == "<" and value.low >= bound) or (op == ">" and value.high <= bound):
                continue
            test = self.compare(op, array, constant(bound), limbs, min(value.low, low) < 0)
            result = self.choice(test, constant(bound), result, limbs, (low, high), None)
        text = result.text.replace("§", "i")
        name = self._new(limbs)
        self._context.writer.limbs(limbs, f"{name}[i] = {text};")
        return self._leaf(name, limbs, low, high, None)

    def shift_left(
        self, left: Value, amount: str, limbs: int, bounds: tuple[int, int], ones: int | None
    ) -> Value:
        array = self.array(left, limbs)
        name = self._new(limbs)
        self._context.writer.line(f"p4r_wide_shl({name}, {array.name}, {limbs}, {amount});")
        return self._leaf(name, limbs, *bounds, ones)

    def shift_right(
        self,
        left: Value,
        amount: str,
        may_be_negative: bool,
        bounds: tuple[int, int],
        ones: int | None,
    ) -> Value:
        """Return the value shifted right.

        `may_be_negative`: whether the amount may be; the result is then zero.
        """
        limbs = left.limbs
        array = self.array(left, limbs)
        name = self._new(limbs)
        writer = self._context.writer
        signed = "true" if left.low < 0 else "false"
        writer.line(f"p4r_wide_shr({name}, {array.name}, {limbs}, {amount}, {signed});")
        if may_be_negative and left.low < 0:
            with writer.block(f"if ((int64_t){amount} < 0)"):
                writer.line(f"p4r_wide_zero({name}, {limbs});")
        return self._leaf(name, limbs, *bounds, ones)

    def divide(self, op: str, left: Value, right: Value, bounds: tuple[int, int]) -> Value:
        least, most = min(left.low, right.low, bounds[0]), max(left.high, right.high, bounds[1])
        limbs = limbs_for(least, most)
        writer = self._context.writer
        operands = []
        for value in (left, right):  # which are changed, so these are copies
            text = self.text(value, limbs).replace("§", "i")
            operands.append(self._new(limbs))
            writer.limbs(limbs, f"{operands[-1]}[i] = {text};")
        quotient, rest = self._new(limbs), self._new(limbs)
        signed = "true" if least < 0 else "false"
        arguments = f"{quotient}, {rest}, {operands[0]}, {operands[1]}, {limbs}, {signed}"
        writer.line(f"p4r_wide_divide({arguments});")
        return self._leaf(quotient if op == "/" else rest, limbs, *bounds, None)

    # -- Comparisons -------------------------------------------------------------------------------

    def compare(self, op: str, left: Value, right: Value, limbs: int, signed: bool) -> str:
        writer = self._context.writer
        if op in ("==", "!="):
            one, other = self.text(left, limbs), self.text(right, limbs)
            differs = one if right.is_constant and right.low == 0 else f"{one} ^ {other}"
            name = self._context.function.temporary("differs")
            writer.before_limbs(limbs, f"uint64_t {name} = 0;")
            writer.limbs(limbs, f"{name} |= {differs.replace('§', 'i')};")
            return f"{name} {op} 0"
        first, second = self.array(left, limbs), self.array(right, limbs)
        if op in (">", "<="):
            first, second = second, first
        less = (
            f"p4r_wide_less({first.name}, {second.name}, {limbs}, {'true' if signed else 'false'})"
        )
        return less if op in ("<", ">") else f"!{less}"


def _carries_nothing(left: Value, right: Value, limbs: int) -> bool:
    """Whether a sum is that of the limbs, each for itself."""
    if left.low < 0 or right.low < 0:
        return False
    limb = (1 << 64) - 1
    return all(
        (left.ones >> 64 * i & limb) + (right.ones >> 64 * i & limb) <= limb
        for i in range(limbs - 1)
    )
