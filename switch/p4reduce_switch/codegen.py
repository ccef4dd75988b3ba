# SPDX-License-Identifier: Apache-2.0
"""From a program to Python source.

The source has two functions. `process(port, frame)` runs the parser, checksum verification and
ingress, then calls `egress(...)` for each copy of the packet. Fields are local variables, actions
and controls are inlined. simple_switch's documentation and source say what happens in which order.

The source refers to tables, counters and registers by global names; `Generated.bindings` says
what each has to be. It knows no Python objects, so it can be generated before they exist, read,
and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .codegen_checksums import emit_verify
from .codegen_context import Binding, Context
from .codegen_controls import emit_control
from .codegen_egress import EgressState, emit_egress, emit_serialisation
from .codegen_parser import emit_parser
from .program import Program

__all__ = ["Binding", "Generated", "generate"]

# PktInstanceType of simple_switch.
_REPLICATION = 5


@dataclass(frozen=True, slots=True)
class Generated:
    """Python source, and the globals it needs by name."""

    source: str
    bindings: Mapping[str, Binding]


def generate(program: Program, drop_port: int) -> Generated:
    """Generate the source of `process` and `egress`."""
    context = Context(program, drop_port)
    state = EgressState(context)
    context.writer.line("def process(_ingress_port, _frame):")
    _emit_ingress(context, state)
    context.writer.line("")
    context.writer.line("")
    emit_egress(context, state)
    header = [
        "# Generated from BMv2 JSON. The switch's own variables start with an underscore.",
        "from struct import Struct",
        "",
        "from_bytes = int.from_bytes",
    ]
    for layout in context.layouts.values():
        header += layout.definitions
    header += [f"{name} = {value:#x}" for value, name in context.names.constants.items()]
    source = "\n".join([*header, "", "", context.writer.text()])
    return Generated(source, context.bindings)


def _emit_ingress(context: Context, state: EgressState) -> None:
    writer = context.writer
    with writer.indented():
        _emit_start(context)
        emit_parser(context)
        emit_verify(context)
        emit_control(context, context.program.ingress)
        _emit_forwarding(context, state)


def _emit_start(context: Context) -> None:
    """The state of a fresh packet: no header is valid, everything is zero."""
    writer, names, usage = context.writer, context.names, context.usage
    writer.line(f"{context.bind('stats')}.frames_in += 1")
    writer.line("_size = len(_frame)")
    if context.tracks_length:
        writer.line("_length = _size")
    given = {"ingress_port": "_ingress_port", "packet_length": "_size"}
    for name in ("ingress_global_timestamp", "enq_timestamp"):
        given[name] = f"{context.bind('now')}()"
    set_here = {context.program.intrinsic.get(name) for name in given}
    touched = usage.reads | usage.writes
    touched.update(field for layout in context.layouts.values() for field in layout.ints)
    zeros = [
        names.field(field)
        for header in context.program.headers.values()
        for field in header.fields
        if field in touched and context.is_live(field) and field not in set_here
    ]
    invalid = [names.valid(h.name) for h in context.program.headers.values() if not h.is_metadata]
    empty = [chunk for layout in context.layouts.values() for chunk in layout.chunks]
    offsets = [names.offset(name) for name in context.layouts if context.needs_offset(name)]
    for variables, value in ((zeros + offsets, "0"), (invalid, "False"), (empty, 'b""')):
        if variables:
            writer.line(f"{' = '.join(variables)} = {value}")
    for name, value in given.items():
        variable = context.intrinsic(name)
        if variable is not None:
            writer.line(f"{variable} = {value}")


def _emit_forwarding(context: Context, state: EgressState) -> None:
    """After ingress: multicast goes before unicast, unicast to the drop port is a drop."""
    writer = context.writer
    stats = context.bind("stats")
    spec = context.written_intrinsic("egress_spec") or "0"
    group = context.written_intrinsic("mcast_grp")
    arguments = ", ".join(["_port", "_instance", *state.arguments])
    instance_type = context.intrinsic("instance_type")

    def unicast() -> None:
        with writer.block(f"if {spec} == {context.drop_port}:"):
            writer.line(f"{stats}.dropped_ingress += 1")
            writer.line("return []")
        writer.line(f"_copies = (({spec}, 0),)")

    if group is None:
        unicast()
    else:
        with writer.block(f"if {group}:"):
            writer.line(f"_copies = {context.bind('groups')}({group}, ())")
            with writer.block("if not _copies:"):
                writer.line(f"{stats}.dropped_no_replica += 1")
                writer.line("return []")
            if instance_type is not None:
                writer.line(f"{instance_type} = {_REPLICATION}")
        with writer.block("else:"):
            unicast()
    emit_serialisation(context)
    writer.line("_frames = []")
    with writer.block("for _port, _instance in _copies:"):
        writer.line(f"_out = egress({arguments})")
        with writer.block("if _out is not None:"):
            writer.line("_frames.append((_port, _out))")
    writer.line(f"{stats}.frames_out += len(_frames)")
    writer.line("return _frames")
