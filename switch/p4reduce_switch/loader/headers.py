# SPDX-License-Identifier: Apache-2.0
"""The headers of a program, and what consists of them: metadata, fields, stacks and unions.

Whatever else is loaded asks here what a name stands for, and whether it may stand there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from p4reduce_switch.loader.json_values import (
    Json,
    as_number,
    as_text,
    as_width,
    find,
    refusal,
    source_of,
)
from p4reduce_switch.loader.mentions import Mentions
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import STACKS, HeaderStack, hidden_metadata
from p4reduce_switch.program.ir import NOWHERE, FieldRef, Source
from p4reduce_switch.program.limits import MAX_HEADER_BITS, MAX_STACK, MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError

__all__ = ["Headers"]


class Headers:
    """Headers, metadata, fields, stacks and unions by their names."""

    def __init__(self, root: Json, mentions: Mentions) -> None:
        self._mentions = mentions
        self.by_name: dict[str, ir.Header] = {}
        """Headers and metadata; hidden metadata is added as it is needed."""
        self._fields: dict[tuple[str, str], FieldRef] = {}
        self._stacks: dict[str, HeaderStack] = {}
        self._most: dict[str, int] = {}
        """Most bytes of each header with a varbit field."""
        self._siblings: dict[str, tuple[str, ...]] = {}
        """Header of a union -> the union's other headers, which become invalid when it is valid."""
        self._unions: dict[str, tuple[str, ...]] = {}
        self._read_headers(root)
        self._read_groups(root)

    # -- Reading -----------------------------------------------------------------------------------

    def _read_headers(self, root: Json) -> None:
        types = {item["name"]: item for item in root["header_types"]}
        for item in root["headers"]:
            name = as_text(item["name"], "the name of a header")
            type_ = find(types, item["header_type"], "header type", source_of(item))
            header = self._read_header(name, item, type_)
            if header.bits > MAX_HEADER_BITS:
                raise LoadError(
                    f"header '{name}' has {header.bits} bits; "
                    f"more than {MAX_HEADER_BITS} are not supported"
                )
            if not header.is_metadata and header.bits % 8:
                raise LoadError(f"header '{name}' has {header.bits} bits, not a multiple of 8")
            self.by_name[name] = header
            self._fields.update(((name, field.name), field) for field in header.fields)
        tails = tuple(h.tail for h in self.by_name.values() if h.tail is not None)
        if tails:
            self.by_name[ir.VARBITS] = ir.Header(ir.VARBITS, tails, is_metadata=True)

    def _read_header(self, name: str, item: Json, type_: Json) -> ir.Header:
        fields: list[FieldRef] = []
        tail: FieldRef | None = None
        for field_name, width, *signed in type_["fields"]:
            if tail is not None or (width == "*" and not fields):
                raise refusal(
                    f"varbit field in '{name}' that is not the last of several fields",
                    source_of(type_, source_of(item, self._mentions.of(name))),
                )
            if width == "*":
                tail = FieldRef(ir.VARBITS, f"{name}.{field_name}", 0)
                length = as_number(type_["max_length"], f"the length of {name}", 0, MAX_WIDTH)
                self._most[name] = length
                continue
            as_width(width, f"field {name}.{field_name}")
            as_text(field_name, f"the name of a field of header {name}")
            fields.append(FieldRef(name, field_name, width, bool(signed and signed[0])))
        return ir.Header(name, tuple(fields), bool(item["metadata"]), tail)

    def _read_groups(self, root: Json) -> None:
        """Stacks and unions: both are several headers under one name."""
        numbers = {item["id"]: item["name"] for item in root["headers"]}
        for item in root.get("header_stacks", ()):
            name, elements = self._read_group("stack", item, numbers)
            self._stacks[name] = HeaderStack(name, elements)
        for item in root.get("header_unions", ()):
            name, members = self._read_group("union", item, numbers)
            self._unions[name] = members
            for member in members:
                self._siblings[member] = tuple(other for other in members if other != member)
        if self._stacks:
            self.by_name[STACKS] = hidden_metadata(tuple(self._stacks.values()))

    def _read_group(
        self, what: str, item: Json, numbers: Mapping[Any, str]
    ) -> tuple[str, tuple[str, ...]]:
        name = as_text(item["name"], f"the name of a header {what}")
        as_number(len(item["header_ids"]), f"the size of {what} {name}", 1, MAX_STACK)
        headers = tuple(self.header(numbers[number], NOWHERE) for number in item["header_ids"])
        self.check_fixed(f"{what} '{name}'", headers, self._mentions.of(name))
        return name, headers

    # -- Asking ------------------------------------------------------------------------------------

    def header(self, name: str, source: Source) -> str:
        header = find(self.by_name, name, "header", source)
        if header.is_metadata:
            raise LoadError(f"{source}: '{name}' is metadata, not a header")
        return header.name

    def field(self, header: str, name: str, source: Source) -> FieldRef:
        if (tail := self.by_name[header].tail) is not None and tail.name == f"{header}.{name}":
            raise refusal(f"varbit field '{header}.{name}' in an expression or assignment", source)
        return find(self._fields, (header, name), "field", source)

    def stack(self, name: str, source: Source) -> HeaderStack:
        return find(self._stacks, name, "header stack", source)

    def union(self, name: str, source: Source) -> tuple[str, ...]:
        return find(self._unions, name, "header union", source)

    def siblings(self, header: str) -> tuple[str, ...]:
        """The other headers of the union that it is in, if any."""
        return self._siblings.get(header, ())

    def most_bytes(self, header: str, source: Source) -> int:
        """How many bytes a header with a varbit field has at most."""
        return find(self._most, header, "varbit", source)

    def check_fixed(self, what: str, headers: Iterable[str], source: Source) -> None:
        """Headers with varbit fields can be extracted, made valid or not, and go out; no more."""
        for header in headers:
            if self.by_name[header].tail is not None:
                raise refusal(f"{what} with varbit header '{header}'", source)

    def intrinsic(self, aliases: Iterable[tuple[str, tuple[str, str]]]) -> dict[str, FieldRef]:
        """The target's own fields by simple_switch's name; p4c writes some of them as aliases."""
        found = {
            field.name: field
            for (header, _), field in self._fields.items()
            if header == "standard_metadata"
        }
        for alias, (header, name) in aliases:
            found[alias.split(".", 1)[1]] = self.field(header, name, NOWHERE)
        for name in ("ingress_port", "packet_length", "instance_type", "egress_spec"):
            if name not in found:
                raise LoadError(f"there is no field standard_metadata.{name}, which v1model needs")
        return found
