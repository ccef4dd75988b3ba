# SPDX-License-Identifier: Apache-2.0
"""From the end of ingress to the bytes of each copy: egress, checksum update, deparser.

Egress is a function of its own that is called once for each copy of the packet. What it needs of
the packet's state comes as arguments, so every copy starts from the same state and none sees
another's changes. A header that egress does not change is turned into bytes once, before.
"""

from __future__ import annotations

from p4reduce_switch.codegen_python.checksums import emit_update
from p4reduce_switch.codegen_python.context import Context
from p4reduce_switch.codegen_python.controls import emit_control
from p4reduce_switch.codegen_python.replay import emit_clone_at_egress, emit_flags, emit_recirculate
from p4reduce_switch.program.ir import FieldRef

__all__ = [
    "MAX_HEADER_GROWTH",
    "EgressState",
    "egress_arguments",
    "emit_egress",
    "emit_serialisation",
]

# BMv2 keeps this much room in front of a packet and dies if more headers are added.
MAX_HEADER_GROWTH = 512

# Fields that the target sets when a copy enters egress.
_ENTRY = (
    "egress_port",
    "egress_spec",
    "egress_rid",
    "packet_length",
    "egress_global_timestamp",
    "deq_timedelta",
    "deq_qdepth",
    "enq_qdepth",
)


class EgressState:
    """What egress gets from ingress, and what it starts out with.

    Attributes:
        arguments: variables that are passed, in order.
        zeros: variables that start at zero, because nothing before egress has touched them.
        metadata: those of the arguments that are fields of metadata.
    """

    def __init__(self, context: Context) -> None:
        usage, names = context.usage, context.names
        at_entry = {context.program.intrinsic.get(name) for name in _ENTRY}
        fields: list[FieldRef] = []
        self.arguments: list[str] = ["_size"]
        if context.tracks_length:
            self.arguments.append("_length")
        for name, header in context.wire.items():
            if context.packed_in_egress(name):
                fields += context.layouts[name].ints
                self.arguments += context.layouts[name].chunks
                self.arguments.append(names.valid(name))
            else:
                self.arguments.append(names.serialised(name))
                if name in usage.egress.tests:
                    self.arguments.append(names.valid(name))
            assert not header.is_metadata
        for name, header in context.program.headers.items():
            seen = name in usage.egress.tests or name in usage.egress.added
            if not header.is_metadata and name not in context.wire and seen:
                self.arguments.append(names.valid(name))
        before = (
            usage.parser.reads | usage.ingress.reads | usage.parser.writes | usage.ingress.writes
        )
        given = set(context.program.intrinsic.values())
        self.zeros: list[str] = []
        self.metadata: dict[str, FieldRef] = {}
        kept = {field for kept in usage.egress.kept.get("clone", ()) for field in kept.fields}
        for header in context.program.headers.values():
            for field in header.fields:
                if field not in usage.egress.reads or field in fields or field in at_entry:
                    continue
                fresh = header.is_metadata and field not in before | kept and field not in given
                (self.zeros if fresh else self.arguments).append(names.field(field))
                if header.is_metadata and not fresh:
                    self.metadata[names.field(field)] = field
        self.arguments += [names.field(field) for field in fields]
        self.arguments.append("_payload")


def egress_arguments(context: Context, state: EgressState) -> str:
    """The parameters of `egress`, and the arguments of its call at the end of ingress."""
    limit = ["_most"] if context.limits else []
    return ", ".join(["_port", "_instance", *limit, *state.arguments])


def emit_serialisation(context: Context) -> None:
    """At the end of ingress: the bytes of the headers that egress does not change."""
    writer, names = context.writer, context.names
    writer.line("_payload = _frame[_at:]")
    for name, header in context.wire.items():
        if context.packed_in_egress(name):
            continue
        if context.is_raw(name):
            offset = names.offset(name)
            packed = f"_frame[{offset}:{offset} + {header.size}]"
        else:
            packed = context.layouts[name].pack()
        packed += _tail(context, name)
        writer.line(f'{names.serialised(name)} = {packed} if {names.valid(name)} else b""')


def _tail(context: Context, header: str) -> str:
    """The varbit field, to be added to the bytes of its header."""
    tail = context.program.headers[header].tail
    return "" if tail is None else f" + {context.names.field(tail)}"


def emit_egress(context: Context, state: EgressState) -> None:
    """The function for one copy; it returns the frame, or None if the copy is dropped."""
    writer = context.writer
    with writer.block(f"def egress({egress_arguments(context, state)}):"):
        _emit_entry(context, state)
        emit_flags(context, "egress")
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


def _emit_entry(context: Context, state: EgressState) -> None:
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
        "deq_timedelta": "0",
        "deq_qdepth": "0",
        "enq_qdepth": "0",
    }
    wanted = context.usage.egress.reads | ({spec} if spec in context.usage.egress.writes else set())
    for name in _ENTRY:
        field = context.program.intrinsic.get(name)
        if field in wanted:
            writer.line(f"{context.names.field(field)} = {values[name]}")
    if state.zeros:
        writer.line(f"{' = '.join(state.zeros)} = 0")


def _emit_deparser(context: Context) -> None:
    writer, names = context.writer, context.names
    parts = []
    for name in context.wire:
        if context.packed_in_egress(name):
            packed = context.layouts[name].pack() + _tail(context, name)
            parts.append(f'{packed} if {names.valid(name)} else b""')
        else:
            parts.append(names.serialised(name))
    parts.append("_payload")
    most = sum(header.size for header in context.wire.values())
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
