# SPDX-License-Identifier: Apache-2.0
"""Generates C source from a program.

`ingress` runs the parser, checksum verification and ingress, then calls `egress` for each copy of
the packet. Fields are local variables, and actions and controls are inlined. State that outlives a
packet is in `struct p4r_program`. The order of steps follows simple_switch's documentation and
source.
"""

from __future__ import annotations

import functools

from p4reduce_switch.codegen_c import queues
from p4reduce_switch.codegen_c.actions import ActionWriter, write_event
from p4reduce_switch.codegen_c.checksums import write_verify
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.controls import write_control
from p4reduce_switch.codegen_c.egress import head as egress_head
from p4reduce_switch.codegen_c.egress import write_egress, write_wait
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.generated import GeneratedC
from p4reduce_switch.codegen_c.packet import Packet
from p4reduce_switch.codegen_c.parser import write_parser
from p4reduce_switch.codegen_c.replay import (
    declare_member,
    set_kept,
    store_kept,
    write_flags,
    write_reset,
)
from p4reduce_switch.codegen_c.state import ProgramState
from p4reduce_switch.codegen_c.text import paren
from p4reduce_switch.codegen_c.values import constant, make
from p4reduce_switch.program.ir import Program
from p4reduce_switch.program.replays import InstanceType, carried_fields, clone_fields


@functools.lru_cache(maxsize=4)
def generate(program: Program, *, with_queues: bool = False) -> GeneratedC:
    """Generate the source of a program. It has egress queues if they are requested, or if the
    program reads their fields.

    Raises NotNativeError.
    """
    try:
        return _generate(program, with_queues)
    except RecursionError as error:
        raise NotNativeError(f"the program is nested too deeply: {error}") from error


def _generate(program: Program, with_queues: bool) -> GeneratedC:
    context = CContext(program, queues=with_queues)
    packet = Packet(context)
    state = ProgramState(context)
    queued = context.usage.queued
    functions = [context.write(egress_head(context), lambda: write_egress(context, packet))]
    if "clone" in context.usage.ingress.kept:
        functions.append(context.write(_CLONE_HEAD, lambda: _write_clone(context, packet)))
    functions.append(context.write(_ingress_head(context), lambda: _write_ingress(context, packet)))
    varbits = any(header.varbit is not None for header in program.headers.values())
    parts = [
        _HEADER,
        *(['#include "p4/varbit.h"', ""] if varbits else []),
        *(state.constants()),
        *packet.declare(),
        "",
        *_kept_struct(context),
        *(_waiting_struct() if context.replays else []),
        *state.declare(context.replays),
        "",
        *(queues.declare(context) if queued else []),
        *(_WAIT.splitlines() if context.replays else []),
        *functions,
        *_process(context),
        *(queues.release(context) if queued else []),
        *state.define(),
    ]
    return GeneratedC("\n".join(parts) + "\n", state.objects, tuple(context.events), queued)


_HEADER = """\
/* Generated from BMv2 JSON. Fields of the program begin with f_, its tables with table_, and so on;
 * the comments say which line of P4 what follows comes from. */
#if defined(__GNUC__) && !defined(__clang__)
/* A packet passes dozens of conditions; gcc would take what is behind these for cold, and neither
 * vectorise nor unroll it. */
#pragma GCC optimize("no-guess-branch-probability")
/* Bytes of a header are written where it is valid, and read there alone; gcc does not see that. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "p4/bytes.h"
#include "p4/control.h"
#include "p4/hash.h"
#include "p4/number.h"
#include "p4/wide.h"

/* Every field has its variable, also where only a part of the program needs it. */
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-label"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
"""

_WAIT = """\
/* Where a packet waits to run again; NULL if it is one too many. */
static struct waiting *wait_for_turn(struct p4r_program *program) {
    const uint32_t number = program->waiting_count++;
    return number < P4R_MAX_REPLAYS ? &program->waiting[number] : NULL;
}
"""

_CLONE_HEAD = (
    "static void clone_packet(struct p4r_program *program, uint32_t ingress_port, "
    "const uint8_t *frame, uint32_t size, const struct p4r_copies *copies, "
    "const struct kept *kept)"
)


def _ingress_head(context: CContext) -> str:
    extra = ", uint32_t type, const struct kept *kept" if context.replays else ""
    return (
        "static void ingress(struct p4r_program *program, uint32_t ingress_port, "
        f"const uint8_t *frame, uint32_t size{extra})"
    )


