# SPDX-License-Identifier: Apache-2.0
"""The state that outlives a packet: `struct p4r_program`, and where Python finds its parts."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.values import kind_of_width, limbs_of, literal
from p4reduce_switch.program import ir

_MOST_KEY_WORDS = 1 << 13


class ProgramState:
    """The tables, value sets, counters, registers and meters of a program."""

    def __init__(self, context: CContext) -> None:
        self._context = context
        program = context.program
        self._tables = {
            node.name: node
            for control in (program.ingress, program.egress)
            for node in control.nodes.values()
            if isinstance(node, ir.ApplyTable)
        }
        self._counters = [c for c in program.kept.counters.values() if c.table is None]
        self._meters = [m for m in program.kept.meters.values() if m.table is None]
        self._parts = {("common", ""): "&program->common", **self._find_parts()}
        self.objects = {part: number for number, part in enumerate(self._parts)}
        """The number of each part, by kind and name."""
        for table in self._tables.values():
            if sum(limbs_of(key.width) for key in table.key) > _MOST_KEY_WORDS:
                raise NotNativeError(f"{table.source}: the key of table '{table.name}' is too wide")

    def constants(self) -> list[str]:
        """Write the constant arrays that the functions use."""
        lines = []
        widest = max(
            [limbs_of(r.width) for r in self._context.program.kept.registers.values()], default=1
        )
        lines.append("/* What a register's cell that is not there is read as. */")
        lines.append(f"static const uint64_t no_limbs[{widest}];")
        for (value, limbs), name in self._context.constants.items():
            words = [literal(value >> 64 * i & (1 << 64) - 1, "u64") for i in range(limbs)]
            lines.append(f"static const uint64_t {name}[{limbs}] = {{")
            lines += [f"    {', '.join(words[i : i + 4])}," for i in range(0, limbs, 4)]
            lines.append("};")
        return [*lines, ""]

    def declare(self, replays: bool) -> list[str]:
        """Return the struct's declaration."""
        names, program = self._context.names, self._context.program
        lines = ["struct p4r_program {", "    struct p4r_common common;"]
        lines += [f"    struct p4r_table {names.of('table', name)};" for name in self._tables]
        lines += [
            f"    struct p4r_table {names.of('value_set', name)};"
            for name in program.kept.value_sets
        ]
        for counter in self._counters:
            name, size = names.of("counter", counter.name), max(counter.size, 1)
            lines.append(f"    struct {{ uint64_t packets[{size}], bytes[{size}]; }} {name};")
        widest = 1
        for register in program.kept.registers.values():
            lines.append(f"    {_cells(names.of('register', register.name), register)}")
            widest = max(widest, limbs_of(register.width))
        lines += [
            f"    struct p4r_meter {names.of('meter', meter.name)}[{max(meter.size, 1)}];"
            for meter in self._meters
        ]
        if program.kept.digests:
            lines.append(f"    uint32_t digest_wanted[{len(program.kept.digests)}];")
        lines.append(
            f"    uint64_t nowhere[{widest}]; /* a cell that is not there is written to */"
        )
        if any(c.with_payload for c in _calculations(program)):
            lines.append("    uint8_t scratch[(1 << 17) + P4R_MAX_FRAME]; /* what is hashed */")
        if replays:
            lines.append("    uint32_t waiting_count;")
            lines.append("    struct waiting waiting[P4R_MAX_REPLAYS];")
        return [*lines, "};"]

    def define(self) -> list[str]:
        """Write the functions that create it and return the addresses of its parts."""
        lines = ["uint32_t p4r_program_abi(void) { return P4R_PIPELINE_ABI; }", ""]
        lines += self._ranges()
        lines += [
            "struct p4r_program *p4r_program_new(uint32_t drop_port) {",
            "    struct p4r_program *const program = calloc(1, sizeof *program);",
            "    if (!program)",
            "        return NULL;",
            "    if (!p4r_common_init(&program->common, drop_port)) {",
            "        free(program);",
            "        return NULL;",
            "    }",
        ]
        if self._context.usage.queued:
            lines += [
                "    program->common.release = p4r_program_release;",
                "    if (!p4r_set_queues(&program->common, 1, 64, 0)) {",
                "        p4r_common_free(&program->common);",
                "        free(program);",
                "        return NULL;",
                "    }",
            ]
        names, program = self._context.names, self._context.program
        for table in self._tables.values():
            words = sum(limbs_of(key.width) for key in table.key)
            count = sum(key.kind == "range" for key in table.key)
            name = names.of("table", table.name)
            ranges = f"ranges_{name}" if count else "NULL"
            lines.append(f"    p4r_table_init(&program->{name}, {words}, {ranges}, {count});")
        for value_set in program.kept.value_sets.values():
            words = sum(limbs_of(width) for width in value_set.widths)
            name = names.of("value_set", value_set.name)
            ranges = f"ranges_{name}" if value_set.widths else "NULL"
            lines.append(f"    p4r_table_init(&program->{name}, {words}, {ranges}, 0);")
        lines += ["    return program;", "}", ""]
        lines += [
            "void p4r_program_free(struct p4r_program *program) {",
            "    if (!program)",
            "        return;",
            "    p4r_common_free(&program->common);",
        ]
        for kind, items in (("table", self._tables), ("value_set", program.kept.value_sets)):
            lines += [f"    p4r_table_clear(&program->{names.of(kind, name)});" for name in items]
        lines += ["    free(program);", "}", ""]
        lines += [
            "uint32_t p4r_program_events(const struct p4r_program *program) {",
            "    return program->common.events.count;",
            "}",
            "",
        ]
        return [*lines, *self._objects()]

    def _ranges(self) -> list[str]:
        """The places of ranges in a key. Any field of a value set may become one."""
        names = self._context.names
        keys = [
            (names.of("table", table.name), [(key.width, key.kind == "range") for key in table.key])
            for table in self._tables.values()
        ]
        keys += [
            (names.of("value_set", name), [(width, True) for width in value_set.widths])
            for name, value_set in self._context.program.kept.value_sets.items()
        ]
        lines = []
        for name, fields in keys:
            parts = []
            at = 0
            for width, is_range in fields:
                if is_range:
                    parts.append(f"{{{at}, {limbs_of(width)}}}")
                at += limbs_of(width)
            if parts:
                text = ", ".join(parts)
                lines.append(f"static const struct p4r_range ranges_{name}[] = {{{text}}};")
        return lines

    def _find_parts(self) -> dict[tuple[str, str], str]:
        """C for the address of each part, by kind and name."""
        names, kept = self._context.names, self._context.program.kept
        parts = {("table", n): f"&program->{names.of('table', n)}" for n in self._tables}
        for name in kept.value_sets:
            parts["value_set", name] = f"&program->{names.of('value_set', name)}"
        for counter in self._counters:
            place = f"program->{names.of('counter', counter.name)}"
            parts["packets", counter.name] = f"{place}.packets"
            parts["octets", counter.name] = f"{place}.bytes"
        for name in kept.registers:
            parts["cells", name] = f"program->{names.of('register', name)}"
        for meter in self._meters:
            parts["meters", meter.name] = f"program->{names.of('meter', meter.name)}"
        for number, name in enumerate(sorted(kept.digests)):
            parts["digest_wanted", name] = f"&program->digest_wanted[{number}]"
        return parts

    def _objects(self) -> list[str]:
        lines = [
            "void *p4r_program_object(struct p4r_program *program, uint32_t number) {",
            "    switch (number) {",
        ]
        for number, text in enumerate(self._parts.values()):
            lines += [f"    case {number}:", f"        return {text};"]
        return [*lines, "    default:", "        return NULL;", "    }", "}"]


def _cells(name: str, register: ir.RegisterArray) -> str:
    size = max(register.size, 1)
    kind = kind_of_width(register.width)
    if kind == "wide":
        return f"uint64_t {name}[{size}][{limbs_of(register.width)}];"
    if kind == "u128":
        return f"p4r_u128 {name}[{size}];"
    bits = next((bits for bits in (8, 16, 32) if register.width <= bits), 64)
    return f"uint{bits}_t {name}[{size}];"


def _calculations(program: ir.Program) -> Iterable[ir.Calculation]:
    yield from program.calculations.values()
    for checksum in (*program.verify, *program.update):
        yield checksum.calculation
