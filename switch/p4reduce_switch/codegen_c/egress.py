# SPDX-License-Identifier: Apache-2.0
"""From the end of ingress to the bytes of each copy: egress, checksum update, deparser."""

from __future__ import annotations

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.checksums import write_update
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.controls import write_control
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.layout import store_header
from p4reduce_switch.codegen_c.packet import Packet
from p4reduce_switch.codegen_c.replay import store_kept, write_flags
from p4reduce_switch.codegen_c.values import make
from p4reduce_switch.program.egress_needs import entry_fields
from p4reduce_switch.program.replays import InstanceType, carried_fields


def head(context: CContext) -> str:
    """Return the function's head. `queued` is how the copy was queued."""
    extra = ", const struct p4r_queued *queued" if context.usage.queued else ""
    return (
        "static void egress(struct p4r_program *program, const struct packet *packet, "
        f"uint32_t port, uint32_t instance, uint64_t most{extra})"
    )


def write_egress(context: CContext, packet: Packet) -> None:
    """Write the body of the function that sends one copy, unless it is dropped."""
    expressions = CExpressions(context)
    actions = ActionWriter(context, expressions, "egress", [])
    writer = context.writer
    writer.line("struct p4r_common *const common = &program->common;")
    packet.unfold(actions)
    _write_entry(context, actions)
    write_flags(context, "egress")
    write_control(context, expressions, context.program.egress)
    if "clone" in context.usage.egress.kept:
        _write_clone(context, expressions, packet)
    spec = context.program.intrinsic["egress_spec"]
    if spec in context.usage.egress.writes:
        port = make("u64", "common->drop_port", 0, (1 << 64) - 1, atom=True)
        with writer.block(f"if ({expressions.compare('==', expressions.field(spec), port)})"):
            writer.line("common->stats.dropped_egress++;")
            writer.line("return;")
    write_update(context, expressions)
    _write_deparser(context, expressions)


def _write_entry(context: CContext, actions: ActionWriter) -> None:
    """What the target sets at the start of egress."""
    spec = context.program.intrinsic["egress_spec"]
    values = {
        "egress_port": "port",
        "egress_rid": "instance",
        # simple_switch starts egress with any value but the drop port.
        "egress_spec": f"((common->drop_port + 1) & {(1 << min(spec.width, 64)) - 1:#x})",
        "packet_length": "length" if context.tracks_length else "size",
        "egress_global_timestamp": "p4r_now(common)",
        "enq_timestamp": "p4r_enqueued(common, queued)",
        "deq_timedelta": "(p4r_now(common) - p4r_enqueued(common, queued))",
        "enq_qdepth": "queued->enq_depth",
        "deq_qdepth": "queued->deq_depth",
    }
    for name, field in entry_fields(context).items():
        actions.set(field, make("u64", f"(uint64_t){values[name]}", 0, (1 << 64) - 1))


def _write_clone(context: CContext, expressions: CExpressions, packet: Packet) -> None:
    """Copies of the packet as it is now; they run through egress later."""
    writer = context.writer
    lists = context.usage.egress.kept["clone"]
    writer.line(
        "const struct p4r_copies *const session = "
        "clone_session < 0 ? NULL : common->sessions[clone_session];"
    )
    with writer.block("for (uint32_t copy = 0; session && copy < session->count; copy++)"):
        writer.line("struct waiting *const item = wait_for_turn(program);")
        writer.line("if (!item)")
        writer.line("    continue;")
        writer.line("item->in_egress = true;")
        writer.line("item->port = session->copy[copy].port;")
        writer.line("item->instance = session->copy[copy].instance;")
        writer.line("item->most = session->most;")
        packet.copy(expressions, lists)


def _write_deparser(context: CContext, expressions: CExpressions) -> None:
    writer, names = context.writer, context.names
    writer.line("uint64_t total = payload_size;")
    for name, header in context.wire.items():
        if context.packed_in_egress(name):
            writer.line(f"if ({context.valid(name)})")
            writer.line(f"    total += {context.size_of(header)};")
            continue
        writer.line(f"total += {names.of('size', name)};")
    with writer.block("if (total > (uint64_t)size + P4R_MAX_GROWTH || total > sizeof common->out)"):
        writer.line("common->stats.dropped_growth++;")
        writer.line("return;")
    writer.line("uint8_t *out = common->out;")
    for name, header in context.wire.items():
        if context.packed_in_egress(name):
            with writer.block(f"if ({context.valid(name)})"):
                store_header(context, header, "out")
                writer.line(f"out += {context.size_of(header)};")
            continue
        piece = names.of("size", name)
        where = f"packet->{names.of('bytes', name)}"
        if context.is_raw(name):
            where = f"frame + packet->{names.of('at', name)}"
        size = str(header.size) if header.varbit is None else piece
        with writer.block(f"if ({piece})"):
            writer.line(f"memcpy(out, {where}, {size});")
            writer.line(f"out += {size};")
    writer.line("memcpy(out, payload, payload_size);")
    if "recirculate" in context.usage.egress.kept:
        with writer.block("if (recirculate)"):
            # It is not cut: simple_switch forgets `truncate` here.
            write_wait(
                context,
                expressions,
                "common->out",
                "(uint32_t)total",
                InstanceType.RECIRCULATED,
                "recirculate",
            )
            writer.line("return;")
    most = "most" if context.limits else "P4R_UNLIMITED"
    writer.line(f"p4r_send(common, port, (uint32_t)total, {most});")


def write_wait(
    context: CContext,
    expressions: CExpressions,
    frame: str,
    size: str,
    instance_type: InstanceType,
    what: str,
) -> None:
    """Write how a frame enters once more. All metadata starts at zero, even the ingress port."""
    writer = context.writer
    lists = context.stage("egress" if what == "recirculate" else "ingress").kept[what]
    if what == "recirculate":
        with writer.block(f"if ({size} > P4R_MAX_FRAME)"):
            writer.line("common->stats.dropped_growth++;")
            writer.line("return;")
    writer.line("struct waiting *const item = wait_for_turn(program);")
    with writer.block("if (item)"):
        writer.line("item->in_egress = false;")
        writer.line(f"item->type = {instance_type:d};")
        writer.line(f"item->size = {size};")
        writer.line(f"memcpy(item->frame, {frame}, {size});")
        for number, field in enumerate(carried_fields(context)):
            member = f"item->kept.carried_{number}"
            store_kept(context, expressions, member, field, lists, what)
