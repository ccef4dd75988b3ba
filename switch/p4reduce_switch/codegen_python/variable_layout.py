# SPDX-License-Identifier: Apache-2.0
"""How Python code unpacks and packs a header with a varbit field.

The part before the varbit field, up to the last whole byte, is laid out as in other headers. The
rest becomes one integer, from which the fields are cut.
"""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_switch.codegen_python.layout import HeaderLayout, unsigned
from p4reduce_switch.codegen_python.text import PyNames
from p4reduce_switch.program.ir import FieldRef, HeaderInstance, Varbit


class VariableLayout(HeaderLayout):
    """The layout of one header. Arguments and attributes are those of `HeaderLayout`.

    The variable with the length of the varbit field is set before `unpack` and `pack`.
    """

    def __init__(
        self,
        names: PyNames,
        header: HeaderInstance,
        varbit: Varbit,
        needed: Callable[[FieldRef], bool],
        rebuilt: bool,
    ) -> None:
        super().__init__(names, header, needed, rebuilt)
        self._varbit = varbit
        self._start = sum(unit.size for unit in header.units)
        self._rest = header.fields[sum(len(unit.fields) for unit in header.units) :]
        self._size = header.size - self._start
        self._wanted = tuple(f for f in self._rest if rebuilt or needed(f))
        self.ints += self._wanted

    def unpack(self, frame: str, offset: str) -> list[str]:
        """Return the statements that set the variables from the frame."""
        lines = super().unpack(frame, offset)
        if not self._wanted:
            return lines
        start = f"{offset} + {self._start}"
        end = f"{start} + {self._size} + ({self._length} >> 3)"
        lines.append(f'_rest = from_bytes({frame}[{start}:{end}], "big")')
        for field, shift in self._shifts():
            if field not in self._wanted:
                continue
            text = f"_rest >> {shift}" if shift != "0" else "_rest"
            mask = self._names.constant((1 << field.width) - 1)
            if field == self._varbit.field:
                mask = f"((1 << {self._length}) - 1)"
            if field != self._rest[0]:
                text += f" & {mask}"
            if field.signed:
                half = self._names.constant(1 << (field.width - 1))
                text = f"({text} ^ {half}) - {half}"
            lines.append(f"{self._names.field(field)} = {text}")
        return lines

    def pack(self) -> str:
        """Return an expression for the header's bytes."""
        parts = [
            f"{unsigned(self._names, field)} << {shift}"
            if shift != "0"
            else unsigned(self._names, field)
            for field, shift in self._shifts()
        ]
        size = f"{self._size} + ({self._length} >> 3)"
        rest = f'({" | ".join(parts)}).to_bytes({size}, "big")'
        return f"{super().pack()} + {rest}"

    @property
    def _length(self) -> str:
        return self._names.field(self._varbit.length)

    def _shifts(self) -> list[tuple[FieldRef, str]]:
        """The fields of the rest, and the bits below each."""
        shifts = []
        below, is_before = 0, False
        for field in reversed(self._rest):
            text = str(below)
            if is_before:
                text = f"({self._length} + {below})" if below else self._length
            shifts.append((field, text))
            if field == self._varbit.field:
                is_before = True
            else:
                below += field.width
        return shifts[::-1]
