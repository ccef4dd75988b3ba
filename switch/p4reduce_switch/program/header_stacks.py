# SPDX-License-Identifier: Apache-2.0
"""Expresses header stacks, also of unions, by plain headers, so generators need not know them.

A stack is its elements, and the index of the next free one in a field of hidden metadata. `last`
and a run-time index become a choice between elements. `push_front` and `pop_front` swap elements.
The semantics are BMv2's default ones, those of P4_16: pushed elements are invalid, and only the
parser, push and pop change `next`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Expr, FieldRef, SourceLocation, Statement

STACKS = "$stacks"
"""The hidden metadata; p4c's names never start like this."""


@dataclass(frozen=True, slots=True)
class HeaderStack:
    """A header stack: its name and its elements."""

    name: str
    elements: tuple[str, ...]

    @property
    def next(self) -> FieldRef:
        """The number of elements in use, which is the index of the next one."""
        return FieldRef(STACKS, f"{self.name}.next", 32)

    @property
    def headers(self) -> tuple[str, ...]:
        """All headers of the stack."""
        return self.elements

    def last_index(self) -> Expr:
        """The expression for `lastIndex`. For an empty stack it is -1, which a field stores as all
        ones."""
        return ir.Binary("-", self.next, ir.Const(1))

    def last_field(self, field: Callable[[str], FieldRef]) -> Expr:
        """The expression for a field of `last`. For an empty stack, at which BMv2 ends, it is 0."""
        return at_index(self, self.last_index(), field, ir.Const(0))

    def push(self, count: int, source: SourceLocation) -> list[Statement]:
        """`push_front`."""
        pushed = [_invalidate(header, source) for header in self.elements[:count]]
        return [*self.shift_up(count, source), *pushed, _after_push(self, count, source)]

    def pop(self, count: int, source: SourceLocation) -> list[Statement]:
        """`pop_front`."""
        kept = max(len(self.elements) - count, 0)
        popped = [_invalidate(header, source) for header in self.elements[kept:]]
        return [*self.shift_down(count, source), *popped, _after_pop(self, count, source)]

    def shift_up(self, count: int, source: SourceLocation) -> list[Statement]:
        """Move elements away from the front. The last ones move to the front."""
        return [
            _swap(self.elements[to], self.elements[to - count], source)
            for to in range(len(self.elements) - 1, count - 1, -1)
        ]

    def shift_down(self, count: int, source: SourceLocation) -> list[Statement]:
        """Move elements to the front. The first ones move to the end."""
        return [
            _swap(self.elements[to], self.elements[to + count], source)
            for to in range(max(len(self.elements) - count, 0))
        ]


@dataclass(frozen=True, slots=True)
class UnionStack:
    """A stack of header unions: its name, the names of a union's headers, and each union's
    headers."""

    name: str
    members: tuple[str, ...]
    elements: tuple[tuple[str, ...], ...]

    @property
    def next(self) -> FieldRef:
        """The number of elements in use, which is the index of the next one."""
        return FieldRef(STACKS, f"{self.name}.next", 32)

    @property
    def headers(self) -> tuple[str, ...]:
        """All headers of the stack, union by union."""
        return tuple(header for element in self.elements for header in element)

    def last_index(self) -> Expr:
        """The expression for `lastIndex`, as for a header stack."""
        return ir.Binary("-", self.next, ir.Const(1))

    def column(self, member: str) -> HeaderStack:
        """Return the same header of all unions, which behaves like a header stack."""
        number = self.members.index(member)
        return HeaderStack(self.name, tuple(element[number] for element in self.elements))

    def push(self, count: int, source: SourceLocation) -> list[Statement]:
        """`push_front`. BMv2 invalidates no union, so the last elements move to the front."""
        shifted = [s for name in self.members for s in self.column(name).shift_up(count, source)]
        return [*shifted, _after_push(self, count, source)]

    def pop(self, count: int, source: SourceLocation) -> list[Statement]:
        """`pop_front`. BMv2 invalidates no union, so the first elements move to the end."""
        shifted = [s for name in self.members for s in self.column(name).shift_down(count, source)]
        return [*shifted, _after_pop(self, count, source)]


def _after_push(stack: HeaderStack | UnionStack, count: int, source: SourceLocation) -> Statement:
    size = ir.Const(len(stack.elements))
    taken = ir.Binary("+", stack.next, ir.Const(count))
    return _set_next(stack, ir.Ternary(ir.Binary(">", taken, size), size, taken), source)


def _after_pop(stack: HeaderStack | UnionStack, count: int, source: SourceLocation) -> Statement:
    left = ir.Binary("-", stack.next, ir.Const(count))
    some = ir.Binary(">", stack.next, ir.Const(count))
    return _set_next(stack, ir.Ternary(some, left, ir.Const(0)), source)


def _set_next(stack: HeaderStack | UnionStack, value: Expr, source: SourceLocation) -> Statement:
    return ir.Primitive("assign", (stack.next, value), source)


def at_index(
    stack: HeaderStack, index: Expr, value: Callable[[str], Expr], otherwise: Expr
) -> Expr:
    """Return the expression `value` for the element at `index`, and `otherwise` if there is
    none."""
    result = otherwise
    for number in range(len(stack.elements) - 1, -1, -1):
        here = ir.Binary("==", index, ir.Const(number))
        result = ir.Ternary(here, value(stack.elements[number]), result)
    return result


def do_at_index(
    stack: HeaderStack,
    index: Expr,
    make: Callable[[str], tuple[Statement, ...]],
    otherwise: tuple[Statement, ...] = (),
) -> tuple[Statement, ...]:
    """Return the statements for the element at `index`, and `otherwise` if there is none."""
    statements = otherwise
    for number in range(len(stack.elements) - 1, -1, -1):
        here = ir.Binary("==", index, ir.Const(number))
        statements = (ir.If(here, make(stack.elements[number]), statements),)
    return statements


def hidden_metadata(
    stacks: Iterable[HeaderStack], of_unions: Iterable[UnionStack]
) -> ir.HeaderInstance:
    """Return the metadata with each stack's `next`."""
    counts = [*(stack.next for stack in stacks), *(stack.next for stack in of_unions)]
    return ir.HeaderInstance(STACKS, tuple(counts), is_metadata=True)


def _swap(one: str, other: str, source: SourceLocation) -> Statement:
    return ir.Primitive("swap_headers", (ir.HeaderValue(one), ir.HeaderValue(other)), source)


def _invalidate(header: str, source: SourceLocation) -> Statement:
    return ir.Primitive("invalidate", (ir.HeaderValue(header),), source)
