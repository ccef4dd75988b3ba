# SPDX-License-Identifier: Apache-2.0
"""How a header is taken out of a frame and put together again.

A header is a sequence of units: the shortest runs of fields that fill whole bytes. One `struct`
call unpacks all units that somebody reads, and skips the others. A unit that nobody reads or
writes, in a header that is put together again, stays a piece of bytes (a chunk).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from p4reduce_switch.codegen_python.text import Names
from p4reduce_switch.program.ir import FieldRef, Header

__all__ = ["HeaderLayout", "add", "unsigned"]

_NATIVE = {1: "B", 2: "H", 4: "I", 8: "Q"}
# Sizes that two or three native integers give faster than int.from_bytes does.
_COMPOSED = {3: (1, 2), 5: (1, 4), 6: (2, 4), 7: (1, 2, 4)}

_Kind = Literal["int", "chunk", "skip"]


@dataclass(frozen=True, slots=True)
class _Unit:
    kind: _Kind
    fields: tuple[FieldRef, ...]
    offset: int
    size: int


class HeaderLayout:
    """The layout of one header.

    Args:
        names: names of the local variables.
        header: the header.
        needed: whether a field must be an integer variable (somebody reads or writes it).
        rebuilt: whether the header is put together again from its parts.
    """

    def __init__(
        self, names: Names, header: Header, needed: Callable[[FieldRef], bool], rebuilt: bool
    ) -> None:
        self._names = names
        self._header = header
        self._units = _units(header, needed, rebuilt)
        self.ints = tuple(f for unit in self._units if unit.kind == "int" for f in unit.fields)
        """The fields that have an integer variable."""
        self._chunks = {
            unit: names.chunk(header, index)
            for index, unit in enumerate(u for u in self._units if u.kind == "chunk")
        }
        self.chunks = tuple(self._chunks.values())
        """The variables that hold bytes."""

    @property
    def definitions(self) -> list[str]:
        """The module-level lines that `unpack` and `pack` rely on."""
        lines = []
        if len(self._parts()) > 1 or self._single_native():
            lines.append(f'{self._unpacker} = Struct(">{self._unpack_format()}").unpack_from')
        if len(self._units) != 1 or self._units[0].size in _NATIVE:
            lines.append(f'{self._packer} = Struct(">{self._pack_format()}").pack')
        return lines

    # -- Unpacking ---------------------------------------------------------------------------------

    def unpack(self, frame: str, offset: str) -> list[str]:
        """Statements that set the variables from the frame; `offset` is a literal or a name."""
        parts = self._parts()
        if not parts:
            return []
        targets: list[str] = []
        after: list[str] = []
        for unit in parts:
            unit_targets, unit_after = self._unpack_unit(unit)
            targets += unit_targets
            after += unit_after
        if len(parts) == 1 and not self._single_native():
            (unit,) = parts
            start, end = add(offset, unit.offset), add(offset, unit.offset + unit.size)
            return [f"{targets[0]} = {frame}[{start}:{end}]", *after]
        if targets == ["_unit_0"] or len(targets) == 1:
            return [f"({targets[0]},) = {self._unpacker}({frame}, {offset})", *after]
        return [f"{', '.join(targets)} = {self._unpacker}({frame}, {offset})", *after]

    def _parts(self) -> list[_Unit]:
        return [unit for unit in self._units if unit.kind != "skip"]

    def _single_native(self) -> bool:
        parts = self._parts()
        if len(parts) != 1 or parts[0].kind == "chunk":
            return False
        return parts[0].size in _NATIVE or parts[0].size in _COMPOSED

    def _unpack_unit(self, unit: _Unit) -> tuple[list[str], list[str]]:
        if unit.kind == "chunk":
            return [self._chunks[unit]], []
        first = unit.fields[0]
        plain = len(unit.fields) == 1 and not first.signed
        variable = self._names.field(first) if plain else f"_unit_{unit.offset}"
        if unit.size in _NATIVE:
            return [variable], [] if plain else self._split(unit, variable)
        if unit.size in _COMPOSED:
            targets = [f"_part_{unit.offset + at}" for at in _offsets(_COMPOSED[unit.size])]
            shifts = _shifts(_COMPOSED[unit.size])
            value = " | ".join(
                f"{target} << {shift}" if shift else target
                for target, shift in zip(targets, shifts, strict=True)
            )
            after = [f"{variable} = {value}"]
            return targets, after if plain else after + self._split(unit, variable)
        raw = f"_raw_{unit.offset}"
        after = [f'{variable} = from_bytes({raw}, "big")']
        return [raw], after if plain else after + self._split(unit, variable)

    def _split(self, unit: _Unit, variable: str) -> list[str]:
        lines = []
        below = 8 * unit.size
        for field in unit.fields:
            below -= field.width
            value = f"{variable} >> {below}" if below else variable
            if below + field.width < 8 * unit.size:
                value += f" & {self._names.constant((1 << field.width) - 1)}"
            if field.signed:
                half = self._names.constant(1 << (field.width - 1))
                value = f"({value} ^ {half}) - {half}"
            lines.append(f"{self._names.field(field)} = {value}")
        return lines

    @property
    def _unpacker(self) -> str:
        return self._names.bound("unpack", self._header.name)

    def _unpack_format(self) -> str:
        codes = []
        skipped = 0
        for unit in self._units:
            if unit.kind == "skip":
                skipped += unit.size
                continue
            codes.append(f"{skipped}x" if skipped else "")
            codes.append(_codes(unit))
            skipped = 0
        return "".join(codes)

    # -- Packing -----------------------------------------------------------------------------------

    def pack(self) -> str:
        """An expression for the header's bytes."""
        if len(self._units) == 1 and self._units[0].size not in _NATIVE:
            unit = self._units[0]
            return self._chunks.get(unit) or self._to_bytes(unit)
        arguments: list[str] = []
        for unit in self._units:
            if unit.kind == "chunk":
                arguments.append(self._chunks[unit])
            elif unit.size in _NATIVE:
                arguments.append(self._value(unit)[0])
            elif unit.size in _COMPOSED:
                arguments += self._compose(unit)
            else:
                arguments.append(self._to_bytes(unit))
        return f"{self._packer}({', '.join(arguments)})"

    def _compose(self, unit: _Unit) -> list[str]:
        sizes = _COMPOSED[unit.size]
        text, is_name = self._value(unit)
        value = text if is_name else f"({text})"
        arguments = []
        for index, (size, shift) in enumerate(zip(sizes, _shifts(sizes), strict=True)):
            argument = f"{value} >> {shift}" if shift else value
            if index:
                argument += f" & {self._names.constant((1 << 8 * size) - 1)}"
            arguments.append(argument)
        return arguments

    def _to_bytes(self, unit: _Unit) -> str:
        text, is_name = self._value(unit)
        return f'{text if is_name else f"({text})"}.to_bytes({unit.size}, "big")'

    def _value(self, unit: _Unit) -> tuple[str, bool]:
        """The value of a unit, and whether that is just a name."""
        parts = []
        below = 8 * unit.size
        for field in unit.fields:
            below -= field.width
            text = unsigned(self._names, field)
            parts.append(f"{text} << {below}" if below else text)
        return " | ".join(parts), len(parts) == 1 and parts[0].isidentifier()

    @property
    def _packer(self) -> str:
        return self._names.bound("pack", self._header.name)

    def _pack_format(self) -> str:
        return "".join(_codes(unit) for unit in self._units)