def _kept_struct(context: CContext) -> list[str]:
    if not context.replays:
        return []
    lines = ["/* The metadata that packets keep that go round again. */", "struct kept {"]
    for what, fields in (("carried", carried_fields(context)), ("clone", clone_fields(context))):
        lines += [
            f"    {declare_member(f'{what}_{number}', field)}"
            for number, field in enumerate(fields)
        ]
    return [*lines, "    uint8_t nothing;", "};", ""]


def _waiting_struct() -> list[str]:
    return [
        "/* A packet that runs through ingress or egress again. */",
        "struct waiting {",
        "    bool in_egress;",
        "    uint32_t port, instance;",
        "    uint64_t most;",
        "    uint32_t type, size;",
        "    struct kept kept;",
        "    struct packet packet;",
        "    uint8_t frame[P4R_MAX_FRAME];",
        "};",
        "",
    ]


def _process(context: CContext) -> list[str]:
    lines = [
        "void p4r_program_process(struct p4r_program *program, uint32_t ingress_port,",
        "                         const uint8_t *frame, uint32_t length, uint64_t now_ns,",
        "                         p4r_emit emit, void *emit_context) {",
        "    struct p4r_common *const common = &program->common;",
        "    common->stats.frames_in++;",
        "    if (length > P4R_MAX_FRAME) {",
        "        common->stats.dropped_growth++;",
        "        return;",
        "    }",
        "    common->now_ns = now_ns;",
        "    common->emit = emit;",
        "    common->emit_context = emit_context;",
    ]
    if not context.replays:
        return [*lines, "    ingress(program, ingress_port, frame, length);", "}", ""]
    start = [
        "    static const struct kept nothing;",
        "    program->waiting_count = 0;",
        "    ingress(program, ingress_port, frame, length, 0, &nothing);",
    ]
    if context.usage.queued:
        head = ["/* Run what waits, and what comes of it. */"]
        head += ["static void run_waiting(struct p4r_program *program) {"]
        return [
            *head,
            *_run_waiting(context, "program->common."),
            "}",
            "",
            *lines,
            *start,
            "    run_waiting(program);",
            "}",
            "",
        ]
    return [*lines, *start, *_run_waiting(context, "common->"), "}", ""]


def _run_waiting(context: CContext, common: str) -> list[str]:
    egress = queues.call_of_egress(context)
    return [
        "    for (uint32_t number = 0;",
        "         number < program->waiting_count && number < P4R_MAX_REPLAYS; number++) {",
        "        struct waiting *const item = &program->waiting[number];",
        "        if (item->in_egress)",
        f"            {egress}(program, &item->packet, item->port, item->instance, item->most);",
        "        else",
        "            ingress(program, 0, item->frame, item->size, item->type, &item->kept);",
        "    }",
        "    if (program->waiting_count > P4R_MAX_REPLAYS)",
        f"        {common}stats.dropped_replay += program->waiting_count - P4R_MAX_REPLAYS;",
    ]


def _write_ingress(context: CContext, packet: Packet) -> None:
    expressions = CExpressions(context)
    actions = ActionWriter(context, expressions, "ingress", [])
    _write_start(context, actions, again=context.replays)
    instance_type = context.live_field("instance_type")
    if context.replays and instance_type is not None:
        actions.set(instance_type, make("u64", "(uint64_t)type", 0, 7))
    for number, field in enumerate(carried_fields(context)):
        set_kept(actions, field, f"kept->carried_{number}")
    write_flags(context, "ingress")
    if context.usage.ingress.digests:
        context.writer.line("uint32_t digest = 0;")
    write_parser(context, expressions)
    write_verify(context, expressions)
    write_control(context, expressions, context.program.ingress)
    _write_learning(context, expressions)
    _write_forwarding(context, expressions, actions, packet)


def _write_clone(context: CContext, packet: Packet) -> None:
    """The function for the clones made at the end of ingress."""
    expressions = CExpressions(context)
    actions = ActionWriter(context, expressions, "ingress", [])
    _write_start(context, actions, again=False)
    write_parser(context, expressions)
    write_reset(context, actions)
    context.writer.line("const uint64_t most = copies->most;")
    packet.fill(expressions)
    _write_copies(context)


