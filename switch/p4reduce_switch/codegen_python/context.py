# SPDX-License-Identifier: Apache-2.0
"""What the parts of the code generator share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p4reduce_switch.codegen_python.expressions import Expressions
from p4reduce_switch.codegen_python.layout import HeaderLayout
from p4reduce_switch.codegen_python.text import Names, Writer
from p4reduce_switch.program.ir import FieldRef, Program
from p4reduce_switch.program.usage import Usage

__all__ = ["Binding", "Context", "ObjectKind"]

ObjectKind = Literal[
    "lookup",
    "members",
    "default",
    "packets",
    "octets",
    "cells",
    "hash",
    "groups",
    "stats",
    "now",
    "random",
    "sessions",
    "waiting",
    "replay",
    "log",
    "assertion",
    "endless",
    "meters",
    "learn",
    "clock",
]


@dataclass(frozen=True, slots=True)
class Binding:
    """A global of the generated code that whoever runs it must provide.

    kind and name: "members" of a value set, "lookup" and "default" of a table, "packets" and
    "octets" of a counter, "cells" of a register, a "hash" function; without a name the multicast
    "groups", the "stats", the clock "now" (microseconds since the start) and "random" (low, high)
    -> int, the clone "sessions", the packets that are "waiting" to be run again and "replay" that
    runs them, "log", "assertion" (kind, where) and "endless" (where) for programs' messages.
    "meters" are those of an array, "learn" takes the values of a digest, "clock" gives nanoseconds.
    """

    kind: ObjectKind
    name: str = ""


class Context:
    """One program on its way to becoming Python."""

    def __init__(self, program: Program, drop_port: int) -> None:
        self.program = program
        self.drop_port = drop_port
        self.usage = Usage(program)
        self.names = Names()
        self.expressions = Expressions(self.names, program.headers)
        self.writer = Writer()
        self.bindings: dict[str, Binding] = {}
        usage = self.usage
        self.wire = {name: program.headers[name] for name in program.deparser}
        self.layouts = {
            name: HeaderLayout(
                self.names,
                header,
                lambda f: f in usage.reads or f in usage.writes,
                rebuilt=name in self.wire and usage.touched(name),
            )
            for name, header in program.headers.items()
            if not header.is_metadata
        }
        length = program.intrinsic.get("packet_length")
        self.tracks_length = length in usage.egress.reads
        """Whether egress can see that ingress added or removed headers."""
        ingress_kept, egress_kept = usage.ingress.kept, usage.egress.kept
        self.replays = bool(ingress_kept or egress_kept)
        """Whether one frame may run through ingress or egress again."""
        self.limits = (
            usage.ingress.truncates
            or usage.egress.truncates
            or "clone" in ingress_kept
            or "clone" in egress_kept
        )
        """Whether frames may be cut as they leave."""

    # -- Names -------------------------------------------------------------------------------------

    def bind(self, kind: ObjectKind, name: str = "") -> str:
        """The name of a global that the pipeline provides."""
        variable = self.names.bound(kind, name) if name else f"_{kind}"
        self.bindings[variable] = Binding(kind, name)
        return variable

    def intrinsic(self, name: str) -> str | None:
        """The variable of one of the target's own fields, None if nobody looks at it."""
        field = self.program.intrinsic.get(name)
        if field is None or field not in self.usage.live:
            return None
        return self.names.field(field)

    def written_intrinsic(self, name: str) -> str | None:
        """The variable of one of the target's own fields, None if the program never sets it."""
        field = self.program.intrinsic.get(name)
        return self.names.field(field) if field in self.usage.writes else None

    def is_live(self, field: FieldRef) -> bool:
        return field in self.usage.live

    # -- How headers go out ------------------------------------------------------------------------

    def is_raw(self, header: str) -> bool:
        """The header goes out as the bytes that came in."""
        return not self.usage.touched(header)

    def packed_in_egress(self, header: str) -> bool:
        """The header differs from copy to copy, so egress puts it together."""
        egress = self.usage.egress
        return header in egress.added or any(f.header == header for f in egress.writes)

    def needs_offset(self, header: str) -> bool:
        """Something looks at the bytes of the header in the frame."""
        return (header in self.wire and self.is_raw(header)) or any(
            checksum.target.header == header and self.usage.is_raw_verified(checksum)
            for checksum in self.program.verify
        )
