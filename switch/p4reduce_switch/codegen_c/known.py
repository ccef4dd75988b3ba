# SPDX-License-Identifier: Apache-2.0
"""Which bits of fields may be set: the others are zero in every packet.

If bit 63 of each limb is zero in both operands, an addition has no carry between limbs. Programs
keep masks of lanes in variables, so these bits can be found: in a field that only gets constants,
all other bits are zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import METADATA_VARBITS, VARBITS, FieldRef, Program


def possible_ones(program: Program) -> Mapping[FieldRef, int]:
    """Return the bits that may be set in metadata fields that only get constants."""
    found: dict[FieldRef, int] = {}
    unknown: set[FieldRef] = set(program.intrinsic.values())
    for header in program.headers.values():
        if not header.is_metadata or header.name in (VARBITS, METADATA_VARBITS):
            unknown.update(header.fields)
    for meter in program.kept.meters.values():
        if meter.target is not None:
            unknown.add(meter.target)
    for state in program.parser.states.values():
        for op in state.ops:
            if isinstance(op, ir.Peek):
                unknown.add(op.target)
            elif isinstance(op, ir.ExtractNext):
                unknown.add(op.next)
    for checksum in (*program.verify, *program.update):
        unknown.add(checksum.target)
    for primitive in program.primitives():
        if primitive.op == "mark_to_drop":
            unknown.update(
                field
                for header in primitive.args
                if isinstance(header, ir.HeaderValue)
                for field in program.drop_fields(header)
            )
        for number, argument in enumerate(primitive.args):
            if not isinstance(argument, FieldRef) or number > 0:
                continue
            value = primitive.args[1] if primitive.op == "assign" else None
            if isinstance(value, ir.Const) and value.value >= 0 and not argument.signed:
                cut = value.value & (1 << argument.width) - 1
                found[argument] = found.get(argument, 0) | cut
            else:
                unknown.add(argument)
    return {field: ones for field, ones in found.items() if field not in unknown}
