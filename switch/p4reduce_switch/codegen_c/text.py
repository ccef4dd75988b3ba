# SPDX-License-Identifier: Apache-2.0
"""C source text: indented lines, loops over limbs, identifiers, comments.

The generated code is compiled and run, and a program may contain any strings. So they enter the
code only through this module: as part of an identifier (`CNames`), or as a comment (`comment`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.program.ir import FieldRef, SourceLocation

_MAX_LINES = 30_000
DEEPEST = 120  # blocks within each other; clang bears 256 brackets
_LONGEST_NAME = 60
_LONGEST_COMMENT = 90


def plain(name: str) -> str:
    """Return a string as part of an identifier."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:_LONGEST_NAME]


def paren(text: str) -> str:
    """An expression, in parentheses unless it is a name."""
    return text if text.isidentifier() else f"({text})"


def comment(text: str) -> str:
    """Return a comment without anything that could end it or that C interprets."""
    kept = re.sub(r"[^A-Za-z0-9_ .,:;()<>=+&|^!~\[\]{}/-]", "", " ".join(text.split()))
    return f"/* {kept[:_LONGEST_COMMENT].rstrip()} */"


class CWriter:
    """Lines of C with their indentation."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self.depth = 0
        self._loop: tuple[int, int, int, int] | None = None  # (first line, end, limbs, depth)
        self._said: SourceLocation | None = None

    def line(self, text: str) -> None:
        self._lines.append((self.depth, text))
        if len(self._lines) > _MAX_LINES:
            raise NotNativeError(f"it becomes more than {_MAX_LINES} lines of C")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write `head`, and in braces what is written during the block."""
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotNativeError(f"more than {DEEPEST} nested blocks of C")
        yield
        self.depth -= 1
        self.line("}")

    def comment(self, text: str) -> None:
        self.line(comment(text))

    def say(self, source: SourceLocation) -> None:
        """Write the P4 source line of the code that follows, once."""
        if source.line and source != self._said:
            self._said = source
            text = f"{source.filename.rsplit('/', 1)[-1]}:{source.line}: {source.fragment}"
            if self._open_loop() is None:
                self.comment(text)
            else:
                self._into_loop(comment(text))

    # -- Loops over the limbs of wide fields -------------------------------------------------------

    def limbs(self, count: int, statement: str) -> None:
        """Write `statement` for each limb `i`, in the previous statement's loop if possible."""
        loop = self._open_loop()
        if loop is not None and loop[2] == count:
            self._into_loop(statement)
            return
        first = len(self._lines)
        if loop is not None:
            pass  # another number of limbs: a loop of its own
        self.line("P4R_LIMBS")
        self.line(f"for (unsigned i = 0; i < {count}; i++) {{")
        self._lines.append((self.depth + 1, statement))
        self.line("}")
        self._loop = (first, len(self._lines), count, self.depth)

    def before_limbs(self, count: int, text: str) -> None:
        """Write a line before the loop of the next `limbs(count, …)`.

        It must not depend on that loop's results.
        """
        loop = self._open_loop()
        if loop is None or loop[2] != count:
            self.line(text)
            return
        first, end, limbs, depth = loop
        self._lines.insert(first, (depth, text))
        self._loop = (first + 1, end + 1, limbs, depth)

    def end_limbs(self) -> None:
        """Let the next statement for limbs start a new loop."""
        self._loop = None

    def _into_loop(self, statement: str) -> None:
        assert self._loop is not None
        first, end, limbs, depth = self._loop
        self._lines.insert(end - 1, (depth + 1, statement))
        self._loop = (first, end + 1, limbs, depth)

    def _open_loop(self) -> tuple[int, int, int, int] | None:
        loop = self._loop
        if loop is not None and loop[1] == len(self._lines) and loop[3] == self.depth:
            return loop
        return None

    # -- Going back --------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """Return the present position, for `rewind` and `take`."""
        self._loop = None
        return len(self._lines), self.depth

    def rewind(self, mark: tuple[int, int]) -> None:
        """Drop what was written since the mark."""
        length, self.depth = mark
        del self._lines[length:]
        self._loop = None

    def take(self, mark: tuple[int, int]) -> list[tuple[int, str]]:
        """Remove and return what was written since the mark, for `put`."""
        lines = self._lines[mark[0] :]
        self.rewind(mark)
        return lines

    def put(self, lines: list[tuple[int, str]], deeper: int = 0) -> None:
        self._lines += [(depth + deeper, text) for depth, text in lines]

    def text(self) -> str:
        out: list[str] = []
        for depth, text in self._lines:
            if text.startswith("else") and out and out[-1] == "    " * depth + "}":
                out[-1] += f" {text}"
            else:
                out.append("    " * depth + text if text else "")
        return "\n".join(out) + "\n"


class CNames:
    """Identifiers for the names of a program; each has a prefix for its kind.

    `f_` is a field, `arg_` an action's argument, `valid_` a header's validity. Names of the
    run-time start with `p4r_` or `P4R_`, so names never clash.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: set[str] = set()

    def of(self, kind: str, name: str) -> str:
        """Return the identifier of an object of the program, always the same."""
        return self._name((kind, name), f"{kind}_{plain(name)}")

    def field(self, field: FieldRef) -> str:
        wanted = f"f_{plain(f'{field.header}_{field.name}')}"
        return self._name(("field", field.header, field.name), wanted)

    def _name(self, key: object, wanted: str) -> str:
        if key not in self._names:
            name = wanted
            number = 1
            while name in self._taken:
                number += 1
                name = f"{wanted}__{number}"
            self._taken.add(name)
            self._names[key] = name
        return self._names[key]


def flatten_else(writer: CWriter, mark: tuple[int, int]) -> None:
    """Make "else if …" of an "else { if … }" since the mark that has nothing else in it."""
    lines = writer.take(mark)
    inner = lines[1:-1]
    depth = writer.depth
    said = [line for line in inner if line[0] == depth + 1 and line[1].startswith("/* ")]
    body = [line for line in inner if line not in said[:1]] if said[:1] == inner[:1] else inner
    heads = [text for level, text in body if level == depth + 1]
    chain = (
        bool(body)
        and body[0][1].startswith("if (")
        and all(text == "}" or text.startswith("else") for text in heads[1:])
    )
    if not chain:
        writer.put(lines)
        return
    writer.put([(depth, f"else {body[0][1]}")])
    if body is not inner:
        writer.put([(depth + 1, inner[0][1])])
    writer.put([(level - 1, text) for level, text in body[1:]])
