# SPDX-License-Identifier: Apache-2.0
"""A switch in this process that tells which P4 lines a frame ran through.

Before each statement of an action p4c's JSON gets a `log_msg` with the statement's place. So it
works for any program, and the program itself does what it always does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from p4reduce_controller.fabric.schema import Entity, Group, Row
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Entry, Table

_MARK = "p4reduce-lesson"
_LOGGER = logging.getLogger("p4reduce_switch.state.messages")


class Line(NamedTuple):
    """A statement of a P4 program: where it is, and its text as p4c has it."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


class Ran(NamedTuple):
    """What a frame led to: what came out, by port, and the lines in the order they ran."""

    out: list[tuple[int, bytes]]
    lines: list[Line]


class TracedSwitch:
    """The program, with entries, one frame at a time.

    Args:
        program: p4c's JSON.
        cpu_port: the controller's.
        entities: what the controller writes.
    """

    def __init__(self, program: bytes, cpu_port: int, entities: Iterable[Entity]) -> None:
        parsed = json.loads(program)
        self._lines = _mark(parsed)
        self.pipeline = Pipeline(json.dumps(parsed), cpu_port=cpu_port)
        for entity in entities:
            self._insert(entity)

    def process(self, port: int, frame: bytes) -> Ran:
        """Run a frame."""
        with _Listening() as said:
            out = self.pipeline.process(port, frame)
        return Ran(out, [self._lines[number] for number in said.numbers if number in self._lines])

    def _insert(self, entity: Entity) -> None:
        if isinstance(entity, Group):
            replicas = [Replica(port, instance) for port, instance in entity.replicas]
            self.pipeline.multicast.insert(entity.group, replicas)
        elif isinstance(entity, Row):
            table = self.pipeline.tables[entity.table]
            args = tuple(entity.params[name] for name, _ in table.actions[entity.action].params)
            table.insert(Entry(_match(table, entity), 0, entity.action, args))


class _Listening(logging.Handler):
    """Takes the marks that the program logs while the block runs, and keeps them from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        mark, _, number = record.getMessage().partition(" ")
        if mark == _MARK:
            self.numbers.append(int(number))

    def __enter__(self) -> _Listening:
        self._before = (_LOGGER.level, _LOGGER.propagate)
        _LOGGER.setLevel(logging.INFO)
        _LOGGER.propagate = False
        _LOGGER.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LOGGER.removeHandler(self)
        level, _LOGGER.propagate = self._before
        _LOGGER.setLevel(level)


def _mark(program: dict[str, Any]) -> dict[int, Line]:
    """Put a mark before each statement; returns the lines by the number in the mark."""
    lines: dict[int, Line] = {}
    for action in program["actions"]:
        marked = []
        for primitive in action["primitives"]:
            number = len(lines) + 1
            source = primitive.get("source_info", {})
            lines[number] = Line(
                str(source.get("filename", "")).removeprefix("include/"),
                int(source.get("line", 0)),
                str(source.get("source_fragment", "")),
            )
            marked.append(
                {
                    "op": "log_msg",
                    "parameters": [
                        {"type": "string", "value": f"{_MARK} {number}"},
                        {"type": "parameters_vector", "value": []},
                    ],
                }
            )
            marked.append(primitive)
            if primitive["op"] in ("_jump", "_jump_if_zero"):
                # A jump names a statement by its number; each has become two.
                target = primitive["parameters"][-1]
                target["value"] = hex(2 * int(target["value"], 16))
        action["primitives"] = marked
    return {number: line for number, line in lines.items() if line.number}


def _match(table: Table, row: Row) -> tuple[int, ...]:
    return tuple(row.match[key.name] for key in table.key)
