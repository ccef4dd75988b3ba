# SPDX-License-Identifier: Apache-2.0
"""Primitives on header stacks and unions, as statements about plain headers.

What happens to a whole stack, or to the element at an index known only at run time, is what
`header_stacks.py` makes of it. A union is its headers, of which one becoming valid invalidates the
others.
"""

from __future__ import annotations

from functools import partial

from p4reduce_switch.loader.context import Context
from p4reduce_switch.loader.expressions import Params, unwrapped
from p4reduce_switch.loader.headers import Headers
from p4reduce_switch.loader.json_values import Json, as_number, constant_of, refusal
from p4reduce_switch.loader.primitives import load_primitive
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import do_at_index
from p4reduce_switch.program.ir import Source, Statement

__all__ = ["at_run_time", "invalidations", "load_statements", "with_siblings"]


def load_statements(
    context: Context, item: Json, source: Source, params: Params = ()
) -> tuple[Statement, ...]:
    """What a primitive does, if on a stack, an element of one or a union then to their headers."""
    element = at_run_time(context, item, source, params)
    if element is not None:
        return element
    if item["op"] in ("push", "pop", "assign_header_stack"):
        return tuple(_on_stack(context.headers, item, source))
    if item["op"] == "assign_union":
        return tuple(_assign_union(context.headers, item, source))
    primitive = load_primitive(context, item["op"], item, source, params)
    return with_siblings(context.headers, primitive)


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


def at_run_time(
    context: Context, item: Json, source: Source, params: Params = ()
) -> tuple[Statement, ...] | None:
    """A primitive that changes or copies an element of a stack by a run-time index; else None.

    It is made for each element, with that in its place.
    """
    kinds = ir.PRIMITIVES.get(item["op"])
    if kinds is None:
        return None
    for position, (kind, argument) in enumerate(zip(kinds, item["parameters"], strict=False)):
        if kind not in ("field", "header"):
            continue
        part = unwrapped(argument)
        number: int | None = None
        if part.get("op") == "access_field":
            number = as_number(part["right"], "the number of a field")
            part = part["left"]
        element = context.expressions.element(part, source, params)
        if element is None:
            continue
        make = partial(_with_element, context, item, position, number, source, params)
        otherwise: tuple[Statement, ...] = ()
        if item["op"] == "assign_header" and position == 1:
            # A copy of an element that is not there is as invalid as that.
            target = context.headers.header(item["parameters"][0]["value"], source)
            otherwise = (ir.Primitive("invalidate", (ir.HeaderValue(target),), source),)
        return do_at_index(*element, make, otherwise)
    return None


def _with_element(
    context: Context,
    item: Json,
    position: int,
    number: int | None,
    source: Source,
    params: Params,
    header: str,
) -> tuple[Statement, ...]:
    """The primitive with `header`, or its field of that number, as one of its arguments."""
    argument: Json = {"type": "header", "value": header}
    if number is not None:
        field = context.headers.by_name[header].fields[number]
        argument = {"type": "field", "value": [header, field.name]}
    parameters = list(item["parameters"])
    parameters[position] = argument
    return load_statements(context, {**item, "parameters": parameters}, source, params)


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
