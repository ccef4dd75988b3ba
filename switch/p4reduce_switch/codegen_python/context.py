# SPDX-License-Identifier: Apache-2.0
"""What the modules of the Python generator share."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_switch.codegen_python.expressions import PyExpressions
from p4reduce_switch.codegen_python.layout import HeaderLayout
from p4reduce_switch.codegen_python.text import PyNames, PyWriter
from p4reduce_switch.codegen_python.variable_layout import VariableLayout
from p4reduce_switch.program.facts import Facts
from p4reduce_switch.program.ir import (
    NOWHERE,
    ConstBits,
    FieldRef,
    HeaderInstance,
    Program,
    SourceLocation,
)


@dataclass(frozen=True, slots=True)
class Binding:
    """A global name of the generated code that its caller must provide.

    With a name: "members" of a value set, "lookup" and "default" of a table, "packets" and "octets"
    of a counter, "cells" of a register, "meters" of an array, a "hash" function. "learn" takes the
    values of a digest.

    Without a name: the multicast "groups", the clone "sessions", the "stats", and "random" (low,
    high) -> int. The clock "now" returns microseconds since the start, "clock" nanoseconds.
    "waiting" holds packets to be run again, and "replay" runs them. "log", "assertion" (kind,
    where) and "endless" (where) take programs' messages. "visit" (kind, name, file and line,
    variables) calls a debugger, and "watching" is true if it is used. "enqueue" takes copies for
    egress, and "release" runs egress for those that are due.
    """

    kind: str
    name: str = ""


class PyContext(Facts):
    """The program that is turned into Python, and the code so far.

    Attributes:
        lines: file and line of each point at which a debugger is called.
    """

    def __init__(
        self, program: Program, drop_port: int, *, queues: bool = False, points: bool = False
    ) -> None:
        super().__init__(program, queues=queues, watched=points)
        self._has_points = points
        self.drop_port = drop_port
        self.names = PyNames()
        self.expressions = PyExpressions(self.names, program.headers)
        self.writer = PyWriter()
        self.bindings: dict[str, Binding] = {}
        self.lines: set[tuple[str, int]] = set()
        self.layouts = {
            name: self._layout(header)
            for name, header in program.headers.items()
            if not header.is_metadata
        }

    def _layout(self, header: HeaderInstance) -> HeaderLayout:
        usage, names = self.usage, self.names
        rebuilt = self.is_rebuilt(header.name)

        def needed(field: FieldRef) -> bool:
            return field in usage.reads or field in usage.writes

        if header.varbit is None:
            return HeaderLayout(names, header, needed, rebuilt)
        return VariableLayout(names, header, header.varbit, needed, rebuilt)

    def point(self, kind: str, name: str, source: SourceLocation = NOWHERE) -> None:
        """Write a call of the debugger, if there is one."""
        if self._has_points:
            where = f"{source.filename}:{source.line}"
            if source.line:
                self.lines.add((source.filename, source.line))
            with self.writer.block(f"if {self.bind('watching')}:"):
                visit = self.bind("visit")
                self.writer.line(f"{visit}({kind!r}, {name!r}, {where!r}, locals())")

    # -- Names -------------------------------------------------------------------------------------

    def bind(self, kind: str, name: str = "") -> str:
        """Return the name of a global that the pipeline provides."""
        variable = self.names.bound(kind, name) if name else f"_{kind}"
        self.bindings[variable] = Binding(kind, name)
        return variable

    def intrinsic(self, name: str) -> str | None:
        """Return the variable of a field of the target; None if it is not read."""
        field = self.live_field(name)
        return None if field is None else self.names.field(field)

    def written_intrinsic(self, name: str) -> str | None:
        """Return the variable of a field of the target; None if the program never sets it."""
        field = self.written_field(name)
        return None if field is None else self.names.field(field)

    def more_bytes(self, header: HeaderInstance) -> str:
        """Return the bytes of the header's varbit field as text to append to its size; empty if it
        has none."""
        if header.varbit is None:
            return ""
        return f" + ({self.names.field(header.varbit.length)} >> 3)"

    def varbit_length(self, part: FieldRef | ConstBits) -> str:
        """Return the variable with a varbit field's length; empty for other fields."""
        if not isinstance(part, FieldRef):
            return ""
        varbit = self.program.headers[part.header].varbit
        return self.names.field(varbit.length) if varbit and varbit.field == part else ""
