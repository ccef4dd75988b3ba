# SPDX-License-Identifier: Apache-2.0
"""Clone, resubmit and recirculate as Python source, as simple_switch does them.

The fields of a packet's field list have their values at the end of the control, not at the
primitive's call. `program/replays.py` says what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.egress_state import EgressState
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.replays import (
    InstanceType,
    belongs_to_headers,
    carried_fields,
    clone_fields,
    fields_to_reset,
    lists_with,
)
from p4reduce_switch.program.usage import Stage
from p4reduce_switch.state.clone_sessions import UNLIMITED


def kept_parameters(fields: Sequence[FieldRef]) -> list[str]:
    """Return the names of the parameters for carried fields."""
    return [f"_kept_{index}" for index in range(len(fields))]


def emit_process(context: PyContext) -> None:
    """Write the function for a frame from a port. Packets that it leads to wait, and are run until
    none is left."""
    writer = context.writer
    fresh = ["_ingress_port", "_frame"]
    if context.replays:
        fresh += ["0", *("0" for _ in carried_fields(context))]
    with writer.block("def process(_ingress_port, _frame):"):
        writer.line(f"{context.bind('stats')}.frames_in += 1")
        if context.replays:
            writer.line(f"{context.bind('waiting')}.clear()")
        writer.line(f"_frames = ingress({', '.join(fresh)})")
        if context.replays:
            with writer.block(f"if {context.bind('waiting')}:"):
                writer.line(f"{context.bind('replay')}(_frames)")
        if context.usage.queued:
            writer.line(f"return {context.bind('release')}()")
            return
        writer.line(f"{context.bind('stats')}.frames_out += len(_frames)")
        writer.line("return _frames")


def emit_flags(context: PyContext, stage: Stage) -> None:
    """Clear the requests for clones and replays, at the start of a control."""
    for what in context.stage(stage).kept:
        context.writer.line("_clone = -1" if what == "clone" else f"_{what} = False")
    if context.limits and stage == "ingress":
        context.writer.line(f"_most = {UNLIMITED:#x}")


def emit_reset(context: PyContext) -> None:
    """Zero the metadata of a clone from ingress, after the parser, except the field list's."""
    writer, names = context.writer, context.names
    fields = clone_fields(context)
    metadata = [names.field(field) for field in fields_to_reset(context)]
    if metadata:
        writer.line(f"{' = '.join(metadata)} = 0")
    for field, value in zip(fields, kept_parameters(fields), strict=True):
        writer.line(f"{names.field(field)} = {value}")
    instance_type = context.intrinsic("instance_type")
    if instance_type is not None:
        writer.line(f"{instance_type} = {InstanceType.INGRESS_CLONE:d}")


def emit_clone_at_ingress(context: PyContext) -> None:
    """Write the call of `clone`, if the session exists."""
    writer = context.writer
    lists = context.usage.ingress.kept["clone"]
    kept = [_kept(context, field, lists, "clone") for field in clone_fields(context)]
    with writer.block("if _clone >= 0:"):
        writer.line(f"_session = {context.bind('sessions')}(_clone)")
        with writer.block("if _session is not None:"):
            arguments = ", ".join(["_ingress_port", "_frame", "_session", *kept])
            writer.line(f"_frames += clone({arguments})")


def emit_resubmit(context: PyContext) -> None:
    """Write `resubmit`, which replaces all else that ingress asked for except clones."""
    _emit_again(context, "resubmit", "_frame", InstanceType.RESUBMITTED, "_frames")


def emit_recirculate(context: PyContext) -> None:
    """Write `recirculate`: the frame `_out` enters once more. It is not cut, because simple_switch
    forgets `truncate` here."""
    _emit_again(context, "recirculate", "_out", InstanceType.RECIRCULATED, "None")


def emit_clone_at_egress(context: PyContext, state: EgressState) -> None:
    """Write the clones of the packet's present state. They run through egress later."""
    writer = context.writer
    lists = context.usage.egress.kept["clone"]
    arguments = ["_to", "_as", "_limit"]
    for argument in state.arguments:
        field = state.metadata.get(argument)
        if field is None or belongs_to_headers(field):
            arguments.append(argument)
        else:
            arguments.append(_kept(context, field, lists, "clone"))
        if field is not None and field == context.program.intrinsic["instance_type"]:
            arguments[-1] = f"{InstanceType.EGRESS_CLONE:d}"
    with writer.block("if _clone >= 0:"):
        writer.line(f"_session = {context.bind('sessions')}(_clone)")
        with writer.block("if _session is not None:"):
            writer.line("_copies, _limit = _session")
            with writer.block("for _to, _as in _copies:"):
                if context.usage.queued:
                    field = context.program.intrinsic.get("priority")
                    kept = "0" if field is None else _kept(context, field, lists, "clone")
                    writer.line(queue_copy(context, "_to", kept, arguments[1:]))
                    return
                waiting = context.bind("waiting")
                writer.line(f"{waiting}.append((_to, egress, ({', '.join(arguments)})))")


def queue_copy(context: PyContext, port: str, priority: str, arguments: Sequence[str]) -> str:
    """The call that queues a copy (`state/queues.py`): `_release` calls egress when it is due.

    `arguments` are those of `egress` from `_instance` on.
    """
    return f"{context.bind('enqueue')}({port}, {priority}, egress, ({', '.join(arguments)},))"


def _emit_again(
    context: PyContext, what: str, frame: str, instance_type: InstanceType, result: str
) -> None:
    """If it was asked for: the frame waits for ingress, and the function returns `result`."""
    lists = context.stage("egress" if what == "recirculate" else "ingress").kept[what]
    kept = [_kept(context, field, lists, what) for field in carried_fields(context)]
    # All metadata starts from zero, the ingress port as well.
    arguments = ", ".join(["0", frame, f"{instance_type:d}", *kept])
    with context.writer.block(f"if _{what}:"):
        waiting = context.bind("waiting")
        context.writer.line(f"{waiting}.append((None, ingress, ({arguments})))")
        context.writer.line(f"return {result}")


def _kept(context: PyContext, field: FieldRef, lists: Sequence[ir.FieldList], what: str) -> str:
    """A field's value in the packet to come: its own if it is on the list, else 0."""
    numbers = lists_with(field, lists)
    if not numbers:
        return "0"
    name = context.names.field(field)
    if len(numbers) == len(lists):
        return name
    return f"{name} if _{what}_list in ({', '.join(map(str, numbers))},) else 0"
