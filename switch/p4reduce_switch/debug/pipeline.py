# SPDX-License-Identifier: Apache-2.0
"""A loaded P4 program that calls the debugger at each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from p4reduce_switch.debug.breakpoints import Point
from p4reduce_switch.debug.debugger import Debugger, Values
from p4reduce_switch.debug.lookup import full_name
from p4reduce_switch.interpreter.packet import PacketState
from p4reduce_switch.pipeline import Pipeline, Process
from p4reduce_switch.program.ir import HeaderInstance, Program, SourceLocation


class DebugPipeline(Pipeline):
    """A P4 program that calls the debugger at each point; otherwise like `Pipeline`."""

    def __init__(self, config: bytes | str, debugger: Debugger, **options: Any) -> None:
        self._debugger = debugger
        self._places: dict[str, frozenset[str]] = {}
        self._lines: dict[str, frozenset[int]] = {}
        self._headers: Mapping[str, HeaderInstance] = {}
        super().__init__(config, **options)
        debugger.attach(self)

    @property
    def places(self) -> Mapping[str, frozenset[str]]:
        return self._places

    @property
    def lines(self) -> Mapping[str, frozenset[int]]:
        return self._lines

    def values(self, packet: PacketState) -> Values:
        """Return the values of valid headers and of metadata, and which headers are valid."""
        found: dict[str, int | bool] = {}
        for name, header in self._headers.items():
            if not header.is_metadata:
                found[name] = name in packet.valid
            if name in packet.valid:
                found |= {(key := str(field)): packet[key] for field in header.fields}
        return found

    def register(self, name: str, first: int, count: int) -> list[int]:
        name = full_name("register", name, self.registers)
        cells = self.registers[name].cells
        _check_cell("register", name, first, len(cells))
        return list(cells[first : first + count])

    def counter(self, name: str, first: int, count: int) -> list[tuple[int, int]]:
        name = full_name("counter", name, self.counters)
        counter = self.counters[name]
        if counter.is_direct:
            raise LookupError(
                f"counter '{name}' has no cells: its counts are in the entries of {counter.table}"
            )
        _check_cell("counter", name, first, counter.size)
        return [counter.read(cell) for cell in range(first, min(first + count, counter.size))]

    def _make_process(self, config: bytes | str, program: Program) -> Process:
        self._headers = program.headers
        fields = (field for header in program.headers.values() for field in header.fields)
        self._places = {
            "table": frozenset(self.tables),
            "action": frozenset(action.name for action in program.actions.values()),
            "state": frozenset(program.parser.states),
            "control": frozenset(("parser", "ingress", "egress")),
            "field": frozenset(map(str, fields)),
        }
        lines: dict[str, set[int]] = {}
        for source in _sources(program):
            if source.line:
                lines.setdefault(source.filename, set()).add(source.line)
        self._lines = {file: frozenset(numbers) for file, numbers in lines.items()}
        return self._interpret(program, self._visit)

    def _visit(self, kind: str, name: str, source: SourceLocation, packet: PacketState) -> None:
        if self._debugger.watching and (kind != "line" or source.line):
            point = Point(kind, name, source.filename, source.line)  # type: ignore[arg-type]
            self._debugger.visit(self, point, packet)


def _sources(program: Program) -> Iterator[SourceLocation]:
    """The places of all points."""
    for action in program.actions.values():
        yield action.source
    for primitive in program.primitives():
        yield primitive.source
    for control in (program.ingress, program.egress):
        for node in control.nodes.values():
            yield node.source


def _check_cell(kind: str, name: str, cell: int, size: int) -> None:
    if not 0 <= cell < size:
        raise LookupError(f"{kind} '{name}' has the cells 0 to {size - 1}, no {cell}")
