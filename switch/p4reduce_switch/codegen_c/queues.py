# SPDX-License-Identifier: Apache-2.0
"""Egress queues as C source, for programs that read their fields and switches that configure them.

`process` runs ingress, which queues the packet's copies; `p4r_program_release` runs egress for
copies that are due. Without queues, ingress calls egress.
"""

from __future__ import annotations

from p4reduce_switch.codegen_c.context import CContext


def call_of_egress(context: CContext) -> str:
    """Return the name of the function that takes a copy at the end of ingress."""
    return "enqueue" if context.usage.queued else "egress"


def declare(context: CContext) -> list[str]:
    """Declare a queued item, and the function that queues it."""
    priority = context.program.intrinsic.get("priority")
    value = "0" if priority is None else f"packet->{context.names.field(priority)}"
    return [
        "/* A copy of a packet in an egress queue. */",
        "struct queued {",
        "    struct p4r_queued head;",
        "    uint32_t instance;",
        "    uint64_t most;",
        "    struct packet packet;",
        "    uint8_t frame[];",
        "};",
        "",
        "static void enqueue(struct p4r_program *program, const struct packet *packet,",
        "                    uint32_t port, uint32_t instance, uint64_t most) {",
        "    struct queued *const queued = (struct queued *)p4r_enqueue(",
        f"        &program->common, port, {value}, sizeof *queued + packet->size);",
        "    if (!queued)",
        "        return;",
        "    queued->instance = instance;",
        "    queued->most = most;",
        "    queued->packet = *packet;",
        "    queued->packet.frame = queued->frame;",
        "    memcpy(queued->frame, packet->frame, packet->size);",
        "}",
        "",
    ]


def release(context: CContext) -> list[str]:
    """Write the function that runs egress for copies that are due."""
    return [
        "uint64_t p4r_program_release(struct p4r_program *program, uint64_t now_ns,",
        "                             p4r_emit emit, void *emit_context, p4r_ready ready) {",
        "    struct p4r_common *const common = &program->common;",
        "    common->now_ns = now_ns;",
        "    common->emit = emit;",
        "    common->emit_context = emit_context;",
        "    for (uint32_t released = 0; released < P4R_MOST_RELEASED; released++) {",
        "        struct queued *const queued = (struct queued *)p4r_queues_pop(",
        "            common->queues, now_ns, ready, emit_context);",
        "        if (!queued)",
        "            break;",
        *(["        program->waiting_count = 0;"] if context.replays else []),
        "        egress(program, &queued->packet, queued->head.port, queued->instance,",
        "               queued->most, &queued->head);",
        "        free(queued);",
        *(["        run_waiting(program);"] if context.replays else []),
        "    }",
        "    return p4r_queues_next(common->queues, ready, emit_context);",
        "}",
        "",
    ]
