# SPDX-License-Identifier: Apache-2.0
"""Calculations, which are hashes over fields, and the checksums that use them."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.json_values import (
    Json,
    as_hex,
    as_width,
    find,
    located,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.hashes import ALGORITHMS
from p4reduce_switch.program.ir import FieldRef, SourceLocation
from p4reduce_switch.program.load_error import LoadError


def load_calculation(context: LoaderContext, item: Json, source: SourceLocation) -> ir.Calculation:
    """Load a calculation that is used or written at `source`."""
    inputs: list[FieldRef | ir.ConstBits] = []
    with_payload = False
    if not isinstance(item["input"], list):
        raise LoadError(f"{source}: the input of calculation {item['name']!r} is not a list")
    for part in item["input"]:
        kind = part["type"]
        if kind == "payload":
            with_payload = True
        elif kind == "hexstr":
            width = as_width(part["bitwidth"], "a constant in a calculation")
            inputs.append(ir.ConstBits(as_hex(part["value"], "a constant"), width))
        elif kind == "header":
            header = context.headers.header(part["value"], source)
            inputs.extend(context.headers.by_name[header].fields)
        else:
            otherwise = f"input of '{item['name']}' that is neither a field nor a constant"
            inputs.append(context.expressions.field(part, source, otherwise))
    return ir.Calculation(item["name"], item["algo"], tuple(inputs), with_payload, source)


def check_algorithm(calculation: ir.Calculation, source: SourceLocation) -> None:
    """Refuse an unknown algorithm. Called only if a calculation is used."""
    if calculation.algorithm not in ALGORITHMS:
        raise refusal(f"hash algorithm '{calculation.algorithm}'", source)


def usable_calculation(context: LoaderContext, name: str, source: SourceLocation) -> ir.Calculation:
    calculation = find(context.calculations, name, "calculation", source)
    check_algorithm(calculation, source)
    return calculation


def load_checksums(
    context: LoaderContext, items: Iterable[Json]
) -> tuple[tuple[ir.Checksum, ...], tuple[ir.Checksum, ...]]:
    """Load the checksums to verify, and those to update."""
    verify, update = [], []
    for item in items:
        source = source_of(item)
        if item["type"] != "generic":
            raise refusal(f"checksum of type '{item['type']}'", source)
        condition = item.get("if_cond")
        with located(source):
            target = context.headers.field(item["target"][0], item["target"][1], source)
            context.headers.check_fixed("checksum", target, source)
            checksum = ir.Checksum(
                target,
                usable_calculation(context, item["calculation"], source),
                None if condition is None else context.expressions.condition(condition, source),
            )
        if item.get("verify", True):
            verify.append(checksum)
        if item.get("update", True):
            update.append(checksum)
    return tuple(verify), tuple(update)
