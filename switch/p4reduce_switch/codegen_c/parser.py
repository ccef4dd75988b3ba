# SPDX-License-Identifier: Apache-2.0
"""The parser as C source: a label per state, and `goto` between them.

`at` is the number of bytes consumed. All exits, errors included, lead to one label. Headers
extracted before an error stay valid.
"""

from __future__ import annotations

import graphlib

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.keys import write_key
from p4reduce_switch.codegen_c.layout import load_bits, load_header
from p4reduce_switch.codegen_c.values import constant, kind_of_width, limbs_of, make
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.limits import MOST_VARBITS
from p4reduce_switch.program.usage import StageUsage


def write_parser(context: CContext, expressions: CExpressions) -> None:
    """Write the parser."""
    _CParser(context, expressions).write()


class _CParser:
    def __init__(self, context: CContext, expressions: CExpressions) -> None:
        self._context = context
        self._expressions = expressions
        self._actions = ActionWriter(context, expressions, "parser", [])
        self._error = context.live_field("parser_error")
        self._parser = context.program.parser
        self._labels = {name: f"state_{number}" for number, name in enumerate(self._parser.states)}

    def write(self) -> None:
        writer = self._context.writer
        flow = self._context.function.flow
        states = self._reached()
        loops = self._loops(states)
        writer.line("uint32_t at = 0;")
        if loops:
            # A loop that takes nothing from the packet would never end; BMv2 hangs in it.
            count = len(self._parser.states)
            writer.line(f"uint64_t steps = {count} * ((uint64_t)size + 2);")
        before = flow.fork()
        if states[0] != self._parser.start or loops:
            writer.line(f"goto {self._labels[self._parser.start]};")
        for name in states:
            flow.resume(before)
            flow.forget()
            writer.line(f"{self._labels[name]}:; /* state */")
            writer.comment(f"state {name}")
            if loops:
                with writer.block("if (--steps == 0)"):
                    self._fail("ParserTimeout")
            with writer.block(""):
                self._state(self._parser.states[name])
        writer.line("parsed:;")
        flow.resume(before)
        self._settle(before.must)

    def _settle(self, before: set[FieldRef]) -> None:
        """After the parser: wide fields of headers that were not there are zero."""
        context, flow = self._context, self._context.function.flow
        usage: StageUsage = context.usage.parser
        disturbed = usage.writes | usage.reads
        headers = usage.added | usage.removed
        flow.forget()
        flow.state.must |= before
        for name, header in context.program.headers.items():
            if header.is_metadata or name in headers:
                continue
            wide = [
                f
                for f in context.variables(header)
                if kind_of_width(f.width) == "wide"
                and f not in disturbed
                and f not in flow.zeroed
                and f in context.function.fields
            ]
            if not wide:
                continue
            with context.writer.block(f"if (!{context.valid(name)})"):
                for field in wide:
                    limbs = limbs_of(field.width)
                    context.writer.line(f"p4r_wide_zero({context.field(field)}, {limbs});")
            for field in wide:
                flow.write(field)

    def _reached(self) -> list[str]:
        found: dict[str, None] = {}
        pending = [self._parser.start]
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found[name] = None
            pending += [n for n in reversed(_successors(self._parser.states[name])) if n]
        return list(found)

    def _loops(self, states: list[str]) -> bool:
        """Whether one of these can be reached from itself."""
        after = {name: filter(None, _successors(self._parser.states[name])) for name in states}
        try:
            graphlib.TopologicalSorter(after).prepare()
        except graphlib.CycleError:
            return True
        return False

    # -- States ------------------------------------------------------------------------------------

    def _state(self, state: ir.ParserState) -> None:
        for op in state.ops:
            self._op(op)
        for case in state.cases:
            test = self._test(state, case)
            if not test:
                self._goto(case.next_state)
                return
            with self._context.writer.block(f"if ({test})"):
                self._goto(case.next_state)
        self._goto(state.default)

    def _goto(self, name: str | None) -> None:
        label = "parsed" if name is None else self._labels[name]
        self._context.writer.line(f"goto {label};")

    def _fail(self, error: str) -> None:
        """Stop parsing with a core error."""
        self._stop(str(self._context.program.errors.get(error, 1)))

    def _stop(self, error: str) -> None:
        if self._error is not None:
            value = make("u64", error, 0, (1 << 64) - 1, atom=error.isdigit())
            self._actions.set(self._error, value)
        self._context.writer.line("goto parsed;")

    def _op(self, op: ir.ParserOp) -> None:
        if isinstance(op, ir.Extract):
            size = self._context.program.headers[op.header].size
            self._need(size)
            self._take(op.header)
            self._pass(size)
        elif isinstance(op, ir.ExtractVariable):
            self._take_variable(op.header, self._length_of_varbit(op.bits))
        elif isinstance(op, ir.ExtractNext):
            self._extract_next(op)
        elif isinstance(op, ir.Peek):
            self._peek(op)
        elif isinstance(op, ir.Advance):
            self._advance(op.bits)
        elif isinstance(op, ir.Verify):
            condition = self._expressions.condition(op.condition)
            with self._context.writer.block(f"if (!({condition}))"):
                if self._error is not None:
                    self._actions.assign(self._error, op.error)
                self._context.writer.line("goto parsed;")
        else:
            self._actions.statements((op.statement,))

    def _need(self, size: int) -> None:
        with self._context.writer.block(f"if (size - at < {size})"):
            self._fail("PacketTooShort")

    def _pass(self, size: int) -> None:
        if size:
            self._context.writer.line(f"at += {size};")

    def _take(self, name: str) -> None:
        """Set the fields of a header from the frame."""
        context = self._context
        header = context.program.headers[name]
        if context.variables(header):
            pointer = context.function.temporary("from")
            context.writer.line(f"const uint8_t *const {pointer} = frame + at;")
            load_header(context, header, pointer)
        context.writer.line(f"{context.valid(name)} = true;")
        if context.needs_offset(name):
            context.writer.line(f"{context.offset(name)} = at;")

    def _bits(self, expr: ir.Expr) -> str:
        """A number of bits that is skipped: a variable with the bytes, once it has been checked."""
        context, expressions = self._context, self._expressions
        value = expressions.data(expr)
        if value.kind not in ("u64", "i64"):
            value = expressions.fit(expressions.data(expr), 64)
        name = context.function.temporary("skip")
        kind = "i64" if value.low < 0 else "u64"
        type_ = "int64_t" if kind == "i64" else "uint64_t"
        context.writer.line(f"const {type_} {name} = {expressions.scalar(value, kind)};")  # type: ignore[arg-type]
        with context.writer.block(f"if ({name} & 7{f' || {name} < 0' if kind == 'i64' else ''})"):
            self._fail("ParserInvalidArgument")
        return name

    def _length_of_varbit(self, bits: ir.Expr) -> str:
        """A variable with it; BMv2 takes a number of more than 31 bits for an odd one."""
        length = self._bits(bits)
        with self._context.writer.block(f"if ({length} > {MOST_VARBITS})"):
            self._fail("ParserInvalidArgument")
        return length

    def _take_variable(self, name: str, bits: str) -> None:
        """The errors in the order in which BMv2 looks for them.

        As there, bytes that the varbit field has of an earlier extraction are counted once more.
        """
        context, writer = self._context, self._context.writer
        header = context.program.headers[name]
        assert header.varbit is not None
        length = context.field(header.varbit.length)
        need = context.function.temporary("need")
        writer.line(f"const uint64_t {need} = {header.size} + {length} / 8 + (uint64_t){bits} / 8;")
        with writer.block(f"if (size - at < {need})"):
            self._fail("PacketTooShort")
        with writer.block(f"if ({need} > {header.most_bytes})"):
            self._fail("HeaderTooShort")
        writer.line(f"{length} = (uint64_t){bits};")
        self._take(name)
        writer.line(f"at += {context.size_of(header)};")

    def _extract_next(self, op: ir.ExtractNext) -> None:
        context, writer = self._context, self._context.writer
        taken = context.field(op.next)
        with writer.block(f"if ({taken} >= {len(op.elements)})"):
            self._fail("StackOutOfBounds")
        size = context.program.headers[op.elements[0]].size
        bits = ""
        if op.bits is None:
            self._need(size)
        else:
            bits = self._length_of_varbit(op.bits)
        before = context.function.flow.fork()
        with writer.block(f"switch ({taken})"):
            for number, name in enumerate(op.elements):
                with writer.block(f"case {number}:"):
                    if bits:
                        self._take_variable(name, bits)
                    else:
                        self._take(name)
                    writer.line("break;")
        context.function.flow.join(before)
        writer.line(f"{taken}++;")
        if not bits:
            self._pass(size)

    def _peek(self, op: ir.Peek) -> None:
        end = (op.offset + op.width + 7) // 8
        self._need(end)
        if self._context.is_live(op.target):
            pointer = self._context.function.temporary("from")
            self._context.writer.line(f"const uint8_t *const {pointer} = frame + at;")
            load_bits(self._context, op.target, pointer, op.offset, op.width)

    def _advance(self, bits: ir.Expr) -> None:
        skip = self._bits(bits)
        with self._context.writer.block(f"if (size - at < (uint64_t){skip} / 8)"):
            self._fail("PacketTooShort")
        self._context.writer.line(f"at += (uint32_t)((uint64_t){skip} / 8);")

    # -- Cases -------------------------------------------------------------------------------------

    def _test(self, state: ir.ParserState, case: ir.SelectCase) -> str:
        """The condition of a case; empty if it always holds."""
        context, expressions = self._context, self._expressions
        if case.value_set is not None:
            key, words = write_key(
                context,
                expressions,
                [(expressions.fit(expressions.field(f), f.width), f.width) for f in state.key],
            )
            name = context.names.of("value_set", case.value_set)
            return f"p4r_table_find(&program->{name}, {key}, {words})"
        tests = []
        for field, wanted, mask in zip(state.key, case.values, case.masks, strict=True):
            if mask == 0:
                continue
            value = expressions.fit(expressions.field(field), field.width)
            if mask != (1 << field.width) - 1:
                value = expressions.mask(value, mask)
            text = expressions.compare("==", value, constant(wanted))
            if text != "true":
                tests.append(text)
        return " && ".join(f"({test})" if len(tests) > 1 else test for test in tests)


def _successors(state: ir.ParserState) -> list[str | None]:
    return [*(case.next_state for case in state.cases), state.default]
