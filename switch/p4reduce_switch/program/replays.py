# SPDX-License-Identifier: Apache-2.0
"""What replayed packets keep: after clone, resubmit and recirculate.

All metadata of such a packet is zero, except the fields of the primitive's field list. A clone made
at the end of ingress is the frame as it came in, parsed again. A clone made at the end of egress
has the headers as egress left them, before checksums are updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from p4reduce_switch.program import ir
from p4reduce_switch.program.facts import Facts
from p4reduce_switch.program.header_stacks import STACKS
from p4reduce_switch.program.ir import FieldRef


class InstanceType(IntEnum):
    """The values of `instance_type`: simple_switch's PktInstanceType."""

    NORMAL = 0
    INGRESS_CLONE = 1
    EGRESS_CLONE = 2
    RECIRCULATED = 4
    REPLICATION = 5
    RESUBMITTED = 6


def belongs_to_headers(field: FieldRef) -> bool:
    """Whether a field is hidden metadata that stays with the headers."""
    return field.header in (STACKS, ir.VARBITS)


def carried_fields(facts: Facts) -> tuple[FieldRef, ...]:
    """Return the fields that replayed packets may bring to ingress."""
    usage = facts.usage
    return _union(
        *usage.ingress.kept.get("resubmit", ()), *usage.egress.kept.get("recirculate", ())
    )


def clone_fields(facts: Facts) -> tuple[FieldRef, ...]:
    """Return the fields that clones made at the end of ingress may bring."""
    return _union(*facts.usage.ingress.kept.get("clone", ()))


def fields_to_reset(facts: Facts) -> list[FieldRef]:
    """Return the metadata to zero in a clone from ingress, after the parser."""
    usage, kept = facts.usage, clone_fields(facts)
    return [
        field
        for header in facts.program.headers.values()
        if header.is_metadata
        for field in header.fields
        if not belongs_to_headers(field)
        and field in usage.live
        and field in usage.reads | usage.writes
        and field not in kept
    ]


def lists_with(field: FieldRef, lists: Sequence[ir.FieldList]) -> list[int]:
    """Return the numbers of the field lists that keep the field."""
    return [number for number, kept in enumerate(lists) if field in kept.fields]


def _union(*lists: ir.FieldList) -> tuple[FieldRef, ...]:
    return tuple(dict.fromkeys(field for kept in lists for field in kept.fields))
