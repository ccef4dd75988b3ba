# SPDX-License-Identifier: Apache-2.0
"""Actions as Python source: one emitter for each primitive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from p4reduce_switch.codegen_python.checksums import emit_hash
from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.expressions import ATOM, OR, SUM, Code
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.limits import MAX_ITERATIONS
from p4reduce_switch.program.usage import Stage
from p4reduce_switch.state.clone_sessions import MAX_SESSION_ID


def color_code(text: str) -> Code:
    """Return the expression for a meter's result: 0 (green) to 2 (red)."""
    return Code(text, ATOM, 0, 2, 3)


class ActionEmitter:
    """Writes the bodies of actions, in one stage of the pipeline."""

    def __init__(self, context: PyContext, stage: Stage) -> None:
        self._context = context
        self._stage = stage
        self._writer = context.writer
        self._names = context.names
        self._expressions = context.expressions
        self._in_blocks = False
        """Whether what is written is in the loop of `_jumps`."""

    def action(self, action: ir.Action, arguments: Sequence[Code]) -> None:
        """Return the body of an action with its parameters filled in."""
        self._context.point("action", action.name, action.source)
        self._expressions.params = dict(enumerate(arguments))
        self.statements(action.body)
        self._expressions.params = {}

    def statements(self, body: Iterable[ir.Statement]) -> None:
        for statement in body:
            if isinstance(statement, ir.Primitive) and statement.source.line:
                self._context.point("line", statement.op, statement.source)
            if isinstance(statement, ir.If):
                self._if(statement)
            elif isinstance(statement, ir.Jumps):
                self._jumps(statement)
            elif statement.op in ("assert", "assume"):
                (condition,) = statement.args
                self._assert(condition, statement.op, statement.source)  # type: ignore[arg-type]
            elif not self._context.is_dead(statement):
                self._primitive(statement)

    def _primitive(self, primitive: ir.Primitive) -> None:
        """Write it by the method of its name. The loader has checked the arguments."""
        emit: Callable[..., None] = getattr(self, f"_{primitive.op}")
        emit(*primitive.args)

    def _if(self, statement: ir.If) -> None:
        keyword = "if"
        while True:
            condition, _ = self._expressions.condition(statement.condition)
            with self._writer.block(f"{keyword} {condition}:"):
                self.statements(statement.then)
            match statement.otherwise:
                case (ir.If() as following,):
                    statement, keyword = following, "elif"
                case _:
                    break
        if statement.otherwise:
            with self._writer.block("else:"):
                self.statements(statement.otherwise)

    def _jumps(self, jumps: ir.Jumps) -> None:
        """A loop that runs the blocks from `_step` on, in their order; again after a jump back."""
        writer, end = self._writer, len(jumps.blocks)
        exits = any(
            isinstance(statement, ir.Primitive) and statement.op == "exit"
            for statement in ir.statements((jumps,))
        )
        writer.line("_step = 0")
        if jumps.loops():
            writer.line(f"_turns = {MAX_ITERATIONS}")
        self._in_blocks = True
        with writer.block("while True:"):
            for number, block in enumerate(jumps.blocks):
                with writer.block(f"if _step == {number}:"):
                    self.statements(block.body)
                    goes = str(block.next)
                    if block.condition is not None:
                        condition, _ = self._expressions.condition(block.condition)
                        goes = f"{block.next} if {condition} else {block.otherwise}"
                    writer.line(f"_step = {goes}")
            with writer.block(f"if _step == {end}:"):
                writer.line("break")
            if jumps.loops():
                writer.line("_turns -= 1")
                with writer.block("if not _turns:"):
                    writer.line(f"{self._context.bind('endless')}({str(jumps.source)!r})")
                    writer.line("return None" if self._stage == "egress" else "return []")
        self._in_blocks = False
        if exits:
            with writer.block("if _step < 0:"):
                writer.line("break")

    def _set(self, field: FieldRef, code: Code) -> None:
        self._writer.line(self._assignment(field, code))

    def _assignment(self, field: FieldRef, code: Code) -> str:
        value = self._expressions.fit(code, field.width, field.signed)
        return f"{self._names.field(field)} = {value.text}"

    # -- Primitives --------------------------------------------------------------------------------

    def _assign(self, field: FieldRef, value: ir.Expr) -> None:
        self._set(field, self._expressions.data(value))

    def _assign_header(self, target: ir.HeaderValue, origin: ir.HeaderValue) -> None:
        headers = self._context.program.headers
        with self._writer.block(f"if {self._names.valid(origin.header)}:"):
            self._writer.line(f"{self._names.valid(target.header)} = True")
            pairs = zip(headers[target.header].state, headers[origin.header].state, strict=True)
            for to, from_ in pairs:
                if self._context.is_live(to):
                    self._set(to, self._expressions.field(from_))
        with self._writer.block("else:"):
            self._writer.line(f"{self._names.valid(target.header)} = False")

    def _swap_headers(self, one: ir.HeaderValue, other: ir.HeaderValue) -> None:
        headers, names = self._context.program.headers, self._names
        left = [names.valid(one.header), *(names.field(f) for f in headers[one.header].state)]
        right = [names.valid(other.header), *(names.field(f) for f in headers[other.header].state)]
        self._writer.line(f"{', '.join(left + right)} = {', '.join(right + left)}")

    def _add_header(self, target: ir.HeaderValue) -> None:
        header = self._context.program.headers[target.header]
        valid = self._names.valid(header.name)
        with self._writer.block(f"if not {valid}:"):
            self._writer.line(f"{valid} = True")
            fields = [self._names.field(f) for f in header.fields if self._context.is_live(f)]
            if fields:
                self._writer.line(f"{' = '.join(fields)} = 0")
            # As in BMv2 a varbit field is as long as it was last; of zeros, that is.
            if self._context.length_matters(self._stage):
                more = self._context.more_bytes(header)
                self._writer.line(f"_length += {header.size}{more}")

    def _remove_header(self, target: ir.HeaderValue) -> None:
        header = self._context.program.headers[target.header]
        valid = self._names.valid(header.name)
        if self._context.length_matters(self._stage):
            with self._writer.block(f"if {valid}:"):
                more = self._context.more_bytes(header)
                self._writer.line(f"_length -= {header.size}{more}")
        self._invalidate(target)

    def _invalidate(self, target: ir.HeaderValue) -> None:
        header = self._context.program.headers[target.header]
        self._writer.line(f"{self._names.valid(header.name)} = False")
        packed_before = not self._context.packed_in_egress(header.name)
        if self._stage == "egress" and header.name in self._context.wire and packed_before:
            self._writer.line(f'{self._names.serialised(header.name)} = b""')

    def _mark_to_drop(self, *header: ir.HeaderValue) -> None:
        fields = self._context.program.drop_fields(*header)
        reads = self._context.usage.egress.reads
        for field in fields:
            if field.name == "egress_spec":
                port = self._context.drop_port & (1 << field.width) - 1
                self._writer.line(f"{self._names.field(field)} = {port}")
            elif self._stage != "egress" or field in reads:
                self._writer.line(f"{self._names.field(field)} = 0")

    _drop = _mark_to_drop

    def _exit(self) -> None:
        # Each control that can exit is the body of a loop that runs once.
        if self._in_blocks:
            self._writer.line("_step = -1")
        self._writer.line("break")

    def _no_op(self) -> None:
        pass

    def _count(self, counter: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.counters[counter.name]
        if array.table is not None:
            return  # a direct counter counts with the table's hits
        packets = self._context.bind("packets", array.name)
        octets = self._context.bind("octets", array.name)
        self._indexed(
            index, array.size, lambda at: [f"{packets}[{at}] += 1", f"{octets}[{at}] += _size"]
        )

    def _register_read(self, field: FieldRef, register: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.registers[register.name]
        cells = self._context.bind("cells", array.name)
        full = (1 << array.width) - 1
        self._indexed(
            index,
            array.size,
            lambda at: [self._assignment(field, Code(f"{cells}[{at}]", ATOM, 0, full, full))],
        )

    def _register_write(self, register: ir.ObjectRef, index: ir.Expr, value: ir.Expr) -> None:
        array = self._context.program.kept.registers[register.name]
        cells = self._context.bind("cells", array.name)
        text = self._expressions.assigned(value, array.width).text
        self._indexed(index, array.size, lambda at: [f"{cells}[{at}] = {text}"])

    def _execute_meter(self, field: FieldRef, meter: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.meters[meter.name]
        cells = self._context.bind("meters", array.name)
        self._indexed(
            index,
            array.size,
            lambda at: [self._assignment(field, color_code(f"{cells}[{at}].execute(_size)"))],
        )

    def execute_direct_meter(self, meter: ir.MeterArrayDecl) -> None:
        """Set the target of the direct meter of `_slot`'s entry."""
        assert meter.target is not None
        self._writer.line("_meter = _slot[2].meter")
        value = color_code("(0 if _meter is None else _meter.execute(_size))")
        self._set(meter.target, value)

    def _generate_digest(self, _: ir.Expr, digest: ir.ObjectRef) -> None:
        # As in BMv2 it is sent after ingress, and only a packet's last one.
        number = self._context.program.kept.digests[digest.name].id
        self._writer.line(f"_digest = {number}")

    def _indexed(self, index: ir.Expr, size: int, body: Callable[[str], list[str]]) -> None:
        """Code for a cell of an array; a cell that is not there is neither read nor written."""
        code = self._expressions.data(index)
        at = code.text
        if not code.is_name and not code.text.isdigit():
            self._writer.line(f"_index = {code.text}")
            at = "_index"
        if code.low >= 0 and code.high < size:
            for line in body(at):
                self._writer.line(line)
            return
        test = f"{at} < {size}" if code.low >= 0 else f"0 <= {at} < {size}"
        self._writer.guarded(f"if {test}:", body(at), at)

    def _modify_field_with_hash_based_offset(
        self, field: FieldRef, base: ir.Expr, calculation: ir.ObjectRef, size: ir.Expr
    ) -> None:
        what = self._context.program.calculations[calculation.name]
        value = emit_hash(
            self._context, what, "_payload" if self._stage == "egress" else "_frame[_at:]"
        )
        base_code, size_code = self._expressions.data(base), self._expressions.data(size)
        # As in BMv2: an empty range counts as one of a single value.
        modulus = size_code.at(ATOM) if size_code.low > 0 else f"({size_code.at(OR)} or 1)"
        text = f"{value} % {modulus}"
        if base_code.low or base_code.high:
            text += f" + {base_code.at(ATOM)}"
        high = max(size_code.high, 1) + base_code.high
        self._set(field, Code(text, SUM, min(base_code.low, 0), high, (1 << high.bit_length()) - 1))

    def _modify_field_rng_uniform(self, field: FieldRef, low: ir.Expr, high: ir.Expr) -> None:
        low_code, high_code = self._expressions.data(low), self._expressions.data(high)
        self._writer.line(f"_low = {low_code.text}")
        self._writer.line(f"_high = {high_code.text}")
        with self._writer.block("if _low <= _high:"):
            least, most = min(low_code.low, 0), max(high_code.high, 0)
            text = f"{self._context.bind('random')}(_low, _high)"
            self._set(field, Code(text, ATOM, least, most, (1 << most.bit_length()) - 1))

    def _clone_ingress_pkt_to_egress(self, session: ir.Expr, kept: ir.FieldList) -> None:
        code = self._expressions.data(session)
        mask = self._names.constant(MAX_SESSION_ID)
        self._writer.line(f"_clone = {code.at(ATOM)} & {mask}")
        self._keep("clone", kept)

    _clone_egress_pkt_to_egress = _clone_ingress_pkt_to_egress

    def _resubmit(self, kept: ir.FieldList) -> None:
        self._writer.line("_resubmit = True")
        self._keep("resubmit", kept)

    def _recirculate(self, kept: ir.FieldList) -> None:
        self._writer.line("_recirculate = True")
        self._keep("recirculate", kept)

    def _keep(self, what: str, kept: ir.FieldList) -> None:
        """Note which of several field lists counts."""
        lists = self._context.stage(self._stage).kept[what]
        if len(lists) > 1:
            self._writer.line(f"_{what}_list = {lists.index(kept)}")

    def _truncate(self, length: ir.Expr) -> None:
        self._writer.line(f"_most = min(_most, {self._expressions.assigned(length, 32).text})")

    def _assert(self, condition: ir.Expr, kind: str, source: ir.SourceLocation) -> None:
        text, _ = self._expressions.condition(condition)
        with self._writer.block(f"if not ({text}):"):
            self._writer.line(f"{self._context.bind('assertion')}({kind!r}, {str(source)!r})")
            self._writer.line("return None" if self._stage == "egress" else "return []")

    def _log_msg(self, text: ir.Text, values: ir.Values) -> None:
        items = "".join(f"{self._expressions.data(item).text}, " for item in values.items)
        self._writer.line(f"{self._context.bind('log')}({text.value!r}, ({items}))")
