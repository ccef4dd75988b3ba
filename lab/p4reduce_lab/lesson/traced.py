# SPDX-License-Identifier: Apache-2.0
"""A switch in this process, under the debugger that `p4reduce-switch --debug` serves.

It shows which P4 lines a frame ran through, and holds a frame at a breakpoint. So it works for any
program, and the program itself does what it always does.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from p4reduce_common.threads import new_thread
from p4reduce_controller.fabric.schema import Entity, MulticastGroup, TableRow
from p4reduce_switch.debug.breakpoints import Point
from p4reduce_switch.debug.debugger import DebuggedProgram, Debugger, Stop
from p4reduce_switch.debug.pipeline import DebugPipeline
from p4reduce_switch.interpreter.packet import PacketState
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Table, TableEntry

_WITHIN = 60.0  # seconds until a frame has passed or is held


class SourceLine(NamedTuple):
    """A statement of a P4 program: where it is, and its text as p4c has it."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


class FrameRun(NamedTuple):
    """The effects of a frame: what came out, by port, and the lines in the order they ran."""

    out: list[tuple[int, bytes]]
    lines: list[SourceLine]


class Paused(NamedTuple):
    """A frame that is held: where and why, and the lines that it ran through."""

    stop: Stop
    lines: list[SourceLine]


class TracedSwitch:
    """The program, with entries, one frame at a time.

    Args:
        program: p4c's JSON.
        cpu_port: the controller's.
        entities: what the controller writes.

    Attributes:
        debugger: its breakpoints hold frames.
    """

    def __init__(self, program: bytes, cpu_port: int, entities: Iterable[Entity]) -> None:
        self.debugger = _LineRecorder(_texts(json.loads(program)))
        self.pipeline = DebugPipeline(program, self.debugger, cpu_port=cpu_port)
        self._events: queue.SimpleQueue[Stop | list[tuple[int, bytes]] | Exception]
        self._events = queue.SimpleQueue()
        self.debugger.watch(self._events.put)
        for entity in entities:
            self._insert(entity)

    def process(self, port: int, frame: bytes) -> FrameRun | Paused:
        """Run a frame, to its end or to a breakpoint."""
        self.debugger.lines = []
        if not self.debugger.breakpoints:
            return FrameRun(self.pipeline.process(port, frame), self.debugger.lines)
        # A held frame would hold this thread as well.
        new_thread(self._run, "lesson", args=(port, frame)).start()
        return self._until_event()

    def go_on(self, *, steps: bool) -> FrameRun | Paused:
        """Continue the held frame by one point, or to the next breakpoint or its end.

        Raises NotStoppedError: none is held.
        """
        self.debugger.go_on(steps=steps)
        return self._until_event()

    def close(self) -> None:
        """Hold no frame any more."""
        self.debugger.unwatch()

    def _run(self, port: int, frame: bytes) -> None:
        try:
            self._events.put(self.pipeline.process(port, frame))
        except Exception as error:
            self._events.put(error)  # for the thread that waits

    def _until_event(self) -> FrameRun | Paused:
        event = self._events.get(timeout=_WITHIN)
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Stop):
            return Paused(event, list(self.debugger.lines))
        return FrameRun(event, self.debugger.lines)

    def _insert(self, entity: Entity) -> None:
        if isinstance(entity, MulticastGroup):
            replicas = [Replica(port, instance) for port, instance in entity.replicas]
            self.pipeline.multicast.insert(entity.group, replicas)
        elif isinstance(entity, TableRow):
            table = self.pipeline.tables[entity.table]
            args = tuple(entity.params[name] for name, _ in table.actions[entity.action].params)
            table.insert(TableEntry(_match(table, entity), 0, entity.action, args))


class _LineRecorder(Debugger):
    """Records the lines that a frame reaches, and holds it at breakpoints."""

    def __init__(self, texts: Mapping[tuple[str, int], str]) -> None:
        super().__init__()
        self.lines: list[SourceLine] = []
        self._texts = texts

    def visit(self, program: DebuggedProgram, point: Point, packet: PacketState) -> None:
        if point.kind == "line" and (text := self._texts.get((point.file, point.line))):
            self.lines.append(SourceLine(point.file.rpartition("/")[2], point.line, text))
        super().visit(program, point, packet)


def _texts(program: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """The text of each statement of an action, by file and line."""
    found = {}
    for action in program["actions"]:
        for primitive in action["primitives"]:
            source = primitive.get("source_info", {})
            place = str(source.get("filename", "")), int(source.get("line", 0))
            found[place] = str(source.get("source_fragment", ""))
    return found


def _match(table: Table, row: TableRow) -> tuple[int, ...]:
    return tuple(row.match[key.name] for key in table.key)
