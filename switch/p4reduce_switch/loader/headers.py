# SPDX-License-Identifier: Apache-2.0
"""The headers of a program and what is made of them: metadata, fields, stacks and unions.

Other modules look up names here, and check that they are allowed in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from p4reduce_switch.loader.first_uses import FirstUses
from p4reduce_switch.loader.json_values import (
    Json,
    as_number,
    as_text,
    as_width,
    find,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import (
    STACKS,
    HeaderStack,
    UnionStack,
    hidden_metadata,
)
from p4reduce_switch.program.ir import NOWHERE, FieldRef, SourceLocation
from p4reduce_switch.program.limits import MAX_HEADER_BITS, MAX_STACK, MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError


class Headers:
    """Headers, metadata, fields, stacks and unions by their names."""

    def __init__(self, root: Json, mentions: FirstUses) -> None:
        self._mentions = mentions
        self.by_name: dict[str, ir.HeaderInstance] = {}
        """Headers and metadata; hidden metadata is added as it is needed."""
        self._fields: dict[tuple[str, str], FieldRef] = {}
        self._empty: set[tuple[str, str]] = set()
        """Fields of no bits (`bit<0>`), which are zero and cannot be assigned to."""
        self._stacks: dict[str, HeaderStack] = {}
        self._union_stacks: dict[str, UnionStack] = {}
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
        for hidden in (ir.VARBITS, ir.METADATA_VARBITS):
            varbits = [h.varbit for h in self.by_name.values() if h.varbit is not None]
            lengths = tuple(v.length for v in varbits if v.length.header == hidden)
            if lengths:
                self.by_name[hidden] = ir.HeaderInstance(hidden, lengths, is_metadata=True)

    def _read_header(self, name: str, item: Json, type_: Json) -> ir.HeaderInstance:
        fields: list[FieldRef] = []
        varbit: ir.Varbit | None = None
        fixed = sum(
            as_width(width, f"field {name}.{field_name}")
            for field_name, width, *_ in type_["fields"]
            if width not in ("*", 0)
        )
        for field_name, width, *signed in type_["fields"]:
            as_text(field_name, f"the name of a field of header {name}")
            if width == 0:
                self._empty.add((name, field_name))
                continue
            if width != "*":
                fields.append(FieldRef(name, field_name, width, bool(signed and signed[0])))
                continue
            if varbit is not None:
                source = source_of(type_, source_of(item, self._mentions.of(name)))
                raise refusal(f"more than one varbit field in '{name}'", source)
            most = as_number(type_["max_length"], f"the length of {name}", 0, MAX_WIDTH)
            field = FieldRef(name, field_name, as_width(8 * most - fixed, f"{name}.{field_name}"))
            hidden = ir.METADATA_VARBITS if item["metadata"] else ir.VARBITS
            length = FieldRef(hidden, str(field), field.width.bit_length())
            varbit = ir.Varbit(field, length)
            fields.append(field)
        return ir.HeaderInstance(name, tuple(fields), bool(item["metadata"]), varbit)

    def _read_groups(self, root: Json) -> None:
        """Stacks and unions: both are several headers under one name."""
        numbers = {item["id"]: item["name"] for item in root["headers"]}
        for item in root.get("header_stacks", ()):
            name, elements = self._read_group("stack", item, numbers)
            self._check_elements(elements)
            self._stacks[name] = HeaderStack(name, elements)
        for item in root.get("header_unions", ()):
            name, members = self._read_group("union", item, numbers)
            self._unions[name] = members
            for member in members:
                self._siblings[member] = tuple(other for other in members if other != member)
        self._read_union_stacks(root)
        if self._stacks or self._union_stacks:
            self.by_name[STACKS] = hidden_metadata(
                self._stacks.values(), self._union_stacks.values()
            )

    def _read_group(
        self, what: str, item: Json, numbers: Mapping[Any, str]
    ) -> tuple[str, tuple[str, ...]]:
        name = as_text(item["name"], f"the name of a header {what}")
        as_number(len(item["header_ids"]), f"the size of {what} {name}", 1, MAX_STACK)
        return name, tuple(self.header(numbers[number], NOWHERE) for number in item["header_ids"])

    def _read_union_stacks(self, root: Json) -> None:
        unions = {item["id"]: item["name"] for item in root.get("header_unions", ())}
        types = {item["name"]: item["headers"] for item in root.get("header_union_types", ())}
        for item in root.get("header_union_stacks", ()):
            name = as_text(item["name"], "the name of a stack of header unions")
            ids = item["header_union_ids"]
            as_number(len(ids), f"the size of stack {name}", 1, MAX_STACK)
            elements = tuple(self.union(unions[number], NOWHERE) for number in ids)
            members = find(types, item["union_type"], "union type", NOWHERE)
            names = tuple(as_text(member, "the name of a header") for member, _ in members)
            if any(len(element) != len(names) for element in elements):
                raise LoadError(f"the elements of stack '{name}' are of different unions")
            stack = self._union_stacks[name] = UnionStack(name, names, elements)
            for member in names:
                self._check_elements(stack.column(member).elements)

    def _check_elements(self, elements: tuple[str, ...]) -> None:
        for element in elements[1:]:
            self.check_alike(elements[0], element, NOWHERE)

    # -- Asking ------------------------------------------------------------------------------------

    def header(self, name: str, source: SourceLocation) -> str:
        header = find(self.by_name, name, "header", source)
        if header.is_metadata:
            raise LoadError(f"{source}: '{name}' is metadata, not a header")
        return header.name

    def field(self, header: str, name: str, source: SourceLocation) -> FieldRef:
        return find(self._fields, (header, name), "field", source)

    def is_empty(self, item: Any) -> bool:
        """Whether it is a field of no bits."""
        if not isinstance(item, dict) or item.get("type") != "field":
            return False
        header, name = item["value"]
        return isinstance(header, str) and (header, name) in self._empty

    def stack(self, name: str, source: SourceLocation) -> HeaderStack:
        return find(self._stacks, name, "header stack", source)

    def union(self, name: str, source: SourceLocation) -> tuple[str, ...]:
        return find(self._unions, name, "header union", source)

    def is_union(self, name: str) -> bool:
        return name in self._unions

    def is_union_stack(self, name: Any) -> bool:
        return isinstance(name, str) and name in self._union_stacks

    def union_stack(self, name: str, source: SourceLocation) -> UnionStack:
        return find(self._union_stacks, name, "stack of header unions", source)

    def any_stack(self, name: str, source: SourceLocation) -> HeaderStack | UnionStack:
        """Return a stack, of headers or of unions."""
        if name in self._union_stacks:
            return self._union_stacks[name]
        return self.stack(name, source)

    def siblings(self, header: str) -> tuple[str, ...]:
        """Return the other headers of a header's union, if it is in one."""
        return self._siblings.get(header, ())

    def varbit(self, field: FieldRef) -> ir.Varbit | None:
        """Return the field with a field's length, if that is variable."""
        varbit = self.by_name[field.header].varbit
        return varbit if varbit is not None and varbit.field == field else None

    def check_alike(self, one: str, other: str, source: SourceLocation) -> None:
        """Raise an error unless a header can be copied to another."""
        a, b = (
            [(f.width, f.signed, self.varbit(f) is None) for f in self.by_name[name].fields]
            for name in (one, other)
        )
        if a != b:
            raise LoadError(f"{source}: headers '{one}' and '{other}' have different fields")

    def check_fixed(self, what: str, field: FieldRef, source: SourceLocation) -> None:
        """Refuse a varbit field that BMv2 would treat as one of fixed length, or not at all."""
        if self.varbit(field) is not None:
            raise refusal(f"{what} of a varbit field", source)

    def intrinsic(self, aliases: Iterable[tuple[str, tuple[str, str]]]) -> dict[str, FieldRef]:
        """Return the target's own fields by simple_switch's name. p4c writes some of them as
        aliases."""
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
