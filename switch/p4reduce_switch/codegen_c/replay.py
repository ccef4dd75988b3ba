# SPDX-License-Identifier: Apache-2.0
"""Clone, resubmit and recirculate as C source, as simple_switch does them.

A packet to be run again waits in an array until the present packet is done. The fields of its field
list have their values at the end of the control, not at the primitive's call. `program/replays.py`
says what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.values import (
    C_TYPES,
    Value,
    constant,
    kind_of_width,
    limbs_of,
    stored,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.replays import (
    InstanceType,
    clone_fields,
    fields_to_reset,
    lists_with,
)
from p4reduce_switch.program.usage import Stage


def declare_member(name: str, field: FieldRef) -> str:
    """Return a struct member for a field's value."""
    kind = kind_of_width(field.width, field.signed)
    if kind == "wide":
        return f"uint64_t {name}[{limbs_of(field.width)}];"
    return f"{C_TYPES[kind]} {name};"


def store_member(
    context: CContext, expressions: CExpressions, member: str, field: FieldRef, value: Value
) -> None:
    """Write a value into a struct member."""
    kind = kind_of_width(field.width, field.signed)
    if kind != "wide":
        context.writer.line(f"{member} = {expressions.scalar(value, kind)};")
        return
    limbs = limbs_of(field.width)
    text = expressions.wide.text(value, limbs).replace("§", "i")
    context.writer.limbs(limbs, f"{member}[i] = {text};")


def set_kept(actions: ActionWriter, field: FieldRef, member: str) -> None:
    """Set a field from a struct member."""
    actions.set(field, stored(member, field.width, field.signed, (field.low, field.high)))


def write_flags(context: CContext, stage: Stage) -> None:
    """Clear the requests for clones and replays, at the start of a control."""
    writer = context.writer
    for what, lists in context.stage(stage).kept.items():
        writer.line("int32_t clone_session = -1;" if what == "clone" else f"bool {what} = false;")
        if len(lists) > 1:
            writer.line(f"uint32_t {what}_list = 0;")
    if context.limits and stage == "ingress":
        writer.line("uint64_t most = P4R_UNLIMITED;")


def write_reset(context: CContext, actions: ActionWriter) -> None:
    """Zero the metadata of a clone from ingress, after the parser, except the field list's."""
    for field in fields_to_reset(context):
        actions.set(field, constant(0))
    for number, field in enumerate(clone_fields(context)):
        set_kept(actions, field, f"kept->clone_{number}")
    instance_type = context.live_field("instance_type")
    if instance_type is not None:
        actions.set(instance_type, constant(InstanceType.INGRESS_CLONE))


def store_kept(
    context: CContext,
    expressions: CExpressions,
    member: str,
    field: FieldRef,
    lists: Sequence[ir.FieldList],
    what: str,
) -> None:
    """Put a field's value in the packet to come into a member: its own if it is listed, else 0."""

    def store(value: Value) -> None:
        store_member(context, expressions, member, field, value)

    numbers = lists_with(field, lists)
    if not numbers:
        store(constant(0))
    elif len(numbers) == len(lists):
        store(expressions.field(field))
    else:
        tests = " || ".join(f"{what}_list == {number}" for number in numbers)
        value = expressions.field(field)
        with context.writer.block(f"if ({tests})"):
            store(value)
        with context.writer.block("else"):
            store(constant(0))
