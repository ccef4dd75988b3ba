# SPDX-License-Identifier: Apache-2.0
"""What the modules of the C generator share: the program, and the function that is being
written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.flow import Flow
from p4reduce_switch.codegen_c.generated import PythonEvent
from p4reduce_switch.codegen_c.known import possible_ones
from p4reduce_switch.codegen_c.text import CNames, CWriter
from p4reduce_switch.codegen_c.values import C_TYPES, kind_of_width, limbs_of, literal
from p4reduce_switch.program.facts import Facts
from p4reduce_switch.program.ir import FieldRef, HeaderInstance, Program

_MOST_STACK_WORDS = 1 << 15  # of all that a function has: 256 KiB
_MOST_CONSTANT_WORDS = 1 << 18


class Function:
    """A C function: its lines, and the variables that they use."""

    def __init__(self, zeroed: set[FieldRef]) -> None:
        self.writer = CWriter()
        self.flow = Flow(zeroed)
        self.fields: dict[FieldRef, None] = {}
        self.valids: dict[str, None] = {}
        self.offsets: dict[str, None] = {}
        self.given: set[str] = set()
        """Identifiers that are parameters, or declared elsewhere."""
        self._number = 0
        self._stack_words = 0

    def temporary(self, stem: str) -> str:
        """Return a new identifier."""
        self._number += 1
        return f"{stem}_{self._number}"

    def take_stack(self, words: int) -> None:
        self._stack_words += words
        if self._stack_words > _MOST_STACK_WORDS:
            raise NotNativeError(
                f"fields and values of more than {_MOST_STACK_WORDS >> 7} KiB in one function"
            )


class CContext(Facts):
    """The program that is turned into C, and the code so far."""

    def __init__(self, program: Program, *, queues: bool = False) -> None:
        super().__init__(program, queues=queues)
        self.names = CNames()
        self.possible_ones = possible_ones(program)
        self.constants: dict[tuple[int, int], str] = {}
        self.events: list[PythonEvent] = []
        self.function = Function(set())
        self._constant_words = 0

    # -- Functions ---------------------------------------------------------------------------------

    def write(self, head: str, body: Callable[[], None]) -> str:
        """Write a function of the generated code; `body` writes its body."""
        zeroed: set[FieldRef] = set()
        while True:
            self.function = Function(zeroed)
            before = len(self.events)
            with self.function.writer.block(head):
                start = self.function.writer.mark()
                body()
                lines = self.function.writer.take(start)
                self._declare()
                self.function.writer.put(lines)
            if self.function.flow.missed <= zeroed:
                return self.function.writer.text()
            zeroed = zeroed | self.function.flow.missed
            del self.events[before:]

    def _declare(self) -> None:
        """The variables of the function, all zero but for wide ones that need not be."""
        function, writer, names = self.function, self.function.writer, self.names
        for field in function.fields:
            name = names.field(field)
            if name in function.given:
                continue
            kind = kind_of_width(field.width, field.signed)
            function.take_stack(limbs_of(field.width))
            if kind != "wide":
                writer.line(f"{C_TYPES[kind]} {name} = 0;")
            else:
                writer.line(f"uint64_t {name}[{limbs_of(field.width)}];")
                if field in function.flow.zeroed:
                    writer.line(f"p4r_wide_zero({name}, {limbs_of(field.width)});")
        for header in function.valids:
            name = names.of("valid", header)
            if name not in function.given:
                writer.line(f"bool {name} = false;")
        for header in function.offsets:
            name = names.of("at", header)
            if name not in function.given:
                writer.line(f"uint32_t {name} = 0;")

    @property
    def writer(self) -> CWriter:
        return self.function.writer

    @contextmanager
    def optional(self, test: str) -> Iterator[None]:
        """What is written meanwhile is done if `test` holds; empty: in any case."""
        skipped = self.function.flow.fork()
        if test:
            with self.writer.block(f"if ({test})"):
                yield
        else:
            yield
        self.function.flow.join(skipped)

    # -- Variables ---------------------------------------------------------------------------------

    def field(self, field: FieldRef) -> str:
        self.function.fields.setdefault(field)
        return self.names.field(field)

    def valid(self, header: str) -> str:
        self.function.valids.setdefault(header)
        return self.names.of("valid", header)

    def offset(self, header: str) -> str:
        """Return the variable with the header's place in the frame."""
        self.function.offsets.setdefault(header)
        return self.names.of("at", header)

    def wide_constant(self, value: int, limbs: int) -> str:
        """Return text with § for a limb of a constant, modulo 2^(64 * limbs)."""
        value %= 1 << 64 * limbs
        words = [value >> 64 * i & (1 << 64) - 1 for i in range(limbs)]
        if len(set(words)) == 1:
            return literal(words[0], "u64")
        key = (value, limbs)
        if key not in self.constants:
            self._constant_words += limbs
            if self._constant_words > _MOST_CONSTANT_WORDS:
                raise NotNativeError(f"constants of more than {_MOST_CONSTANT_WORDS >> 7} KiB")
            self.constants[key] = f"constant_{len(self.constants)}"
        return f"{self.constants[key]}[§]"

    def event(self, kind: str, text: str, values: Sequence[tuple[int, bool]]) -> int:
        self.events.append(PythonEvent(kind, text, tuple(values)))
        return len(self.events) - 1

    # -- Varbit fields -----------------------------------------------------------------------------

    def bits_of(self, field: FieldRef) -> str:
        """Return the field's bits on the wire: a number, or the variable for a varbit field."""
        varbit = self.program.headers[field.header].varbit
        if varbit is None or varbit.field != field:
            return str(field.width)
        return f"(uint32_t){self.field(varbit.length)}"

    def size_of(self, header: HeaderInstance) -> str:
        """Return the header's bytes on the wire."""
        if header.varbit is None:
            return str(header.size)
        return f"({header.size} + (uint32_t){self.field(header.varbit.length)} / 8)"
