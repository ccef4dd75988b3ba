# SPDX-License-Identifier: Apache-2.0
"""Copies of whole structs. To BMv2, metadata is a header that is always valid."""

from __future__ import annotations

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.json_values import Json
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import SourceLocation, Statement
from p4reduce_switch.program.load_error import LoadError


def copy_of_struct(
    context: LoaderContext, item: Json, source: SourceLocation
) -> tuple[Statement, ...] | None:
    """Return an assignment per field if the primitive copies metadata; else None."""
    if item["op"] != "assign_header":
        return None
    names = [part["value"] for part in item["parameters"]]
    if not all(isinstance(name, str) for name in names):
        return None
    headers = [context.headers.by_name.get(name) for name in names]
    if not any(header is not None and header.is_metadata for header in headers):
        return None
    target, origin = headers
    if target is None or origin is None or not target.is_metadata or not origin.is_metadata:
        raise LoadError(f"{source}: 'assign_header' of metadata and of a header")
    widths = [[field.width for field in header.state] for header in (target, origin)]
    if widths[0] != widths[1]:
        raise LoadError(f"{source}: 'assign_header' of structs of different types")
    return tuple(
        ir.Primitive("assign", pair, source)
        for pair in zip(target.state, origin.state, strict=True)
    )
