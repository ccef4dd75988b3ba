# SPDX-License-Identifier: Apache-2.0
"""What the C generator finds out about a program before it writes code."""

from __future__ import annotations

from functools import cached_property

from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef, HeaderInstance, Program
from p4reduce_switch.program.usage import ASSIGNING, Stage, StageUsage, Usage


class Facts:
    """A program, how it uses its fields, and what follows for any generated code.

    Args:
        queues: whether egress queues are requested, even if the program does not use them.

    Attributes:
        wire: the headers that the deparser emits, in order.
        tracks_length: whether egress can notice that ingress added or removed headers.
        replays: whether one frame may run through ingress or egress again.
        limits: whether frames may be cut as they leave.
    """

    def __init__(self, program: Program, *, queues: bool = False) -> None:
        self.program = program
        self.usage = Usage(program, queues=queues)
        ingress, egress = self.usage.ingress, self.usage.egress
        self.wire = {name: program.headers[name] for name in program.deparser}
        self.tracks_length = program.intrinsic.get("packet_length") in egress.reads
        self.replays = bool(ingress.kept or egress.kept)
        clones = "clone" in ingress.kept or "clone" in egress.kept
        self.limits = ingress.truncates or egress.truncates or clones

    # -- Stages ------------------------------------------------------------------------------------

    def stage(self, name: Stage) -> StageUsage:
        """Return what a stage does. For replayed packets the parser is part of ingress."""
        return self.usage.egress if name == "egress" else self.usage.ingress

    def length_matters(self, stage: Stage) -> bool:
        """Whether egress can notice later that headers are added or removed here."""
        later = stage != "egress" or "clone" in self.usage.egress.kept
        return self.tracks_length and later

    @cached_property
    def comes_again(self) -> bool:
        """Whether packets may enter ingress that are not from a port."""
        return "resubmit" in self.usage.ingress.kept or "recirculate" in self.usage.egress.kept

    # -- Fields ------------------------------------------------------------------------------------

    def live_field(self, name: str) -> FieldRef | None:
        """Return a field of the target; None if it is not read."""
        field = self.program.intrinsic.get(name)
        return field if field is not None and field in self.usage.live else None

    def written_field(self, name: str) -> FieldRef | None:
        """Return a field of the target; None if the program never sets it."""
        field = self.program.intrinsic.get(name)
        return field if field in self.usage.writes else None

    def is_live(self, field: FieldRef) -> bool:
        return field in self.usage.live

    def is_dead(self, primitive: ir.Primitive) -> bool:
        """Whether it only assigns to fields that are never read."""
        return (
            primitive.op in ASSIGNING
            and isinstance(primitive.args[0], FieldRef)
            and not self.is_live(primitive.args[0])
        )

    def is_taken_out(self, field: FieldRef) -> bool:
        """Whether a header's field has a variable."""
        usage = self.usage
        return self.is_rebuilt(field.header) or field in usage.reads or field in usage.writes

    def header_of_key(self, key: ir.KeyField) -> str | None:
        """Return the header whose field reads 0 in a table's key while it is invalid, if there is
        one.

        BMv2 reads fields of an invalid header as zero in keys only.
        """
        if not isinstance(key.field, FieldRef):
            return None
        header = key.field.header
        is_header = not self.program.headers[header].is_metadata
        return header if is_header and self.usage.goes_stale(header) else None

    # -- How headers go out ------------------------------------------------------------------------

    def is_raw(self, header: str) -> bool:
        """Whether the header leaves as the bytes that came in."""
        return not self.usage.touched(header)

    def is_rebuilt(self, header: str) -> bool:
        """Whether the header leaves, packed from its fields."""
        return header in self.wire and not self.is_raw(header)

    def packed_in_egress(self, header: str) -> bool:
        """Whether the header differs between copies, so egress packs it."""
        egress = self.usage.egress
        return header in egress.added or any(f.header == header for f in egress.writes)

    def needs_offset(self, header: str) -> bool:
        """Whether the header's bytes in the frame are needed."""
        return (header in self.wire and self.is_raw(header)) or any(
            checksum.target.header == header and self.usage.is_raw_verified(checksum)
            for checksum in self.program.verify
        )

    def variables(self, header: HeaderInstance) -> tuple[FieldRef, ...]:
        """Return the fields of a header that are unpacked."""
        return tuple(filter(self.is_taken_out, header.fields))

    # -- Tables ------------------------------------------------------------------------------------

    def misses_matter(self, table: ir.ApplyTable) -> bool:
        """Whether a miss that the program handles has an effect."""
        runs = bool(self.program.actions[table.default_action].body)
        return runs or len(table.successors) > 1 or table.has_direct_counter

    def runs_anything(self, table: ir.ApplyTable) -> bool:
        """Whether a lookup's result has an effect, beside that it is counted."""
        actions = [self.program.actions[action] for action in table.actions]
        wanted = any(action.params for action in actions)
        chooses = len(actions) > 1 or bool(actions[0].body)
        return wanted or chooses or table.goes_on_by_action
