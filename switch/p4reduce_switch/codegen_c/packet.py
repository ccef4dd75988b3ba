# SPDX-License-Identifier: Apache-2.0
"""The state that egress gets for a packet: `struct packet` of the generated code.

Egress runs once per copy of the packet. Each run starts from the same struct and has its own
variables, so copies do not see each other's changes. A header that egress does not change is packed
once, before.
"""

from __future__ import annotations

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.layout import store_header
from p4reduce_switch.codegen_c.replay import declare_member, set_kept, store_kept, store_member
from p4reduce_switch.codegen_c.values import constant, kind_of_width
from p4reduce_switch.program import ir
from p4reduce_switch.program.egress_needs import EgressNeeds
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.replays import InstanceType, belongs_to_headers


class Packet:
    """The struct's members, and how they are set and used.

    Attributes:
        fields: fields of headers and metadata, by value.
        valids: headers whose validity egress may ask for.
        pieces: headers that leave as bytes: in the frame, or packed before egress.
        metadata: the fields among them that are metadata.
    """

    def __init__(self, context: CContext) -> None:
        self._context = context
        needs = EgressNeeds(context)
        self.fields: list[FieldRef] = [
            field for name in needs.packed for field in context.variables(context.wire[name])
        ]
        self.fields += needs.fields
        self.valids, self.pieces, self.metadata = needs.valids, needs.pieces, needs.metadata

    def declare(self) -> list[str]:
        """Return the struct's declaration."""
        context = self._context
        names = context.names
        lines = ["struct packet {", "    const uint8_t *frame;"]
        lines.append("    uint32_t size, at; /* bytes of the frame, and those that were parsed */")
        if context.tracks_length:
            lines.append("    uint64_t length; /* with the headers that ingress added */")
        lines += [f"    {declare_member(names.field(field), field)}" for field in self.fields]
        lines += [f"    bool {names.of('valid', name)};" for name in self.valids]
        for name in self.pieces:
            lines.append(f"    uint32_t {names.of('size', name)};")
            if context.is_raw(name):
                lines.append(f"    uint32_t {names.of('at', name)};")
            else:
                size = max(context.wire[name].most_bytes, 1)
                lines.append(f"    uint8_t {names.of('bytes', name)}[{size}];")
        return [*lines, "};"]

    # -- Into the struct ---------------------------------------------------------------------------

    def fill(self, expressions: CExpressions) -> None:
        """Return a struct `packet` that is filled from the variables, at the end of ingress."""
        context, writer = self._context, self._context.writer
        names = context.names
        writer.line("struct packet packet;")
        for member in ("frame", "size", "at", *(["length"] if context.tracks_length else [])):
            writer.line(f"packet.{member} = {member};")
        for field in self.fields:
            value = expressions.field(field)
            store_member(context, expressions, f"packet.{names.field(field)}", field, value)
        for name in self.valids:
            writer.line(f"packet.{names.of('valid', name)} = {context.valid(name)};")
        for name in self.pieces:
            size = context.size_of(context.wire[name])
            valid, member = context.valid(name), f"packet.{names.of('size', name)}"
            writer.line(f"{member} = {valid} ? {size} : 0;")
            if context.is_raw(name):
                offset = context.offset(name)
                writer.line(f"packet.{offset} = {offset};")
                continue
            with writer.block(f"if ({valid})"):
                store_header(context, context.wire[name], f"packet.{names.of('bytes', name)}")

    def copy(self, expressions: CExpressions, lists: list[ir.FieldList]) -> None:
        """Fill the struct `item->packet` of a clone with the packet's present state, in egress."""
        context, writer = self._context, self._context.writer
        names = context.names
        writer.line("item->packet.frame = item->frame;")
        writer.line("item->packet.size = size;")
        writer.line("item->packet.at = packet->at;")
        writer.line("memcpy(item->frame, frame, size);")
        if context.tracks_length:
            writer.line("item->packet.length = length;")
        instance_type = context.program.intrinsic.get("instance_type")
        for field in self.fields:
            member = f"item->packet.{names.field(field)}"
            if field in self.metadata and field != instance_type and not belongs_to_headers(field):
                store_kept(context, expressions, member, field, lists, "clone")
                continue
            is_type = field == instance_type
            value = constant(InstanceType.EGRESS_CLONE) if is_type else expressions.field(field)
            store_member(context, expressions, member, field, value)
        for name in self.valids:
            writer.line(f"item->packet.{names.of('valid', name)} = {context.valid(name)};")
        for name in self.pieces:
            size = names.of("size", name)
            writer.line(f"item->packet.{size} = {size};")
            if context.is_raw(name):
                offset = names.of("at", name)
                writer.line(f"item->packet.{offset} = packet->{offset};")
            else:
                bytes_ = names.of("bytes", name)
                writer.line(f"memcpy(item->packet.{bytes_}, packet->{bytes_}, {size});")

    # -- Out of the struct -------------------------------------------------------------------------

    def unfold(self, actions: ActionWriter) -> None:
        """Set egress's variables from the struct, at its start."""
        context, writer = self._context, self._context.writer
        names = context.names
        writer.line("const uint8_t *const frame = packet->frame;")
        writer.line("const uint32_t size = packet->size;")
        writer.line("const uint8_t *const payload = frame + packet->at;")
        writer.line("const uint32_t payload_size = size - packet->at;")
        if context.tracks_length:
            writer.line("uint64_t length = packet->length;")
        for field in self.fields:
            member = f"packet->{names.field(field)}"
            if kind_of_width(field.width) == "wide":
                set_kept(actions, field, member)
            else:
                writer.line(f"{context.field(field)} = {member};")
        for name in self.valids:
            writer.line(f"{context.valid(name)} = packet->{names.of('valid', name)};")
        for name in self.pieces:
            size = names.of("size", name)
            writer.line(f"uint32_t {size} = packet->{size};")
