# SPDX-License-Identifier: Apache-2.0
"""What of a packet's state goes from ingress to egress."""

from __future__ import annotations

from p4reduce_switch.codegen_python.context import Context
from p4reduce_switch.program.ir import FieldRef

__all__ = ["ENTRY_FIELDS", "EgressState"]

ENTRY_FIELDS = (
    "egress_port",
    "egress_spec",
    "egress_rid",
    "packet_length",
    "egress_global_timestamp",
    "deq_timedelta",
    "deq_qdepth",
    "enq_qdepth",
    "enq_timestamp",
)
"""Fields that the target sets when a copy enters egress."""


class EgressState:
    """What egress gets from ingress, and what it starts out with.

    Attributes:
        arguments: variables that are passed, in order.
        zeros: variables that start at zero, because nothing before egress has touched them.
        metadata: those of the arguments that are fields of metadata.
    """

    def __init__(self, context: Context) -> None:
        usage, names = context.usage, context.names
        at_entry = {context.program.intrinsic.get(name) for name in ENTRY_FIELDS}
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
