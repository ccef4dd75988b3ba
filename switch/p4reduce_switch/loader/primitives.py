# SPDX-License-Identifier: Apache-2.0
"""Single primitives, with the arguments that `ir.PRIMITIVES` lists."""

from __future__ import annotations

from p4reduce_switch.loader.checksums import usable_calculation
from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.expressions import UNSUPPORTED_VALUES, Params
from p4reduce_switch.loader.json_values import Json, as_text, constant_of, find, refusal
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import SourceLocation
from p4reduce_switch.program.load_error import LoadError


def load_primitive(
    context: LoaderContext, op: str, item: Json, source: SourceLocation, params: Params = ()
) -> ir.Primitive:
    """Load the primitive `item`, which performs `op` and comes from `source`."""
    signature = ir.PRIMITIVES.get(op)
    if signature is None:
        raise refusal(f"primitive '{op}'", source)
    arguments = item["parameters"]
    if len(arguments) != len(signature):
        raise LoadError(
            f"{source}: primitive '{op}' takes {len(signature)} arguments, not {len(arguments)}"
        )
    args = tuple(
        _argument(context, op, kind, argument, source, params)
        for kind, argument in zip(signature, arguments, strict=True)
    )
    assigned = [arg for arg, kind in zip(args, signature, strict=True) if kind == "field"]
    others = [arg for arg, kind in zip(args, signature, strict=True) if kind != "field"]
    return ir.Primitive(op, (*assigned, *others), source)


def _argument(
    context: LoaderContext,
    op: str,
    kind: ir.ArgumentKind,
    item: Json,
    source: SourceLocation,
    params: Params,
) -> ir.Argument:
    expressions = context.expressions
    if kind == "value":
        return expressions.data(item, source, params)
    if kind == "condition":
        return expressions.condition(item, source, params)
    if kind == "field":
        field = expressions.target(item, source, params)
        if op != "assign_VL":
            context.headers.check_fixed(f"'{op}'", field, source)
        return field
    if kind == "text":
        return ir.Text(as_text(item["value"], f"the argument of '{op}'"))
    if kind == "values":
        return ir.Values(tuple(expressions.data(part, source, params) for part in item["value"]))
    if kind == "field_list":
        number = constant_of(item)
        if number is None:
            raise refusal(f"'{op}' with a field list that is not constant", source)
        return find(context.field_lists, number, "field list", source)
    if kind == "digest":
        names = {digest.id: digest.name for digest in context.kept.digests.values()}
        number = constant_of(item)
        return ir.ObjectRef(kind, find(names, -1 if number is None else number, "digest", source))
    if item["type"] != kind:
        what = UNSUPPORTED_VALUES.get(item["type"], f"{item['type']} as an argument of '{op}'")
        raise refusal(what, source)
    name = item["value"]
    if kind == "header":
        return _header(context, op, name, source)
    if kind == "calculation":
        usable_calculation(context, name, source)
    else:
        find(getattr(context.kept, ir.ARRAYS[kind]), name, kind.removesuffix("_array"), source)
    return ir.ObjectRef(kind, name)


def _header(context: LoaderContext, op: str, name: str, source: SourceLocation) -> ir.HeaderValue:
    if op == "mark_to_drop":
        return ir.HeaderValue(find(context.headers.by_name, name, "metadata", source).name)
    return ir.HeaderValue(context.headers.header(name, source))
