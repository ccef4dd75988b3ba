# SPDX-License-Identifier: Apache-2.0
"""Generates Python source from a program.

The source has two functions. `process(port, frame)` runs the parser, checksum verification and
ingress, then calls `egress(...)` for each copy of the packet. If the program clones, resubmits or
recirculates, `process` calls `ingress(...)` and runs the packets that come back. With egress
queues, `ingress` queues the copies. Fields are local variables, and actions and controls are
inlined. The order of steps follows simple_switch's documentation and source.

The source refers to tables, counters and registers by global names; `GeneratedPython.bindings` says
what each has to be. The source contains no Python objects, so it can be generated before they
exist, read, and compared.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from p4reduce_switch.codegen_python.checksums import emit_verify
from p4reduce_switch.codegen_python.context import Binding, PyContext
from p4reduce_switch.codegen_python.controls import emit_control
from p4reduce_switch.codegen_python.egress import emit_copy, emit_egress, emit_serialisation
from p4reduce_switch.codegen_python.egress_state import EgressState
from p4reduce_switch.codegen_python.parser import emit_parser
from p4reduce_switch.codegen_python.replay import (
    emit_clone_at_ingress,
    emit_flags,
    emit_process,
    emit_reset,
    emit_resubmit,
    kept_parameters,
)
from p4reduce_switch.program.ir import FieldRef, Program
from p4reduce_switch.program.replays import InstanceType, carried_fields, clone_fields
from p4reduce_switch.state.clone_sessions import UNLIMITED


@dataclass(frozen=True, slots=True)
class GeneratedPython:
    """Python source, the globals that it needs by name, and whether it has egress queues.

    fields, valids: the variables of fields, and of headers' validity.
    lines: file and line of each point at which a debugger is called.
    """

    source: str
    bindings: Mapping[str, Binding]
    queued: bool
    fields: Mapping[str, FieldRef]
    valids: Mapping[str, str]
    lines: frozenset[tuple[str, int]]


@functools.lru_cache(maxsize=4)
def generate(
    program: Program, drop_port: int, *, with_queues: bool = False, with_points: bool = False
) -> GeneratedPython:
    """Generate the source of `process` and `egress`.

    Egress queues are between them if they are requested, or if the program reads their fields. With
    `with_points` the source calls a debugger at each point.
    """
    context = PyContext(program, drop_port, queues=with_queues, points=with_points)
    state = EgressState(context)
    _emit_ingress(context, state)
    _emit_gap(context)
    if "clone" in context.usage.ingress.kept:
        _emit_clone(context, state)
        _emit_gap(context)
    if context.replays or context.usage.queued:
        emit_process(context)
        _emit_gap(context)
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
    headers = program.headers.values()
    fields = {context.names.field(field): field for h in headers for field in h.fields}
    valids = {context.names.valid(h.name): h.name for h in headers if not h.is_metadata}
    queued, lines = context.usage.queued, frozenset(context.lines)
    return GeneratedPython(source, context.bindings, queued, fields, valids, lines)


def _emit_ingress(context: PyContext, state: EgressState) -> None:
    carried = carried_fields(context)
    function, extra = "process", ""
    is_whole = not (context.replays or context.usage.queued)
    if not is_whole:
        function = "ingress"
    if context.replays:
        extra = "".join(f", {name}" for name in ("_type", *kept_parameters(carried)))
    with context.writer.block(f"def {function}(_ingress_port, _frame{extra}):"):
        if is_whole:
            context.writer.line(f"{context.bind('stats')}.frames_in += 1")
        _emit_start(context, again="_type" if context.replays else "")
        instance_type = context.intrinsic("instance_type")
        if context.replays and instance_type is not None:
            context.writer.line(f"{instance_type} = _type")
        for field, value in zip(carried, kept_parameters(carried), strict=True):
            context.writer.line(f"{context.names.field(field)} = {value}")
        emit_flags(context, "ingress")
        if context.usage.ingress.digests:
            context.writer.line("_digest = 0")
        context.point("control", "parser")
        emit_parser(context)
        emit_verify(context)
        context.point("control", "ingress")
        emit_control(context, context.program.ingress)
        _emit_learning(context)
        _emit_forwarding(context, state)


def _emit_clone(context: PyContext, state: EgressState) -> None:
    """The function for the clones made at the end of ingress."""
    writer = context.writer
    kept = "".join(f", {name}" for name in kept_parameters(clone_fields(context)))
    with writer.block(f"def clone(_ingress_port, _frame, _session{kept}):"):
        _emit_start(context)
        emit_parser(context)
        emit_reset(context)
        writer.line("_copies, _most = _session")
        emit_serialisation(context)
        writer.line("_frames = []")
        _emit_copies(context, state)
        writer.line("return _frames")


def _emit_gap(context: PyContext) -> None:
    context.writer.line("")
    context.writer.line("")


def _emit_start(context: PyContext, again: str = "") -> None:
    """The state of a fresh packet: no header is valid, everything is zero.

    `again`: the variable that is not zero if the packet is not from a port; its time is zero then.
    """
    writer, names, usage = context.writer, context.names, context.usage
    writer.line("_size = len(_frame)")
    if context.tracks_length:
        writer.line("_length = _size")
    given = {"ingress_port": "_ingress_port", "packet_length": "_size"}
    given["ingress_global_timestamp"] = f"{context.bind('now')}()"
    if again:
        given["ingress_global_timestamp"] += f" if not {again} else 0"
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


def _emit_learning(context: PyContext) -> None:
    """Send the digest that ingress asked for last; also of packets that are dropped."""
    for name in sorted(context.usage.ingress.digests):
        digest = context.program.kept.digests[name]
        with context.writer.block(f"if _digest == {digest.id}:"):
            values = ", ".join(context.names.field(field) for field in digest.fields)
            context.writer.line(f"{context.bind('learn', name)}({values})")


def _emit_forwarding(context: PyContext, state: EgressState) -> None:
    """After ingress: multicast goes before unicast, unicast to the drop port is a drop."""
    writer = context.writer
    stats = context.bind("stats")
    spec = context.written_intrinsic("egress_spec") or "0"
    group = context.written_intrinsic("mcast_grp")
    instance_type = context.intrinsic("instance_type")
    usage = context.usage
    nothing = "return []"
    is_whole = not (context.replays or context.usage.queued)
    if not is_whole:
        nothing = "return _frames"
        writer.line("_frames = []")
        if "clone" in usage.ingress.kept:
            emit_clone_at_ingress(context)
        if "resubmit" in usage.ingress.kept:
            emit_resubmit(context)

    def unicast() -> None:
        with writer.block(f"if {spec} == {context.drop_port}:"):
            writer.line(f"{stats}.dropped_ingress += 1")
            writer.line(nothing)
        writer.line(f"_copies = (({spec}, 0),)")
        if instance_type is not None and context.comes_again:
            writer.line(f"{instance_type} = {InstanceType.NORMAL:d}")

    if group is None:
        unicast()
    else:
        with writer.block(f"if {group}:"):
            writer.line(f"_copies = {context.bind('groups')}({group}, ())")
            with writer.block("if not _copies:"):
                writer.line(f"{stats}.dropped_no_replica += 1")
                writer.line(nothing)
            if instance_type is not None:
                writer.line(f"{instance_type} = {InstanceType.REPLICATION:d}")
            if usage.ingress.truncates:
                # simple_switch forgets `truncate` when it makes copies.
                writer.line(f"_most = {UNLIMITED:#x}")
        with writer.block("else:"):
            unicast()
    emit_serialisation(context)
    if is_whole:
        writer.line("_frames = []")
    _emit_copies(context, state)
    if is_whole:
        writer.line(f"{stats}.frames_out += len(_frames)")
    writer.line("return _frames")


def _emit_copies(context: PyContext, state: EgressState) -> None:
    writer = context.writer
    with writer.block("for _port, _instance in _copies:"):
        emit_copy(context, state)
