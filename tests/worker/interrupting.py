# SPDX-License-Identifier: Apache-2.0
"""Exceptions as a signal handler raises them: at any bytecode of whatever a function calls."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Alarm(Exception):  # noqa: N818
    """What the handler raises."""


class Place(NamedTuple):
    """An instruction, about to be run."""

    code: CodeType
    offset: int

    def __str__(self) -> str:
        name = getattr(self.code, "co_qualname", self.code.co_name)
        line = 0
        operation = ""
        for one in dis.get_instructions(self.code):
            # Since Python 3.13, starts_line is a bool.
            line = getattr(one, "line_number", one.starts_line) or line
            if one.offset == self.offset:
                operation = one.opname
                break
        return f"{self.code.co_filename}:{line} {name}, {operation} at {self.offset}"


Trace = Callable[[FrameType, str, Any], Any]


def places(work: Callable[[], object]) -> list[Place]:
    """All instructions that a function runs in this thread, in the order of their first time."""
    seen: dict[Place, None] = {}
    _traced(work, lambda place: seen.setdefault(place))
    return list(seen)


def interrupted(work: Callable[[], object], at: Place) -> bool:
    """Run a function, and raise Alarm at a place; return whether that is what ended it."""

    def look(place: Place) -> None:
        if place == at:
            raise Alarm

    try:
        _traced(work, look)
    except Alarm:
        return True
    return False


def _traced(work: Callable[[], object], look: Callable[[Place], object]) -> None:
    def trace(frame: FrameType, event: str, argument: Any) -> Trace:
        frame.f_trace_opcodes = True
        if event == "opcode":
            look(Place(frame.f_code, frame.f_lasti))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
