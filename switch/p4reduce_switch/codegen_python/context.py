# SPDX-License-Identifier: Apache-2.0
"""What the parts of the code generator share."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_switch.codegen_python.expressions import Expressions
from p4reduce_switch.codegen_python.layout import HeaderLayout
from p4reduce_switch.codegen_python.text import Names, Writer
from p4reduce_switch.codegen_python.variable_layout import VariableLayout
from p4reduce_switch.program.facts import Facts
from p4reduce_switch.program.ir import NOWHERE, ConstBits, FieldRef, Header, Program, Source

__all__ = ["Binding", "Context"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A global of the generated code, which its caller must provide.

    With a name: "members" of a value set, "lookup" and "default" of a table, "packets" and "octets"
    of a counter, "cells" of a register, "meters" of an array, a "hash" function. "learn" takes the
    values of a digest.

    Without a name: the multicast "groups", the clone "sessions", the "stats", and "random" (low,
    high) -> int. The clock "now" gives microseconds since the start, "clock" nanoseconds. "waiting"
    has packets to be run again, and "replay" runs them. "log", "assertion" (kind, where) and
    "endless" (where) take programs' messages. "visit" (kind, name, file and line, variables) is a
    debugger's, "watching" true if it is used. "enqueue" takes copies of packets for egress, and
    "release" runs it for those that are due.
    """

    kind: str
    name: str = ""


class Context(Facts):
    """One program on its way to becoming Python."""

    def __init__(
        self, program: Program, drop_port: int, *, queues: bool = False, points: bool = False
    ) -> None:
        super().__init__(program, queues=queues, watched=points)
        self._has_points = points
        self.drop_port = drop_port
        self.names = Names()
        self.expressions = Expressions(self.names, program.headers)
        self.writer = Writer()
        self.bindings: dict[str, Binding] = {}
        self.layouts = {
            name: self._layout(header)
            for name, header in program.headers.items()
            if not header.is_metadata
        }

    def _layout(self, header: Header) -> HeaderLayout | VariableLayout:
        usage, names = self.usage, self.names
        rebuilt = self.is_rebuilt(header.name)

        def needed(field: FieldRef) -> bool:
            return field in usage.reads or field in usage.writes

        if header.varbit is None:
            return HeaderLayout(names, header, needed, rebuilt)
        return VariableLayout(names, header, header.varbit, needed, rebuilt)

    def point(self, kind: str, name: str, source: Source = NOWHERE) -> None:
        """A point at which a debugger may stop, if there is one."""
        if self._has_points:
            where = f"{source.filename}:{source.line}"
            with self.writer.block(f"if {self.bind('watching')}:"):
                visit = self.bind("visit")
                self.writer.line(f"{visit}({kind!r}, {name!r}, {where!r}, locals())")

    # -- Names -------------------------------------------------------------------------------------

    def bind(self, kind: str, name: str = "") -> str:
        """The name of a global that the pipeline provides."""
        variable = self.names.bound(kind, name) if name else f"_{kind}"
        self.bindings[variable] = Binding(kind, name)
        return variable

    def intrinsic(self, name: str) -> str | None:
        """The variable of one of the target's own fields, None if it is not read."""
        field = self.live_field(name)
        return None if field is None else self.names.field(field)

    def written_intrinsic(self, name: str) -> str | None:
        """The variable of one of the target's own fields, None if the program never sets it."""
        field = self.written_field(name)
        return None if field is None else self.names.field(field)

    def more_bytes(self, header: Header) -> str:
        """To be added to the header's size: the bytes of its varbit field, if it has one."""
        if header.varbit is None:
            return ""
        return f" + ({self.names.field(header.varbit.length)} >> 3)"

    def varbit_length(self, part: FieldRef | ConstBits) -> str:
        """The variable with the length of a varbit field; empty if it is something else."""
        if not isinstance(part, FieldRef):
            return ""
        varbit = self.program.headers[part.header].varbit
        return self.names.field(varbit.length) if varbit and varbit.field == part else ""
