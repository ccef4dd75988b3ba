# SPDX-License-Identifier: Apache-2.0
"""The parser as Python source.

There are two forms. A parser with few paths becomes a tree of `if`s, in which every header's offset
is a number. Otherwise its states are the branches of a loop. Both set `_at`, the number of bytes
consumed, and `parser_error`, and end with `break` out of a `while True`. Headers extracted before
an error stay valid.
"""

from __future__ import annotations

from p4reduce_switch.codegen_python.actions import ActionEmitter
from p4reduce_switch.codegen_python.context import Context
from p4reduce_switch.codegen_python.expressions import Code
from p4reduce_switch.codegen_python.layout import unsigned
from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MOST_VARBITS

_MOST_COPIES = 128  # of states, in a tree
DEEPEST = 60  # blocks; Python's limit is 100


class _TooLargeError(Exception):
    """The parser cannot be a tree."""


def emit_parser(context: Context) -> None:
    """Write the parser."""
    mark = context.writer.mark()
    try:
        _Tree(context).emit()
    except _TooLargeError:
        context.writer.rewind(mark)
        _Loop(context).emit()


class _Emitter:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._writer = context.writer
        self._names = context.names
        self._expressions = context.expressions
        self._actions = ActionEmitter(context, "parser")
        self._error = context.intrinsic("parser_error")

    def _fail(self, error: str, at: int | None) -> None:
        """Stop parsing with a core error; `at` is the offset where it is known beforehand."""
        self._stop(str(self._context.program.errors.get(error, 1)), at)

    def _stop(self, error: str | None, at: int | None) -> None:
        if error is not None and self._error is not None:
            self._writer.line(f"{self._error} = {error}")
        if at is not None:
            self._writer.line(f"_at = {at}")
        self._writer.line("break")

    def _op(self, op: ir.ParserOp, at: int | None) -> int | None:
        """Write one operation; gives the offset after it, None if that is `_at`."""
        if isinstance(op, ir.Extract):
            return self._extract(op.header, at)
        if isinstance(op, ir.ExtractVariable):
            self._extract_variable(op, at)
            return None
        if isinstance(op, ir.ExtractNext):
            return self._extract_next(op, at)
        if isinstance(op, ir.Peek):
            self._peek(op, at)
            return at
        if isinstance(op, ir.Advance):
            return self._advance(op.bits, at)
        if isinstance(op, ir.Verify):
            condition, _ = self._expressions.condition(op.condition)
            with self._writer.block(f"if not ({condition}):"):
                self._stop(self._expressions.data(op.error).text, at)
        else:
            self._actions.statements((op.statement,))
        return at

    def _extract(self, name: str, at: int | None) -> int | None:
        size = self._context.program.headers[name].size
        self._need(size, at)
        self._take(name, at)
        return self._pass(size, at)

    def _extract_variable(self, op: ir.ExtractVariable, at: int | None) -> None:
        if at is not None:
            self._writer.line(f"_at = {at}")
        self._length_of_varbit(op.bits)
        self._take_variable(op.header)

    def _length_of_varbit(self, bits: ir.Expr) -> None:
        """Compute it; BMv2 takes a number of more than 31 bits for an odd one."""
        code = self._expressions.data(bits)
        self._writer.line(f"_skip = {code.text}")
        tests = ["_skip & 7"]
        tests += ["_skip < 0"] if code.low < 0 else []
        tests += [f"_skip > {MOST_VARBITS:#x}"] if code.high > MOST_VARBITS else []
        with self._writer.block(f"if {' or '.join(tests)}:"):
            self._fail("ParserInvalidArgument", None)

    def _take_variable(self, name: str) -> None:
        """The errors in the order in which BMv2 looks for them.

        As there, bytes that the varbit field has of an earlier extraction are counted once more.
        """
        header = self._context.program.headers[name]
        assert header.varbit is not None
        length = self._names.field(header.varbit.length)
        self._writer.line(f"_end = _at + {header.size} + ({length} >> 3) + (_skip >> 3)")
        with self._writer.block("if _size < _end:"):
            self._fail("PacketTooShort", None)
        with self._writer.block(f"if _end > _at + {header.most_bytes}:"):
            self._fail("HeaderTooShort", None)
        self._writer.line(f"{length} = _skip")
        self._take(name, None)
        self._writer.line(f"_at += {header.size} + (_skip >> 3)")

    def _extract_next(self, op: ir.ExtractNext, at: int | None) -> int | None:
        taken = self._names.field(op.next)
        with self._writer.block(f"if {taken} >= {len(op.elements)}:"):
            self._fail("StackOutOfBounds", at)
        size = self._context.program.headers[op.elements[0]].size
        if op.bits is None:
            self._need(size, at)
        else:
            if at is not None:
                self._writer.line(f"_at = {at}")
            self._length_of_varbit(op.bits)
        for number, name in enumerate(op.elements):
            with self._writer.block(f"{'elif' if number else 'if'} {taken} == {number}:"):
                if op.bits is None:
                    self._take(name, at)
                else:
                    self._take_variable(name)
        self._writer.line(f"{taken} += 1")
        return self._pass(size, at) if op.bits is None else None

    def _peek(self, op: ir.Peek, at: int | None) -> None:
        first, end = op.offset // 8, (op.offset + op.width + 7) // 8
        self._need(end, at)
        start, stop = (f"_at + {n}" if at is None else str(at + n) for n in (first, end))
        below = 8 * end - op.offset - op.width
        full = (1 << op.width) - 1
        text = f'from_bytes(_frame[{start}:{stop}], "big")'
        text = f"{text} >> {below} & {self._names.constant(full)}"
        if self._context.is_live(op.target):
            value = self._expressions.fit(Code(text, 0, 0, full, full), op.target.width)
            self._writer.line(f"{self._names.field(op.target)} = {value.text}")

    def _need(self, size: int, at: int | None) -> None:
        end = f"_at + {size}" if at is None else str(at + size)
        with self._writer.block(f"if _size < {end}:"):
            self._fail("PacketTooShort", at)

    def _pass(self, size: int, at: int | None) -> int | None:
        if at is not None:
            return at + size
        self._writer.line(f"_at += {size}")
        return None

    def _take(self, name: str, at: int | None) -> None:
        """Set the fields of a header from the frame."""
        offset = "_at" if at is None else str(at)
        for line in self._context.layouts[name].unpack("_frame", offset):
            self._writer.line(line)
        self._writer.line(f"{self._names.valid(name)} = True")
        if self._context.needs_offset(name):
            self._writer.line(f"{self._names.offset(name)} = {offset}")

    def _advance(self, bits: ir.Expr, at: int | None) -> int | None:
        if (
            isinstance(bits, ir.Const)
            and bits.value % 8 == 0
            and bits.value >= 0
            and at is not None
        ):
            with self._writer.block(f"if _size < {at + bits.value // 8}:"):
                self._fail("PacketTooShort", at)
            return at + bits.value // 8
        if at is not None:
            self._writer.line(f"_at = {at}")
        code = self._expressions.data(bits)
        self._writer.line(f"_skip = {code.text}")
        with self._writer.block("if _skip & 7:" if code.low >= 0 else "if _skip & 7 or _skip < 0:"):
            self._fail("ParserInvalidArgument", None)
        with self._writer.block("if _size < _at + (_skip >> 3):"):
            self._fail("PacketTooShort", None)
        self._writer.line("_at += _skip >> 3")
        return None

    def _test(self, state: ir.ParserState, case: ir.Case) -> str:
        """The condition of a case; empty if it always holds."""
        tests = []
        if case.value_set is not None:
            members = self._context.bind("members", case.value_set)
            key = [unsigned(self._names, field) for field in state.key]
            return f"{key[0] if len(key) == 1 else '(' + ', '.join(key) + ')'} in {members}"
        for field, value, mask in zip(state.key, case.values, case.masks, strict=True):
            name = unsigned(self._names, field)
            if mask == 0:
                continue
            if mask == (1 << field.width) - 1:
                tests.append(f"{name} == {self._names.constant(value)}")
            else:
                masked = f"{name} & {self._names.constant(mask)}"
                tests.append(f"{masked} == {self._names.constant(value)}")
        return " and ".join(tests)


