# SPDX-License-Identifier: Apache-2.0
"""The packet state that goes from ingress to egress, and the fields that the target sets."""

from __future__ import annotations

from p4reduce_switch.program.facts import Facts
from p4reduce_switch.program.ir import FieldRef

_ENTRY_FIELDS = (
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


def entry_fields(facts: Facts) -> dict[str, FieldRef]:
    """Return the fields that the target sets and the program uses, with simple_switch's names."""
    egress, intrinsic = facts.usage.egress, facts.program.intrinsic
    spec = intrinsic["egress_spec"]
    wanted = egress.reads | ({spec} if spec in egress.writes else set())
    found = {name: intrinsic[name] for name in _ENTRY_FIELDS if name in intrinsic}
    return {name: field for name, field in found.items() if field in wanted}


class EgressNeeds:
    """The fields that egress gets from ingress, and those that start with a fixed value.

    Attributes:
        packed: headers that egress gets as fields, because it packs them.
        pieces: headers that it gets as bytes.
        valids: headers whose validity it may read.
        fields: other fields that it gets, in order.
        metadata: the fields among them that are metadata.
        zeros: fields that start at zero, because nothing before egress sets them.
    """

    def __init__(self, facts: Facts) -> None:
        usage, program = facts.usage, facts.program
        egress = usage.egress
        self.packed = [name for name in facts.wire if facts.packed_in_egress(name)]
        self.pieces = [name for name in facts.wire if not facts.packed_in_egress(name)]
        self.valids = [n for n in facts.wire if facts.packed_in_egress(n) or n in egress.tests]
        self.valids += [
            name
            for name, header in program.headers.items()
            if not header.is_metadata and name not in facts.wire
            if name in egress.tests or name in egress.added
        ]
        at_entry = {program.intrinsic.get(name) for name in _ENTRY_FIELDS}
        before = (
            usage.parser.reads | usage.ingress.reads | usage.parser.writes | usage.ingress.writes
        )
        before |= {field for kept in egress.kept.get("clone", ()) for field in kept.fields}
        before |= set(program.intrinsic.values())
        self.fields: list[FieldRef] = []
        self.metadata: set[FieldRef] = set()
        self.zeros: list[FieldRef] = []
        for header in program.headers.values():
            for field in header.fields:
                if field not in egress.reads or header.name in self.packed or field in at_entry:
                    continue
                if header.is_metadata and field not in before:
                    self.zeros.append(field)
                    continue
                self.fields.append(field)
                if header.is_metadata:
                    self.metadata.add(field)