def _write_start(context: CContext, actions: ActionWriter, *, again: bool) -> None:
    """The state of a fresh packet: no header is valid, everything is zero.

    `again`: `type` is not zero if the packet is not from a port; its time is zero then.
    """
    writer = context.writer
    writer.line("struct p4r_common *const common = &program->common;")
    if context.tracks_length:
        writer.line("uint64_t length = size;")
    now = "p4r_now(common)"
    given = {
        "ingress_port": "ingress_port",
        "packet_length": "size",
        "ingress_global_timestamp": f"(type ? 0 : {now})" if again else now,
    }
    for name, text in given.items():
        field = context.live_field(name)
        if field is not None:
            actions.set(field, make("u64", f"(uint64_t){text}", 0, (1 << 64) - 1))


def _write_learning(context: CContext, expressions: CExpressions) -> None:
    """Send the digest that ingress asked for last; also of packets that are dropped."""
    names = sorted(context.program.kept.digests)
    for name in sorted(context.usage.ingress.digests):
        digest = context.program.kept.digests[name]
        number = names.index(name)
        test = f"digest == {number + 1} && program->digest_wanted[{number}]"
        with context.writer.block(f"if ({test})"):
            values = [expressions.field(field) for field in digest.fields]
            write_event(context, expressions, "digest", name, values)


def _write_forwarding(
    context: CContext, expressions: CExpressions, actions: ActionWriter, packet: Packet
) -> None:
    """After ingress: multicast goes before unicast, unicast to the drop port is a drop."""
    writer = context.writer
    spec = context.written_field("egress_spec")
    group = context.written_field("mcast_grp")
    instance_type = context.live_field("instance_type")
    usage = context.usage
    if "clone" in usage.ingress.kept:
        _write_clone_call(context, expressions)
    if "resubmit" in usage.ingress.kept:
        with writer.block("if (resubmit)"):
            write_wait(context, expressions, "frame", "size", InstanceType.RESUBMITTED, "resubmit")
            writer.line("return;")
    port = constant(0) if spec is None else expressions.field(spec)
    port = expressions.fit(port, 32)

    def unicast() -> None:
        drop = make("u64", "common->drop_port", 0, (1 << 64) - 1, atom=True)
        with writer.block(f"if ({expressions.compare('==', port, drop)})"):
            writer.line("common->stats.dropped_ingress++;")
            writer.line("return;")
        if instance_type is not None and (context.comes_again or instance_type in usage.writes):
            actions.set(instance_type, constant(InstanceType.NORMAL))

    writer.line("const struct p4r_copies *copies = NULL;")
    if group is None:
        unicast()
    else:
        value = expressions.fit(expressions.field(group), 16)
        test = expressions.compare("!=", expressions.field(group), constant(0))
        with writer.block(f"if ({test})"):
            writer.line(f"copies = common->groups[{expressions.scalar(value, 'u64')}];")
            missing = "!copies || !copies->count"
            if group.width > 16:
                outside = expressions.compare(">", expressions.field(group), constant(0xFFFF))
                missing = f"{outside} || {missing}"
            with writer.block(f"if ({missing})"):
                writer.line("common->stats.dropped_no_replica++;")
                writer.line("return;")
            if instance_type is not None:
                actions.set(instance_type, constant(InstanceType.REPLICATION))
            if usage.ingress.truncates:
                # simple_switch forgets `truncate` when it makes copies.
                writer.line("most = P4R_UNLIMITED;")
        with writer.block("else"):
            unicast()
    packet.fill(expressions)
    text = f"(uint32_t){paren(expressions.scalar(port, 'u64'))}"
    most = "most" if context.limits else "P4R_UNLIMITED"
    with writer.block("if (!copies)"):
        call = queues.call_of_egress(context)
        writer.line(f"{call}(program, &packet, {text}, 0, {most});")
        writer.line("return;")
    _write_copies(context)


def _write_copies(context: CContext) -> None:
    most = "most" if context.limits else "P4R_UNLIMITED"
    with context.writer.block("for (uint32_t copy = 0; copy < copies->count; copy++)"):
        context.writer.line(
            f"{queues.call_of_egress(context)}(program, &packet, copies->copy[copy].port, "
            f"copies->copy[copy].instance, {most});"
        )


def _write_clone_call(context: CContext, expressions: CExpressions) -> None:
    """The call of `clone_packet`, if there is a session."""
    writer = context.writer
    lists = context.usage.ingress.kept["clone"]
    with writer.block("if (clone_session >= 0 && common->sessions[clone_session])"):
        writer.line("struct kept own;")
        for number, field in enumerate(clone_fields(context)):
            store_kept(context, expressions, f"own.clone_{number}", field, lists, "clone")
        writer.line(
            "clone_packet(program, ingress_port, frame, size, "
            "common->sessions[clone_session], &own);"
        )
