# SPDX-License-Identifier: Apache-2.0
"""How a header is taken out of a frame and put together again.

One `struct` call unpacks all units of a header that somebody reads, and skips the others. A unit
that nobody reads or writes, in a header that is put together again, stays a piece of bytes (a
chunk).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from p4reduce_switch.codegen_python.text import PyNames
from p4reduce_switch.program.ir import FieldRef, HeaderInstance

_NATIVE = {1: "B", 2: "H", 4: "I", 8: "Q"}
_Kind = Literal["int", "chunk", "skip"]


@dataclass(frozen=True, slots=True)
class _HeaderUnit:
    """A unit of the header, or several of them that are not integers."""

    kind: _Kind
    fields: tuple[FieldRef, ...]
    offset: int
    size: int

    @property
    def code(self) -> str:
        """Its code in a format of `struct`."""
        if self.kind == "int" and self.size in _NATIVE:
            return _NATIVE[self.size]
        return f"{self.size}{'x' if self.kind == 'skip' else 's'}"


class HeaderLayout:
    """The layout of one header.

    Args:
        names: of the local variables.
        header: whose layout it is.
        needed: whether a field must be an integer variable because it is read or written.
        rebuilt: whether the header is packed again from its parts.
    """

    def __init__(
        self,
        names: PyNames,
        header: HeaderInstance,
        needed: Callable[[FieldRef], bool],
        rebuilt: bool,
    ) -> None:
        self._names = names
        self._parts = _parts(header, needed, rebuilt)
        self.ints = tuple(f for part in self._parts if part.kind == "int" for f in part.fields)
        """The fields that have an integer variable."""
        chunks = [part for part in self._parts if part.kind == "chunk"]
        self._chunks = {part: names.chunk(header, index) for index, part in enumerate(chunks)}
        self.chunks = tuple(self._chunks.values())
        """The variables that hold bytes."""
        self._struct = names.bound("layout", header.name)

    @property
    def definitions(self) -> list[str]:
        """The module-level lines that `unpack` and `pack` need."""
        codes = "".join(part.code for part in self._parts)
        return [f'{self._struct} = Struct(">{codes}")']

    def unpack(self, frame: str, offset: str) -> list[str]:
        """Return the statements that set the variables from the frame. `offset` is a literal or a
        name."""
        targets: list[str] = []
        after: list[str] = []
        for part in self._parts:
            if part.kind == "chunk":
                targets.append(self._chunks[part])
            elif part.kind == "int":
                target, lines = self._unpack_int(part)
                targets.append(target)
                after += lines
        if not targets:
            return []
        return [f"{', '.join(targets)}, = {self._struct}.unpack_from({frame}, {offset})", *after]

    def _unpack_int(self, part: _HeaderUnit) -> tuple[str, list[str]]:
        """What a unit is unpacked to, and the statements that make its fields of that."""
        first = part.fields[0]
        plain = len(part.fields) == 1 and not first.signed
        variable = self._names.field(first) if plain else f"_unit_{part.offset}"
        lines = []
        if part.size not in _NATIVE:
            lines.append(f'{variable} = from_bytes({variable}, "big")')
        return variable, lines if plain else lines + self._split(part, variable)

    def _split(self, part: _HeaderUnit, variable: str) -> list[str]:
        lines = []
        below = 8 * part.size
        for field in part.fields:
            below -= field.width
            value = f"{variable} >> {below}" if below else variable
            if below + field.width < 8 * part.size:
                value += f" & {self._names.constant((1 << field.width) - 1)}"
            if field.signed:
                half = self._names.constant(1 << (field.width - 1))
                value = f"({value} ^ {half}) - {half}"
            lines.append(f"{self._names.field(field)} = {value}")
        return lines

    def pack(self) -> str:
        """Return an expression for the header's bytes."""
        return f"{self._struct}.pack({', '.join(map(self._packed, self._parts))})"

    def _packed(self, part: _HeaderUnit) -> str:
        if part.kind == "chunk":
            return self._chunks[part]
        values = []
        below = 8 * part.size
        for field in part.fields:
            below -= field.width
            text = unsigned(self._names, field)
            values.append(f"{text} << {below}" if below else text)
        value = " | ".join(values)
        return value if part.size in _NATIVE else f'({value}).to_bytes({part.size}, "big")'


def _parts(
    header: HeaderInstance, needed: Callable[[FieldRef], bool], rebuilt: bool
) -> list[_HeaderUnit]:
    parts: list[_HeaderUnit] = []
    otherwise: _Kind = "chunk" if rebuilt else "skip"
    for is_int, run in groupby(header.units, lambda unit: any(map(needed, unit.fields))):
        units = list(run)
        if is_int:
            parts += [_HeaderUnit("int", unit.fields, unit.offset, unit.size) for unit in units]
        else:
            fields = tuple(field for unit in units for field in unit.fields)
            size = sum(unit.size for unit in units)
            parts.append(_HeaderUnit(otherwise, fields, units[0].offset, size))
    return parts


def unsigned(names: PyNames, field: FieldRef) -> str:
    """Return the bits of a field as a number."""
    text = names.field(field)
    if not field.signed:
        return text
    return f"({text} & {names.constant((1 << field.width) - 1)})"
