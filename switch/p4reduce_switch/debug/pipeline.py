# SPDX-License-Identifier: Apache-2.0
"""A loaded P4 program that calls the debugger at each point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p4reduce_switch.codegen_python.context import Binding
from p4reduce_switch.codegen_python.generate import GeneratedPython, generate
from p4reduce_switch.debug.breakpoints import Point
from p4reduce_switch.debug.debugger import Debugger, Values
from p4reduce_switch.debug.lookup import full_name
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.ir import Program


class DebugPipeline(Pipeline):
    """A P4 program in Python that calls the debugger at each point. Otherwise like `Pipeline`, and
    slower.

    Every field has a variable, even if the program never reads it.
    """

    def __init__(self, config: bytes | str, debugger: Debugger, **options: Any) -> None:
        self._debugger = debugger
        self._variables: dict[str, str] = {}
        self._of_header: dict[str, str] = {}
        self._places: dict[str, frozenset[str]] = {}
        self._lines: dict[str, frozenset[int]] = {}
        super().__init__(config, **options)
        debugger.attach(self)

    @property
    def places(self) -> Mapping[str, frozenset[str]]:
        return self._places

    @property
    def lines(self) -> Mapping[str, frozenset[int]]:
        return self._lines

    def values(self, variables: Mapping[str, Any]) -> Values:
        """Return the values of valid headers and of metadata."""
        found: dict[str, int | bool] = {}
        for variable, name in self._variables.items():
            if variable not in variables:
                continue
            header = self._of_header.get(variable)
            if header is None or variables.get(header):
                found[name] = variables[variable]
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

    def _generate(self, program: Program) -> GeneratedPython:
        generated = generate(
            program,
            self.drop_port,
            with_queues=not self.queue_settings.is_default,
            with_points=True,
        )
        valid = {header: variable for variable, header in generated.valids.items()}
        self._variables = {variable: str(field) for variable, field in generated.fields.items()}
        self._variables |= generated.valids
        self._of_header = {
            variable: valid[field.header]
            for variable, field in generated.fields.items()
            if field.header in valid
        }
        self._places = {
            "table": frozenset(self.tables),
            "action": frozenset(action.name for action in program.actions.values()),
            "state": frozenset(program.parser.states),
            "control": frozenset(("parser", "ingress", "egress")),
            "field": frozenset(map(str, generated.fields.values())),
        }
        lines: dict[str, set[int]] = {}
        for file, line in generated.lines:
            lines.setdefault(file, set()).add(line)
        self._lines = {file: frozenset(numbers) for file, numbers in lines.items()}
        return generated

    def _bound(self, binding: Binding) -> object:
        if binding.kind == "visit":
            return self._visit
        if binding.kind == "watching":
            return self._debugger.watching
        return super()._bound(binding)

    def _visit(self, kind: Any, name: str, source: str, variables: Mapping[str, Any]) -> None:
        file, _, line = source.rpartition(":")
        self._debugger.visit(self, Point(kind, name, file, int(line)), variables)


def _check_cell(kind: str, name: str, cell: int, size: int) -> None:
    if not 0 <= cell < size:
        raise LookupError(f"{kind} '{name}' has the cells 0 to {size - 1}, no {cell}")
