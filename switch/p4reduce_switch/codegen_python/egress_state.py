# SPDX-License-Identifier: Apache-2.0
"""The packet state that goes from ingress to egress, as Python variables."""

from __future__ import annotations

from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.program.egress_needs import EgressNeeds
from p4reduce_switch.program.ir import FieldRef


class EgressState:
    """`EgressNeeds` as variables.

    Attributes:
        arguments: variables that are passed, in order.
        zeros: variables that start at zero.
        metadata: the arguments that are metadata fields.
    """

    def __init__(self, context: PyContext) -> None:
        needs, names = EgressNeeds(context), context.names
        self.arguments: list[str] = ["_size"]
        if context.tracks_length:
            self.arguments.append("_length")
        for name in needs.packed:
            layout = context.layouts[name]
            self.arguments += [*layout.chunks, *map(names.field, layout.ints)]
        self.arguments += map(names.serialised, needs.pieces)
        self.arguments += map(names.valid, needs.valids)
        self.arguments += map(names.field, needs.fields)
        self.arguments.append("_payload")
        self.zeros: list[str] = [names.field(field) for field in needs.zeros]
        self.metadata: dict[str, FieldRef] = {names.field(f): f for f in needs.metadata}
