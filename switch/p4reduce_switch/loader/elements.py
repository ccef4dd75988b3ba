# SPDX-License-Identifier: Apache-2.0
"""Primitives on header stacks, unions and varbit fields, as statements about plain headers.

`header_stacks.py` translates operations on whole stacks and on elements at a run-time index. A
union is its headers: if one becomes valid, the others become invalid. A varbit field is a number
with its bits, and their count.
"""

from __future__ import annotations

from functools import partial

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.expressions import Params, unwrapped
from p4reduce_switch.loader.headers import Headers
from p4reduce_switch.loader.json_values import Json, as_number, constant_of, refusal
from p4reduce_switch.loader.primitives import load_primitive
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import do_at_index
from p4reduce_switch.program.ir import FieldRef, SourceLocation, Statement
from p4reduce_switch.program.load_error import LoadError


def load_statements(
    context: LoaderContext, item: Json, source: SourceLocation, params: Params = ()
) -> tuple[Statement, ...]:
    """Return what a primitive does; for stacks, elements and unions, as operations on their
    headers."""
    element = at_run_time(context, item, source, params)
    if element is not None:
        return element
    headers, op = context.headers, item["op"]
    if op == "assign" and headers.is_empty(item["parameters"][0]):
        return ()
    if op in ("push", "pop"):
        return tuple(_shift(headers, item, source))
    if op in ("assign_header_stack", "assign_union_stack", "assign_union"):
        return tuple(_assign_whole(headers, item, source))
    primitive = load_primitive(context, op, item, source, params)
    if op == "assign_VL":
        return _assign_varbit(headers, primitive)
    if op == "assign_header":
        target, origin = primitive.args
        assert isinstance(target, ir.HeaderValue)
        assert isinstance(origin, ir.HeaderValue)
        return _copy(headers, target.header, origin.header, source)
    if op == "add_header":
        (target,) = primitive.args
        assert isinstance(target, ir.HeaderValue)
        return (primitive, *invalidations(headers, target.header, source))
    return (primitive,)


def _copy(
    headers: Headers, target: str, origin: str, source: SourceLocation
) -> tuple[Statement, ...]:
    """A copy of a header, and what that does to the other headers of a union."""
    headers.check_alike(target, origin, source)
    args = (ir.HeaderValue(target), ir.HeaderValue(origin))
    copy = ir.Primitive("assign_header", args, source)
    others = invalidations(headers, target, source)
    if not others:
        return (copy,)
    return (copy, ir.If(ir.Valid(origin, is_bool=True), others, ()))


def _assign_varbit(headers: Headers, primitive: ir.Primitive) -> tuple[Statement, ...]:
    """The bits, and how many they are."""
    target, origin = (_varbit(headers, field, primitive) for field in primitive.args)
    if target.field.width != origin.field.width:
        raise LoadError(
            f"{primitive.source}: 'assign_VL' of at most {origin.field.width} bits to a field of "
            f"at most {target.field.width}"
        )
    return (
        ir.Primitive("assign", (target.field, origin.field), primitive.source),
        ir.Primitive("assign", (target.length, origin.length), primitive.source),
    )


def _varbit(headers: Headers, field: ir.Argument, primitive: ir.Primitive) -> ir.Varbit:
    assert isinstance(field, FieldRef)
    varbit = headers.varbit(field)
    if varbit is None:
        raise refusal(f"'{primitive.op}' of a field of fixed length", primitive.source)
    return varbit


def invalidations(headers: Headers, header: str, source: SourceLocation) -> tuple[Statement, ...]:
    """Return the invalidation of a union's other headers when one header becomes valid."""
    return tuple(
        ir.Primitive("invalidate", (ir.HeaderValue(other),), source)
        for other in headers.siblings(header)
    )


def at_run_time(
    context: LoaderContext, item: Json, source: SourceLocation, params: Params = ()
) -> tuple[Statement, ...] | None:
    """Return a primitive that changes or copies a stack element at a run-time index; None for
    others.

    The primitive is repeated for each element. A stack's `last` and `next` are such elements.
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
        if element is None and kind == "header":
            element = context.expressions.last_or_next(part, source)
        if element is None:
            continue
        make = partial(_with_element, context, item, position, number, source, params)
        otherwise: tuple[Statement, ...] = ()
        if position == 1:
            otherwise = _without_element(context, item, source)
        return do_at_index(*element, make, otherwise)
    return None


def _without_element(
    context: LoaderContext, item: Json, source: SourceLocation
) -> tuple[Statement, ...]:
    """What a copy of an element that is not there does: it is as invalid, or empty, as that."""
    first = item["parameters"][0]
    if item["op"] == "assign_header":
        target = context.headers.header(first["value"], source)
        return (ir.Primitive("invalidate", (ir.HeaderValue(target),), source),)
    if item["op"] == "assign_VL":
        varbit = context.headers.varbit(context.expressions.target(first, source))
        parts = () if varbit is None else (varbit.field, varbit.length)
        return tuple(ir.Primitive("assign", (part, ir.Const(0)), source) for part in parts)
    return ()


def _with_element(
    context: LoaderContext,
    item: Json,
    position: int,
    number: int | None,
    source: SourceLocation,
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


def _shift(headers: Headers, item: Json, source: SourceLocation) -> list[Statement]:
    """`push_front` and `pop_front`."""
    first, second = item["parameters"]
    stack = headers.any_stack(first["value"], source)
    count = constant_of(second)
    if count is None:
        raise refusal(f"'{item['op']}' by a number that is not constant", source)
    return stack.push(count, source) if item["op"] == "push" else stack.pop(count, source)


def _assign_whole(headers: Headers, item: Json, source: SourceLocation) -> list[Statement]:
    """A copy of a union, or of a stack of headers or of unions: each header, one by one."""
    names = [part["value"] for part in item["parameters"]]
    statements: list[Statement] = []
    if item["op"] == "assign_union":
        pairs = zip(*(headers.union(name, source) for name in names), strict=True)
    else:
        target, origin = (headers.any_stack(name, source) for name in names)
        pairs = zip(target.headers, origin.headers, strict=True)
        statements.append(ir.Primitive("assign", (target.next, origin.next), source))
    for to, from_ in pairs:
        statements += _copy(headers, to, from_, source)
    return statements
