# SPDX-License-Identifier: Apache-2.0
"""Header stacks in terms of plain headers: what the generator never needs to know.

A stack is its elements and the number of the next free one, kept in a field of hidden metadata.
`last` and an index known only at run time become a choice between the elements, `push_front` and
`pop_front` swap elements. All is as BMv2 does it in its default, P4_16's semantics:
pushed elements are invalid, and only the parser and push and pop move `next`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Expr, FieldRef, Source, Statement

__all__ = ["STACKS", "HeaderStack", "at_index", "do_at_index", "hidden_metadata"]

STACKS = "$stacks"
"""The hidden metadata; p4c's names never start like this."""


@dataclass(frozen=True, slots=True)
class HeaderStack:
    """A stack: its name and the headers that are its elements."""

    name: str
    elements: tuple[str, ...]

    @property
    def next(self) -> FieldRef:
        """How many elements are taken: the index of the next one."""
        return FieldRef(STACKS, f"{self.name}.next", 32)

    def last_index(self) -> Expr:
        """`lastIndex`; of an empty stack -1, which a field takes as all ones."""
        return ir.Binary("-", self.next, ir.Const(1))

    def last_field(self, field: Callable[[str], FieldRef]) -> Expr:
        """A field of `last`; that of an empty stack, at which BMv2 ends, is 0."""
        return at_index(self, self.last_index(), field, ir.Const(0))

    def push(self, count: int, source: Source) -> list[Statement]:
        """`push_front`."""
        size = len(self.elements)
        statements: list[Statement] = [
            _swap(self.elements[to], self.elements[to - count], source)
            for to in range(size - 1, count - 1, -1)
        ]
        statements += [_invalidate(header, source) for header in self.elements[:count]]
        taken = ir.Binary("+", self.next, ir.Const(count))
        full = ir.Binary(">", taken, ir.Const(size))
        return [*statements, self._set_next(ir.Choice(full, ir.Const(size), taken), source)]

    def pop(self, count: int, source: Source) -> list[Statement]:
        """`pop_front`."""
        size = len(self.elements)
        kept = max(size - count, 0)
        statements: list[Statement] = [
            _swap(self.elements[to], self.elements[to + count], source) for to in range(kept)
        ]
        statements += [_invalidate(header, source) for header in self.elements[kept:]]
        left = ir.Binary("-", self.next, ir.Const(count))
        some = ir.Binary(">", self.next, ir.Const(count))
        return [*statements, self._set_next(ir.Choice(some, left, ir.Const(0)), source)]

    def assign(self, origin: HeaderStack, source: Source) -> list[Statement]:
        """Assignment of a whole stack."""
        statements: list[Statement] = [
            _assign_header(to, from_, source)
            for to, from_ in zip(self.elements, origin.elements, strict=True)
        ]
        return [*statements, self._set_next(origin.next, source)]

    def _set_next(self, value: Expr, source: Source) -> Statement:
        return ir.Primitive("assign", (self.next, value), source)


def at_index(
    stack: HeaderStack, index: Expr, value: Callable[[str], Expr], otherwise: Expr
) -> Expr:
    """What `value` makes of the element at `index`, and `otherwise` if there is none."""
    result = otherwise
    for number in range(len(stack.elements) - 1, -1, -1):
        here = ir.Binary("==", index, ir.Const(number))
        result = ir.Choice(here, value(stack.elements[number]), result)
    return result


def do_at_index(
    stack: HeaderStack,
    index: Expr,
    make: Callable[[str], tuple[Statement, ...]],
    otherwise: tuple[Statement, ...] = (),
) -> tuple[Statement, ...]:
    """The statements for the element at `index`, and `otherwise` if there is none."""
    statements = otherwise
    for number in range(len(stack.elements) - 1, -1, -1):
        here = ir.Binary("==", index, ir.Const(number))
        statements = (ir.If(here, make(stack.elements[number]), statements),)
    return statements


def hidden_metadata(stacks: Sequence[HeaderStack]) -> ir.Header:
    """The metadata that holds where each stack's next element is."""
    return ir.Header(STACKS, tuple(stack.next for stack in stacks), is_metadata=True)


def _assign_header(target: str, origin: str, source: Source) -> Statement:
    return ir.Primitive("assign_header", (ir.HeaderValue(target), ir.HeaderValue(origin)), source)


def _swap(one: str, other: str, source: Source) -> Statement:
    return ir.Primitive("swap_headers", (ir.HeaderValue(one), ir.HeaderValue(other)), source)


def _invalidate(header: str, source: Source) -> Statement:
    return ir.Primitive("invalidate", (ir.HeaderValue(header),), source)
