# SPDX-License-Identifier: Apache-2.0
"""Values of expressions in C: text, type, and known bits.

A value of up to 64 bits is a uint64_t or an int64_t, one of up to 128 a (p4r_)u128 or i128. A wider
one is written limb by limb: its text has `§` for the limb's number, so a statement becomes one
loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["u64", "i64", "u128", "i128", "wide"]
C_TYPES = {"u64": "uint64_t", "i64": "int64_t", "u128": "p4r_u128", "i128": "p4r_i128"}
_RANGES: tuple[tuple[Kind, int, int], ...] = (
    ("u64", 0, (1 << 64) - 1),
    ("i64", -(1 << 63), (1 << 63) - 1),
    ("u128", 0, (1 << 128) - 1),
    ("i128", -(1 << 127), (1 << 127) - 1),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A value within low..high.

    `ones`: the bits that may be set, where low >= 0. `limbs`: of a wide value, two's complement if
    low < 0. `atom`: the text needs no parentheses. `name`: of a wide value that is an array.
    """

    kind: Kind
    text: str
    low: int
    high: int
    ones: int
    limbs: int = 0
    atom: bool = True
    name: str = ""

    @property
    def is_constant(self) -> bool:
        return self.low == self.high

    def at(self) -> str:
        """Return the text, in parentheses if it needs them."""
        return self.text if self.atom else f"({self.text})"


def make(
    kind: Kind,
    text: str,
    low: int,
    high: int,
    ones: int | None = None,
    *,
    limbs: int = 0,
    atom: bool = False,
    name: str = "",
) -> Value:
    """Return a value whose bounds are narrowed by its known bits."""
    if low < 0:
        return Value(kind, text, low, high, 0, limbs, atom, name)
    bits = (1 << high.bit_length()) - 1
    ones = bits if ones is None else ones & bits
    return Value(kind, text, low, min(high, ones), ones, limbs, atom, name)


def stored(
    text: str, width: int, signed: bool, bounds: tuple[int, int], ones: int | None = None
) -> Value:
    """The value of a variable or member `text` for a field of this width: if wide, an array."""
    kind = kind_of_width(width, signed)
    if kind != "wide":
        return make(kind, text, *bounds, ones, atom=True)
    limbs = limbs_of(width)
    return make(kind, f"{text}[§]", *bounds, ones, limbs=limbs, atom=True, name=text)


def constant(value: int) -> Value:
    return Value(kind_for(value, value), "", value, value, max(value, 0), limbs_for(value, value))


def fits(kind: Kind, low: int, high: int) -> bool:
    return kind == "wide" or any(k == kind and a <= low and high <= b for k, a, b in _RANGES)


def kind_for(low: int, high: int) -> Kind:
    """Return the smallest type for values within low..high."""
    for kind, least, most in _RANGES:
        if least <= low and high <= most:
            return kind
    return "wide"


def kind_of_width(width: int, signed: bool = False) -> Kind:
    """Return the type of a field."""
    if width > 128:
        return "wide"
    if width > 64:
        return "i128" if signed else "u128"
    return "i64" if signed else "u64"


def limbs_of(width: int) -> int:
    return (width + 63) // 64


def limbs_for(low: int, high: int) -> int:
    bits = max(low.bit_length(), high.bit_length())
    return max(1, limbs_of(bits + 1 if low < 0 else bits))


def literal(value: int, kind: Kind) -> str:
    """Return a constant of up to 128 bits. Wider ones are arrays."""
    if kind == "u64":
        value %= 1 << 64
        if value < 1 << 31:
            return f"UINT64_C({value})" if value < 1024 else f"UINT64_C({value:#x})"
        return f"UINT64_C({value:#x})"
    if kind == "i64":
        if value == -(1 << 63):
            return "INT64_MIN"
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    high, low = value >> 64, value & (1 << 64) - 1
    if kind == "i128":
        return f"((p4r_i128)((p4r_u128){literal(high, 'u64')} << 64 | {literal(low, 'u64')}))"
    return f"((p4r_u128){literal(high, 'u64')} << 64 | {literal(low, 'u64')})"