class _Tree(_Emitter):
    """Each state is written once for each path that leads to it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._copies = 0

    def emit(self) -> None:
        with self._writer.block("while True:"):
            self._state(self._context.program.parser.start, 0, frozenset())

    def _state(self, name: str | None, at: int | None, path: frozenset[str]) -> None:
        if name is None:
            self._stop(None, at)
            return
        self._copies += 1
        too_deep = self._writer.depth > DEEPEST
        if name in path or self._copies > _MOST_COPIES or too_deep:
            raise _TooLargeError
        state = self._context.program.parser.states[name]
        self._context.point("state", name)
        for op in state.ops:
            at = self._op(op, at)
        path |= {name}
        for case in state.cases:
            test = self._test(state, case)
            if not test:
                self._state(case.next_state, at, path)
                return
            # Every branch ends with `break`, so there is no need for an `else`.
            with self._writer.block(f"if {test}:"):
                self._state(case.next_state, at, path)
        self._state(state.default, at, path)


class _Loop(_Emitter):
    """Each state is written once, as a branch of a loop."""

    def emit(self) -> None:
        states = self._context.program.parser.states
        numbers = {name: number for number, name in enumerate(states)}
        self._writer.line("_at = 0")
        self._writer.line(f"_state = {numbers[self._context.program.parser.start]}")
        # A loop that takes nothing from the packet would never end; BMv2 hangs in it.
        self._writer.line(f"_steps = {len(states)} * (_size + 2)")
        with self._writer.block("while True:"):
            self._writer.line("_steps -= 1")
            with self._writer.block("if not _steps:"):
                self._fail("ParserTimeout", None)
            for number, state in enumerate(states.values()):
                with self._writer.block(f"{'elif' if number else 'if'} _state == {number}:"):
                    self._state(state, numbers)

    def _state(self, state: ir.ParserState, numbers: dict[str, int]) -> None:
        self._context.point("state", state.name)
        for op in state.ops:
            self._op(op, None)
        for case in state.cases:
            test = self._test(state, case)
            if not test:
                self._goto(case.next_state, numbers)
                return
            with self._writer.block(f"if {test}:"):
                self._goto(case.next_state, numbers)
        self._goto(state.default, numbers)

    def _goto(self, name: str | None, numbers: dict[str, int]) -> None:
        if name is None:
            self._writer.line("break")
        else:
            self._writer.line(f"_state = {numbers[name]}")
            self._writer.line("continue")
