# SPDX-License-Identifier: Apache-2.0
"""Decides where a debugged program stops, and holds the packet until it may continue.

The data plane's thread calls `visit` at each point of a program. The debugger's client calls the
other methods from another thread. While a packet is held, the switch does nothing else: frames and
P4Runtime requests wait. So packets are held only while a client watches (`watch`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from p4reduce_switch.debug.breakpoints import Breakpoint, FieldTest, Point
from p4reduce_switch.debug.lookup import check_line, full_name
from p4reduce_switch.interpreter.packet import PacketState

_START = Point("control", "parser", "", 0)

Values = Mapping[str, int | bool]
"""Of a packet: fields ("ipv4.ttl"), and which headers are valid ("ipv4")."""


class DebuggedProgram(Protocol):
    """What a debugger needs from a program."""

    @property
    def places(self) -> Mapping[str, frozenset[str]]:
        """The names of tables, actions, states, controls and fields, by kind."""

    @property
    def lines(self) -> Mapping[str, frozenset[int]]:
        """The lines at which the program can stop, by file."""

    def values(self, packet: PacketState) -> Values:
        """Return a packet's values."""

    def register(self, name: str, first: int, count: int) -> list[int]:
        """Return cells of a register. Raises LookupError, ValueError."""

    def counter(self, name: str, first: int, count: int) -> list[tuple[int, int]]:
        """Return packets and bytes of cells of a counter. Raises LookupError, ValueError."""


class NotStoppedError(Exception):
    """No packet is held, so nothing can be shown or continued."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A held packet: its place, the reason (a breakpoint, or "step"), and its values."""

    point: Point
    why: str
    values: Values


class Debugger:
    """The breakpoints and the held packet of one switch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._breakpoints: dict[int, Breakpoint | FieldTest] = {}
        self._numbers = 0
        self.watching: list[str] = []
        """Empty while nobody watches: the packet path looks at it before it calls `visit`."""
        self._steps = False
        self._holds: dict[int, bool] = {}  # of a field's test, what it was at the last point
        self._stop: Stop | None = None
        self._program: DebuggedProgram | None = None
        self._on_stop: Callable[[Stop], None] = _nobody

    # -- In the data plane's thread ------------------------------------------------------------

    def visit(self, program: DebuggedProgram, point: Point, packet: PacketState) -> None:
        """A packet is at a point. Returns when it may continue."""
        with self._changed:
            if point == _START:
                self._holds.clear()  # another packet
            # To collect all values at each point would be most of the time.
            tests = any(isinstance(place, FieldTest) for place in self._breakpoints.values())
            why = self._why(point, program.values(packet) if tests else {})
            if why is None or not self.watching:
                return
            self._steps = False
            self._stop = stop = Stop(point, why, program.values(packet))
            self._on_stop(stop)
            self._changed.wait_for(lambda: self._stop is not stop)

    def _why(self, point: Point, values: Values) -> str | None:
        reason = "step" if self._steps else None
        for number, place in self._breakpoints.items():
            if isinstance(place, Breakpoint):
                if place.matches(point):
                    reason = str(place)
                continue
            holds = values.get(place.field) == place.value
            if holds and not self._holds.get(number):
                reason = str(place)
            self._holds[number] = holds
        return reason

    # -- For the client ------------------------------------------------------------------------

    def attach(self, program: DebuggedProgram) -> None:
        """A program was loaded: look up places in this one from now on."""
        self._program = program

    def watch(self, on_stop: Callable[[Stop], None]) -> None:
        """Hold packets from now on. `watch` is called for each, in the data plane's thread."""
        with self._changed:
            self._on_stop = on_stop
            self.watching[:] = ["somebody"]

    def unwatch(self) -> None:
        """Release the held packet, hold no more, and delete the breakpoints."""
        with self._changed:
            self.watching.clear()
            self._steps = False
            self._on_stop = _nobody
            self._breakpoints.clear()
            self._stop = None
            self._changed.notify_all()

    def add(self, place: Breakpoint | FieldTest) -> int:
        """Add a breakpoint, and return its number. Names may be short, see `full_name`. Raises
        ValueError if the program has no such place."""
        place = self._found(place)
        with self._changed:
            self._numbers += 1
            self._breakpoints[self._numbers] = place
            return self._numbers

    def _found(self, place: Breakpoint | FieldTest) -> Breakpoint | FieldTest:
        """The same place with its full name."""
        if self._program is None:
            return place
        places = self._program.places
        if isinstance(place, FieldTest):
            return replace(place, field=full_name("field", place.field, places["field"]))
        if place.kind == "line":
            check_line(place.file, place.line, self._program.lines, places["table"])
            return place
        return replace(place, name=full_name(place.kind, place.name, places[place.kind]))

    def delete(self, number: int) -> None:
        """Delete a breakpoint. Raises ValueError if none has that number."""
        with self._changed:
            if number not in self._breakpoints:
                raise ValueError(f"there is no breakpoint {number}")
            del self._breakpoints[number]
            self._holds.pop(number, None)

    @property
    def breakpoints(self) -> dict[int, str]:
        with self._changed:
            return {number: str(place) for number, place in self._breakpoints.items()}

    def pause(self) -> None:
        """Stop at the next point that any packet reaches."""
        with self._changed:
            self._steps = True

    @property
    def stop(self) -> Stop:
        """Return the held packet. Raises NotStoppedError."""
        with self._changed:
            return self._held()

    def go_on(self, *, steps: bool = False) -> None:
        """Let the packet continue to the next breakpoint, or by one point. Raises
        NotStoppedError."""
        with self._changed:
            self._held()
            self._steps = steps
            self._stop = None
            self._changed.notify_all()

    def register(self, name: str, first: int, count: int) -> list[int]:
        """Return cells of a register while a packet is held. Raises NotStoppedError,
        LookupError, ValueError."""
        with self._changed:
            self._held()
            assert self._program is not None
            return self._program.register(name, first, count)

    def counter(self, name: str, first: int, count: int) -> list[tuple[int, int]]:
        """Return packets and bytes of a counter's cells while a packet is held. Raises as
        `register`."""
        with self._changed:
            self._held()
            assert self._program is not None
            return self._program.counter(name, first, count)

    def _held(self) -> Stop:
        if self._stop is None:
            raise NotStoppedError("no packet is held: set a breakpoint, or pause")
        return self._stop


def _nobody(stop: Stop) -> None:
    """While no client watches."""
