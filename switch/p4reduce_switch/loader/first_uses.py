# SPDX-License-Identifier: Apache-2.0
"""Finds a source line for constructs that p4c writes without one.

Headers, hash calculations and field lists have no line. An error then names the line of the first
primitive, conditional, table or checksum that uses them, the parser state, or the deparser's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from p4reduce_switch.loader.json_values import Json, constant_of, located, source_of
from p4reduce_switch.program.ir import NOWHERE, PRIMITIVES, SourceLocation


class FirstUses:
    """Finds first uses."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def of(self, name: str) -> SourceLocation:
        """Return where a header, stack, union or calculation is used; NOWHERE if it is not."""
        return self._first.get(name, NOWHERE)

    def of_field_list(self, number: int) -> SourceLocation:
        """Return the primitive that uses a field list."""
        return self._field_lists.get(number, NOWHERE)

    @cached_property
    def _field_lists(self) -> dict[int | None, SourceLocation]:
        """Each field list's number -> the first primitive that takes it."""
        first: dict[int | None, SourceLocation] = {}
        for action in self._root["actions"]:
            for primitive in action["primitives"]:
                source = source_of(primitive)
                with located(source):
                    lists = primitive["parameters"][-1:]
                    if PRIMITIVES.get(primitive["op"], ())[-1:] == ("field_list",):
                        for number in map(constant_of, lists):
                            first.setdefault(number, source)
        return first

    def _parts(self) -> Iterator[tuple[SourceLocation, Any]]:
        """All that uses things, and where it is as far as is known from without."""
        for parser in self._root["parsers"]:
            for state in parser["parse_states"]:
                yield source_of(state, SourceLocation(f"parser state {state['name']}")), state
        for kind in ("actions", "pipelines", "checksums", "deparsers"):
            for item in self._root[kind]:
                yield source_of(item), item

    @cached_property
    def _first(self) -> dict[str, SourceLocation]:
        """Each name -> where it is first used, by the innermost source line around that."""
        first: dict[str, SourceLocation] = {}
        seen: set[str] = set()  # a program says the same again and again
        for outer, part in self._parts():
            pending = [(outer, part)]
            while pending:
                source, value = pending.pop()
                if isinstance(value, str):
                    if value in seen:
                        continue
                    seen.add(value)
                    # Members of stacks and unions are called like these, with an index or a name.
                    for name in (value, value.split("[", 1)[0], value.rsplit(".", 1)[0]):
                        first.setdefault(name, source)
                elif isinstance(value, dict):
                    source = source_of(value, source)
                    inner = [v for k, v in value.items() if k not in ("name", "source_info")]
                    pending += [(source, v) for v in reversed(inner)]
                elif isinstance(value, list):
                    pending += [(source, v) for v in reversed(value)]
        return first
