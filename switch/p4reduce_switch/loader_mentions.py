# SPDX-License-Identifier: Apache-2.0
"""Where a program uses what p4c gives no source line for.

Headers, hash calculations and field lists come without one. A refusal then has the line of
the first primitive, conditional, table or checksum that uses them, the parser's state, or the
deparser's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from .loader_json import Json, constant_of, source_of
from .program import NOWHERE, Source

__all__ = ["Mentions"]

_WITH_FIELD_LIST = (
    "clone_ingress_pkt_to_egress",
    "clone_egress_pkt_to_egress",
    "resubmit",
    "recirculate",
)


class Mentions:
    """Finds first uses."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def of(self, name: str) -> Source:
        """Where a header, a stack, a union or a calculation is used; NOWHERE if it is not."""
        return self._first.get(name, NOWHERE)

    def of_field_list(self, number: int) -> Source:
        """The primitive that takes a field list."""
        for action in self._root["actions"]:
            for primitive in action["primitives"]:
                lists = primitive["parameters"][-1:]
                if primitive["op"] in _WITH_FIELD_LIST and number in map(constant_of, lists):
                    return source_of(primitive)
        return NOWHERE

    def _parts(self) -> Iterator[tuple[Source, Any]]:
        """All that uses things, and where it is as far as is known from without."""
        for parser in self._root["parsers"]:
            for state in parser["parse_states"]:
                yield source_of(state, Source(f"parser state {state['name']}")), state
        for kind in ("actions", "pipelines", "checksums", "deparsers"):
            for item in self._root[kind]:
                yield source_of(item), item

    @cached_property
    def _first(self) -> dict[str, Source]:
        """Each name -> where it is first used, by the innermost source line around that."""
        first: dict[str, Source] = {}
        for outer, part in self._parts():
            pending = [(outer, part)]
            while pending:
                source, value = pending.pop()
                if isinstance(value, str):
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
