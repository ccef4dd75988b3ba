# SPDX-License-Identifier: Apache-2.0
"""Primitives on header stacks and unions, as statements about plain headers.

What happens to a whole stack, or to the element at an index known only at run time, is what
`header_stacks.py` makes of it. A union is its headers, of which one becoming valid invalidates the
others.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import program as ir
from .header_stacks import do_at_index
from .loader_context import Context
from .loader_expressions import Params, unwrapped
from .loader_headers import Headers
from .loader_json import Json, as_number, constant_of, refusal
from .program import Source, Statement

__all__ = ["invalidations", "load_stack_or_union_primitive", "with_siblings"]


def load_stack_or_union_primitive(
    context: Context, item: Json, source: Source, params: Params
) -> Sequence[Statement] | None:
    """What a primitive on a stack, on an element of one, or on a union does; else None."""
    element = _at_run_time(context, item, source, params)
    if element is not None:
        return element
    if item["op"] in ("push", "pop", "assign_header_stack"):
        return _on_stack(context.headers, item, source)
    if item["op"] == "assign_union":
        return _assign_union(context.headers, item, source)
    return None


def with_siblings(headers: Headers, primitive: ir.Primitive) -> tuple[Statement, ...]:
    """The primitive, and what it does to the other headers of a union."""
    if primitive.op not in ("add_header", "assign_header"):
        return (primitive,)
    target = primitive.args[0]
    assert isinstance(target, ir.HeaderValue)
    others = invalidations(headers, target.header, primitive.source)
    if not others or primitive.op == "add_header":
        return (primitive, *others)
    origin = primitive.args[1]
    assert isinstance(origin, ir.HeaderValue)
    return (primitive, ir.If(ir.Valid(origin.header, is_bool=True), others, ()))


def invalidations(headers: Headers, header: str, source: Source) -> tuple[Statement, ...]:
    """What happens to the other headers of its union when a header becomes valid."""
    return tuple(
        ir.Primitive("invalidate", (ir.HeaderValue(other),), source)
        for other in headers.siblings(header)
    )


def _at_run_time(
    context: Context, item: Json, source: Source, params: Params
) -> tuple[Statement, ...] | None:
    """A primitive whose target is an element of a stack by a run-time index; else None."""
    if item["op"] not in ("assign", "add_header", "remove_header") or not item["parameters"]:
        return None
    target, *rest = item["parameters"]
    target = unwrapped(target)
    number: int | None = None
    if target.get("op") == "access_field":
        number = as_number(target["right"], "the number of a field")
        target = target["left"]
    element = context.expressions.element(target, source, params)
    if element is None:
        return None

    def make(header: str) -> Statement:
        if number is None:
            return ir.Primitive(item["op"], (ir.HeaderValue(header),), source)
        value = context.expressions.data(rest[0], source, params)
        field = context.headers.by_name[header].fields[number]
        return ir.Primitive("assign", (field, value), source)

    return do_at_index(*element, make)


def _on_stack(headers: Headers, item: Json, source: Source) -> list[Statement]:
    first, second = item["parameters"]
    stack = headers.stack(first["value"], source)
    if item["op"] == "assign_header_stack":
        return stack.assign(headers.stack(second["value"], source), source)
    count = constant_of(second)
    if count is None:
        raise refusal(f"'{item['op']}' by a number that is not constant", source)
    return stack.push(count, source) if item["op"] == "push" else stack.pop(count, source)


def _assign_union(headers: Headers, item: Json, source: Source) -> list[Statement]:
    target, origin = (headers.union(part["value"], source) for part in item["parameters"])
    statements: list[Statement] = []
    for to, from_ in zip(target, origin, strict=True):
        args = (ir.HeaderValue(to), ir.HeaderValue(from_))
        statements += with_siblings(headers, ir.Primitive("assign_header", args, source))
    return statements
