# SPDX-License-Identifier: Apache-2.0
"""From the end of ingress to the bytes of each copy: egress, checksum update, deparser.

Egress is a function that is called once per copy of the packet. Its arguments are the packet's
state, so every copy starts from the same state and does not see the others' changes. A header that
egress does not change is packed once, before.
"""

from __future__ import annotations

from p4reduce_switch.codegen_python.checksums import emit_update
from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.controls import emit_control
from p4reduce_switch.codegen_python.egress_state import EgressState
from p4reduce_switch.codegen_python.replay import (
    emit_clone_at_egress,
    emit_flags,
    emit_recirculate,
    queue_copy,
)
from p4reduce_switch.program.egress_needs import entry_fields
from p4reduce_switch.program.usage import QUEUE_FIELDS

# BMv2 keeps this much room in front of a packet and dies if more headers are added.
MAX_HEADER_GROWTH = 512


def egress_arguments(context: PyContext, state: EgressState) -> str:
    """Return the parameters of `egress`, and the arguments of its call at the end of ingress."""
    limit = ["_most"] if context.limits else []
    queued = ["_enqueued", "_before", "_behind"] if context.usage.queued else []
    return ", ".join(["_port", *queued, "_instance", *limit, *state.arguments])


def emit_copy(context: PyContext, state: EgressState) -> None:
    """Write how a copy for `_port` is handled, at the end of ingress."""
    writer = context.writer
    if context.usage.queued:
        limit = ["_most"] if context.limits else []
        priority = context.intrinsic("priority") or "0"
        arguments = ["_instance", *limit, *state.arguments]
        writer.line(queue_copy(context, "_port", priority, arguments))
        return
    writer.line(f"_out = egress({egress_arguments(context, state)})")
    with writer.block("if _out is not None:"):
        writer.line("_frames.append((_port, _out))")


def emit_serialisation(context: PyContext) -> None:
    """Write the bytes of the headers that egress does not change, at the end of ingress."""
    writer, names = context.writer, context.names
    writer.line("_payload = _frame[_at:]")
    for name, header in context.wire.items():
        if context.packed_in_egress(name):
            continue
        if context.is_raw(name):
            offset = names.offset(name)
            more = context.more_bytes(header)
            packed = f"_frame[{offset}:{offset} + {header.size}{more}]"
        else:
            packed = context.layouts[name].pack()
        writer.line(f'{names.serialised(name)} = {packed} if {names.valid(name)} else b""')


def emit_egress(context: PyContext, state: EgressState) -> None:
    """Write the function for one copy. It returns the frame, or None if the copy is dropped."""
    writer = context.writer
    with writer.block(f"def egress({egress_arguments(context, state)}):"):
        _emit_entry(context, state)
        emit_flags(context, "egress")
        context.point("control", "egress")
        emit_control(context, context.program.egress)
        if "clone" in context.usage.egress.kept:
            emit_clone_at_egress(context, state)
        spec = context.program.intrinsic["egress_spec"]
        if spec in context.usage.egress.writes:
            with writer.block(f"if {context.names.field(spec)} == {context.drop_port}:"):
                writer.line(f"{context.bind('stats')}.dropped_egress += 1")
                writer.line("return None")
        emit_update(context)
        _emit_deparser(context)


def _emit_entry(context: PyContext, state: EgressState) -> None:
    """What the target sets at the start of egress."""
    writer = context.writer
    clock = f"{context.bind('now')}()"
    spec = context.program.intrinsic["egress_spec"]
    values = {
        "egress_port": "_port",
        "egress_rid": "_instance",
        # simple_switch starts egress with any value but the drop port.
        "egress_spec": str((context.drop_port + 1) % (1 << spec.width)),
        "packet_length": "_length" if context.tracks_length else "_size",
        "egress_global_timestamp": clock,
        "enq_timestamp": "_enqueued",
        "deq_timedelta": f"({clock} - _enqueued)",
        "enq_qdepth": "_before",
        "deq_qdepth": "_behind",
    }
    for name, field in entry_fields(context).items():
        value = values[name]
        if name in QUEUE_FIELDS:
            value += f" & {(1 << field.width) - 1:#x}"
        writer.line(f"{context.names.field(field)} = {value}")
    if state.zeros:
        writer.line(f"{' = '.join(state.zeros)} = 0")


def _emit_deparser(context: PyContext) -> None:
    writer, names = context.writer, context.names
    parts = []
    for name in context.wire:
        if context.packed_in_egress(name):
            packed = context.layouts[name].pack()
            parts.append(f'{packed} if {names.valid(name)} else b""')
        else:
            parts.append(names.serialised(name))
    parts.append("_payload")
    most = sum(header.most_bytes for header in context.wire.values())
    with writer.block('_out = b"".join(('):
        for part in parts:
            writer.line(f"{part},")
    writer.line("))")
    if most > MAX_HEADER_GROWTH:
        with writer.block(f"if len(_out) > _size + {MAX_HEADER_GROWTH}:"):
            writer.line(f"{context.bind('stats')}.dropped_growth += 1")
            writer.line("return None")
    if "recirculate" in context.usage.egress.kept:
        emit_recirculate(context)
    writer.line("return _out[:_most]" if context.limits else "return _out")
