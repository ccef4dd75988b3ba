# SPDX-License-Identifier: Apache-2.0
"""Python source text: indented lines, local names, named constants."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from p4reduce_switch.program.ir import FieldRef, HeaderInstance

_LONGEST_LITERAL = 1 << 64
_OWN = ("from_bytes",)  # the only own name that a field might have: all others start with _


class PyWriter:
    """Lines of Python with their indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write `head`, and indented what is written during the block; `pass` if that is
        nothing."""
        self.line(head)
        before = len(self._lines)
        with self.indented():
            yield
            if len(self._lines) == before:
                self.line("pass")

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent what is written during the block."""
        self._depth += 1
        yield
        self._depth -= 1

    def guarded(self, head: str, lines: Sequence[str], depends_on: str) -> None:
        """Write a block of lines, or join it to the block before if that has the same head.

        `depends_on` is the variable that the head tests. A block that assigns to it is not joined.
        """
        indent = "    " * self._depth
        last = len(self._lines)
        while last and self._lines[last - 1].startswith(indent + "    "):
            last -= 1
        body = self._lines[last:]
        joins = body and last and self._lines[last - 1] == indent + head
        assigned = re.compile(rf"(?<![\w\[]){re.escape(depends_on)}\s*[,=](?!=)")
        if not joins or any(assigned.search(line) for line in body):
            self.line(head)
        self._lines += [f"{indent}    {line}" for line in lines]

    @property
    def depth(self) -> int:
        return self._depth

    def mark(self) -> tuple[int, int]:
        """Return the present position, for `rewind`."""
        return len(self._lines), self._depth

    def rewind(self, mark: tuple[int, int]) -> None:
        """Drop what was written since the mark."""
        length, self._depth = mark
        del self._lines[length:]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


class PyNames:
    """Names of local variables and constants of the generated code.

    A field's variable is called `header_field`. Variables of the target start with an underscore,
    which no field's does.

    The generated code is run, and a program may contain any names. So strings of a program enter
    the code only as an identifier that this class makes, or by `repr`.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: set[str] = set(_OWN)
        self.constants: dict[int, str] = {}

    def field(self, field: FieldRef) -> str:
        wanted = _plain(f"{field.header}_{field.name}")
        if wanted[0] == "_" or wanted[0].isdigit() or keyword.iskeyword(wanted):
            wanted = f"p4_{wanted.lstrip('_')}"
        return self._name((field.header, field.name), wanted)

    def argument(self, index: int, name: str) -> str:
        """Return an action's argument, as an entry gives it: its number and its name in P4."""
        return self._name(("argument", index, name), f"_arg_{_plain(name)}")

    def valid(self, header: str) -> str:
        return self._name(("valid", header), f"_valid_{_plain(header)}")

    def offset(self, header: str) -> str:
        """Return the variable with the header's place in the frame."""
        return self._name(("offset", header), f"_offset_{_plain(header)}")

    def serialised(self, header: str) -> str:
        """Return the header's bytes as they leave, b"" if it is invalid."""
        return self._name(("bytes", header), f"_bytes_{_plain(header)}")

    def chunk(self, header: HeaderInstance, index: int) -> str:
        """Return the variable with bytes of the header that are not read."""
        return self._name(("chunk", header.name, index), f"_chunk_{_plain(header.name)}_{index}")

    def bound(self, kind: str, name: str) -> str:
        """Return the name of a table, counter, register, … that the pipeline binds."""
        return self._name((kind, name), f"_{kind}_{_plain(name)}")

    def constant(self, value: int) -> str:
        """Return a literal, or the name of a constant if a literal would be unreadable."""
        if -_LONGEST_LITERAL < value < _LONGEST_LITERAL:
            return str(value) if -1024 < value < 1024 else hex(value)
        if value not in self.constants:
            ones = value > 0 and value & (value + 1) == 0
            name = f"_ONES_{value.bit_length()}" if ones else f"_CONSTANT_{len(self.constants)}"
            self.constants[value] = name
        return self.constants[value]

    def _name(self, key: object, wanted: str) -> str:
        if key not in self._names:
            name = wanted
            number = 1
            while name in self._taken:
                number += 1
                name = f"{wanted}_{number}"
            self._taken.add(name)
            self._names[key] = name
        return self._names[key]


def _plain(name: str) -> str:
    """A part of an identifier. ASCII, for Python takes some other letters for the same as these."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)
