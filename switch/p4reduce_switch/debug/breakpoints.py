# SPDX-License-Identifier: Apache-2.0
"""Breakpoints: their notation, and whether a point matches one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["state", "table", "action", "line", "control"]
"""A parser's state, a table before its lookup, an action before it runs, a line, and the start of
the parser, ingress or egress."""
_NAMED = ("state", "table", "action", "control")
_FORMS = "table NAME, action NAME, state NAME, control NAME, line [FILE:]NUMBER or field NAME VALUE"


@dataclass(frozen=True, slots=True)
class Point:
    """A place that a running program has reached."""

    kind: Kind
    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A breakpoint at a name or a line."""

    kind: Kind
    name: str = ""
    file: str = ""
    line: int = 0

    def matches(self, point: Point) -> bool:
        if self.kind == "line":
            there = point.line == self.line
            return there and (not self.file or point.file.endswith(self.file))
        return (point.kind, point.name) == (self.kind, self.name)

    def __str__(self) -> str:
        if self.kind != "line":
            return f"{self.kind} {self.name}"
        return f"line {self.file}:{self.line}" if self.file else f"line {self.line}"


@dataclass(frozen=True, slots=True)
class FieldTest:
    """A breakpoint at the first point after a field takes a value."""

    field: str
    value: int

    def __str__(self) -> str:
        return f"field {self.field} {self.value:#x}"


def parse_breakpoint(text: str) -> Breakpoint | FieldTest:
    """Read "table MyIngress.t", "line main.p4:12", "field ipv4.ttl 0x1" and the like.

    Raises:
        ValueError: it is no breakpoint; the message says what would be right.
    """
    kind, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if not rest:
        raise ValueError(f"'{text.strip()}' is not a place to stop: {_FORMS}")
    for named in _NAMED:
        if kind == named:
            return Breakpoint(named, rest)  # type: ignore[arg-type]
    if kind == "line":
        file, _, number = rest.rpartition(":")
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f"'{number}' is not the number of a line: line [FILE:]NUMBER")
        return Breakpoint("line", file=file, line=int(number))
    if kind == "field":
        field, _, value = rest.partition(" ")
        try:
            return FieldTest(field, int(value, 0))
        except ValueError:
            raise ValueError(f"'{value}' is not a number: field NAME VALUE") from None
    raise ValueError(f"'{kind}' is not a kind of place: {_FORMS}")