def _units(header: Header, needed: Callable[[FieldRef], bool], rebuilt: bool) -> list[_Unit]:
    units: list[_Unit] = []
    fields: list[FieldRef] = []
    bits = start = 0
    for field in header.fields:
        fields.append(field)
        bits += field.width
        if bits % 8 == 0:
            kind: _Kind = "chunk" if rebuilt else "skip"
            if any(needed(f) for f in fields):
                kind = "int"
            units.append(_Unit(kind, tuple(fields), start, bits // 8 - start))
            fields, start = [], bits // 8
    merged: list[_Unit] = []
    for kind, group in groupby(units, key=lambda unit: unit.kind):
        run = list(group)
        if kind == "int":
            merged += run
        else:
            all_fields = tuple(f for unit in run for f in unit.fields)
            merged.append(_Unit(kind, all_fields, run[0].offset, sum(u.size for u in run)))
    return merged


def unsigned(names: Names, field: FieldRef) -> str:
    """The bits of a field as a number."""
    text = names.field(field)
    if not field.signed:
        return text
    return f"({text} & {names.constant((1 << field.width) - 1)})"


def _codes(unit: _Unit) -> str:
    if unit.kind == "int" and unit.size in _NATIVE:
        return _NATIVE[unit.size]
    if unit.kind == "int" and unit.size in _COMPOSED:
        return "".join(_NATIVE[size] for size in _COMPOSED[unit.size])
    return f"{unit.size}s"


def _offsets(sizes: tuple[int, ...]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _shifts(sizes: tuple[int, ...]) -> list[int]:
    return [8 * sum(sizes[index + 1 :]) for index in range(len(sizes))]


def add(offset: str, more: int) -> str:
    """An offset, which is a literal or a name, and so many bytes more."""
    if offset.isdigit():
        return str(int(offset) + more)
    return f"{offset} + {more}" if more else offset
