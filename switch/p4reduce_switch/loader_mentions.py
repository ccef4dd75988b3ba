# SPDX-License-Identifier: Apache-2.0
"""Where a program uses what p4c gives no source line for.

Headers, hash calculations and field lists come without one. A refusal then has the line of
the first primitive, conditional, table or checksum that uses them, the parser's state, or the
deparser's line.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Looks for the first use; only asked when there is something to refuse."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def of(self, name: str) -> Source:
        """Where a header, a stack, a union or a calculation is used; NOWHERE if it is not.

        Members of stacks and unions are called like these, with an index or a name added.
        """
        for source, part in self._parts():
            found = _mention(part, name, source)
            if found is not None:
                return found
        return NOWHERE

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


def _mention(value: Any, name: str, source: Source) -> Source | None:
    """Where `value` has `name` in it, by the innermost source line around that."""
    if isinstance(value, str):
        return source if value == name or value.startswith((f"{name}[", f"{name}.")) else None
    if isinstance(value, dict):
        source = source_of(value, source)
        value = [part for key, part in value.items() if key not in ("name", "source_info")]
    if isinstance(value, list):
        for part in value:
            found = _mention(part, name, source)
            if found is not None:
                return found
    return None
