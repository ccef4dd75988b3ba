# SPDX-License-Identifier: Apache-2.0
"""The parser as Python source: a branch for each state, in a loop for those that go back.

`_at` is the number of bytes consumed. An error sets `parser_error` and ends the loop. Headers
extracted before it stay valid.
"""

from __future__ import annotations

from contextlib import nullcontext

from p4reduce_switch.codegen_python.actions import ActionEmitter
from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.expressions import Code
from p4reduce_switch.codegen_python.layout import unsigned
from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MOST_VARBITS


def emit_parser(context: PyContext) -> None:
    """Write the parser."""
    _PyParser(context).emit()


class _PyParser:
    def __init__(self, context: PyContext) -> None:
        self._context = context
        self._writer = context.writer
        self._names = context.names
        self._expressions = context.expressions
        self._actions = ActionEmitter(context, "parser")
        self._error = context.intrinsic("parser_error")
        states = context.program.parser.states
        self._numbers = {name: number for number, name in enumerate(states)}

    def emit(self) -> None:
        states = self._context.program.parser.states
        self._writer.line("_at = 0")
        self._writer.line(f"_state = {self._numbers[self._context.program.parser.start]}")
        # A loop that takes nothing from the packet would never end; BMv2 hangs in it.
        self._writer.line(f"_steps = {len(states)} * (_size + 2)")
        with self._writer.block("while True:"):
            self._writer.line("_steps -= 1")
            with self._writer.block("if not _steps:"):
                self._fail("ParserTimeout")
            for state in states.values():
                with self._writer.block(f"if _state == {self._numbers[state.name]}:"):
                    self._state(state)

    def _state(self, state: ir.ParserState) -> None:
        self._context.point("state", state.name)
        for op in state.ops:
            self._op(op)
        branches = [(self._test(state, case), case.next_state) for case in state.cases]
        for number, (test, name) in enumerate([*branches, ("", state.default)]):
            head = f"{'elif' if number else 'if'} {test}:" if test else "else:"
            with self._writer.block(head) if test or number else nullcontext():
                self._goto(state, name)
            if not test:
                return

    def _goto(self, state: ir.ParserState, name: str | None) -> None:
        if name is None:
            self._writer.line("break")
            return
        self._writer.line(f"_state = {self._numbers[name]}")
        if self._numbers[name] <= self._numbers[state.name]:
            self._writer.line("continue")

    def _fail(self, error: str) -> None:
        """Stop parsing with a core error."""
        self._stop(str(self._context.program.errors.get(error, 1)))

    def _stop(self, error: str) -> None:
        if self._error is not None:
            self._writer.line(f"{self._error} = {error}")
        self._writer.line("break")

    def _op(self, op: ir.ParserOp) -> None:
        if isinstance(op, ir.Extract):
            size = self._context.program.headers[op.header].size
            self._need(size)
            self._take(op.header)
            self._pass(size)
        elif isinstance(op, ir.ExtractVariable):
            self._length_of_varbit(op.bits)
            self._take_variable(op.header)
        elif isinstance(op, ir.ExtractNext):
            self._extract_next(op)
        elif isinstance(op, ir.Peek):
            self._peek(op)
        elif isinstance(op, ir.Advance):
            self._advance(op.bits)
        elif isinstance(op, ir.Verify):
            condition, _ = self._expressions.condition(op.condition)
            with self._writer.block(f"if not ({condition}):"):
                self._stop(self._expressions.data(op.error).text)
        else:
            self._actions.statements((op.statement,))

    def _length_of_varbit(self, bits: ir.Expr) -> None:
        """Compute it; BMv2 takes a number of more than 31 bits for an odd one."""
        code = self._expressions.data(bits)
        self._writer.line(f"_skip = {code.text}")
        tests = ["_skip & 7"]
        tests += ["_skip < 0"] if code.low < 0 else []
        tests += [f"_skip > {MOST_VARBITS:#x}"] if code.high > MOST_VARBITS else []
        with self._writer.block(f"if {' or '.join(tests)}:"):
            self._fail("ParserInvalidArgument")

    def _take_variable(self, name: str) -> None:
        """The errors in the order in which BMv2 looks for them.

        As there, bytes that the varbit field has of an earlier extraction are counted once more.
        """
        header = self._context.program.headers[name]
        assert header.varbit is not None
        length = self._names.field(header.varbit.length)
        self._writer.line(f"_end = _at + {header.size} + ({length} >> 3) + (_skip >> 3)")
        with self._writer.block("if _size < _end:"):
            self._fail("PacketTooShort")
        with self._writer.block(f"if _end > _at + {header.most_bytes}:"):
            self._fail("HeaderTooShort")
        self._writer.line(f"{length} = _skip")
        self._take(name)
        self._writer.line(f"_at += {header.size} + (_skip >> 3)")

    def _extract_next(self, op: ir.ExtractNext) -> None:
        taken = self._names.field(op.next)
        with self._writer.block(f"if {taken} >= {len(op.elements)}:"):
            self._fail("StackOutOfBounds")
        size = self._context.program.headers[op.elements[0]].size
        if op.bits is None:
            self._need(size)
        else:
            self._length_of_varbit(op.bits)
        for number, name in enumerate(op.elements):
            with self._writer.block(f"{'elif' if number else 'if'} {taken} == {number}:"):
                if op.bits is None:
                    self._take(name)
                else:
                    self._take_variable(name)
        self._writer.line(f"{taken} += 1")
        if op.bits is None:
            self._pass(size)

    def _peek(self, op: ir.Peek) -> None:
        first, end = op.offset // 8, (op.offset + op.width + 7) // 8
        self._need(end)
        below = 8 * end - op.offset - op.width
        full = (1 << op.width) - 1
        text = f'from_bytes(_frame[_at + {first}:_at + {end}], "big")'
        text = f"{text} >> {below} & {self._names.constant(full)}"
        if self._context.is_live(op.target):
            value = self._expressions.fit(Code(text, 0, 0, full, full), op.target.width)
            self._writer.line(f"{self._names.field(op.target)} = {value.text}")

    def _need(self, size: int) -> None:
        with self._writer.block(f"if _size < _at + {size}:"):
            self._fail("PacketTooShort")

    def _pass(self, size: int) -> None:
        self._writer.line(f"_at += {size}")

    def _take(self, name: str) -> None:
        """Set the fields of a header from the frame."""
        for line in self._context.layouts[name].unpack("_frame", "_at"):
            self._writer.line(line)
        self._writer.line(f"{self._names.valid(name)} = True")
        if self._context.needs_offset(name):
            self._writer.line(f"{self._names.offset(name)} = _at")

    def _advance(self, bits: ir.Expr) -> None:
        code = self._expressions.data(bits)
        self._writer.line(f"_skip = {code.text}")
        with self._writer.block("if _skip & 7:" if code.low >= 0 else "if _skip & 7 or _skip < 0:"):
            self._fail("ParserInvalidArgument")
        with self._writer.block("if _size < _at + (_skip >> 3):"):
            self._fail("PacketTooShort")
        self._writer.line("_at += _skip >> 3")

    def _test(self, state: ir.ParserState, case: ir.SelectCase) -> str:
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
