# SPDX-License-Identifier: Apache-2.0
"""Actions as C source: one emitter for each primitive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from p4reduce_switch.codegen_c.checksums import write_hash
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.flow import WrittenFields
from p4reduce_switch.codegen_c.text import paren
from p4reduce_switch.codegen_c.values import Value, constant, kind_of_width, limbs_of, make, stored
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.limits import MAX_ITERATIONS
from p4reduce_switch.program.usage import Stage
from p4reduce_switch.state.clone_sessions import MAX_SESSION_ID


class ActionWriter:
    """Writes the bodies of actions, in one stage of the pipeline.

    `leave`: the labels for `exit` and for a failed assertion.
    """

    def __init__(
        self, context: CContext, expressions: CExpressions, stage: Stage, exits: list[WrittenFields]
    ) -> None:
        self._context = context
        self._stage = stage
        self._expressions = expressions
        self._exits = exits
        """Takes the state of `Flow` at each `exit`."""

    def action(self, action: ir.Action, arguments: Sequence[Value]) -> None:
        """Return the body of an action with its parameters filled in."""
        self._expressions.params = dict(enumerate(arguments))
        self.statements(action.body)
        self._expressions.params = {}

    def statements(self, body: Iterable[ir.Statement]) -> None:
        for statement in body:
            if isinstance(statement, ir.If):
                self._if(statement)
                continue
            if isinstance(statement, ir.Jumps):
                self._jumps(statement)
                continue
            if self._context.is_dead(statement):
                continue
            self._context.writer.say(statement.source)
            if statement.op in ("assert", "assume"):
                (condition,) = statement.args
                self._assert(condition, statement.op, statement.source)  # type: ignore[arg-type]
            else:
                self._primitive(statement)

    def _primitive(self, primitive: ir.Primitive) -> None:
        """Write it by the method of its name. The loader has checked the arguments."""
        write: Callable[..., None] = getattr(self, f"_{primitive.op}")
        write(*primitive.args)

    def _if(self, statement: ir.If) -> None:
        """A chain of conditions; statements that compute one go into the branch before it."""
        context, flow = self._context, self._context.function.flow
        writer = context.writer
        ends = []
        opened = 0
        keyword = "if"
        while True:
            mark = writer.mark()
            condition = self._expressions.condition(statement.condition)
            beforehand = writer.take(mark) if keyword != "if" else []
            if beforehand:
                writer.line("else {")
                writer.depth += 1
                opened += 1
                writer.put(beforehand, deeper=1)
                keyword = "if"
            otherwise = flow.fork()
            with writer.block(f"{keyword} ({condition})"):
                self.statements(statement.then)
            ends.append(flow.resume(otherwise))
            match statement.otherwise:
                case (ir.If() as following,):
                    statement, keyword = following, "else if"
                case _:
                    break
        if statement.otherwise:
            with writer.block("else"):
                self.statements(statement.otherwise)
        for end in ends:
            flow.join(end)
        for _ in range(opened):
            writer.depth -= 1
            writer.line("}")

    def _jumps(self, jumps: ir.Jumps) -> None:
        """A label for each block; what jumps back is counted."""
        context, flow = self._context, self._context.function.flow
        writer = context.writer
        label = context.function.temporary("step")
        iterations = context.function.temporary("turns")
        if jumps.loops():
            writer.line(f"uint32_t {iterations} = {MAX_ITERATIONS};")

        def go(number: int, to: int) -> None:
            if to <= number:
                with writer.block(f"if (!--{iterations})"):
                    event = context.event("endless", str(jumps.source), ())
                    writer.line(f"p4r_event(&common->events, {event}, 0);")
                    writer.line("common->stats.dropped_loop++;")
                    writer.line("return;")
            writer.line(f"goto {label}_{to};")

        targets = set()
        for number, block in enumerate(jumps.blocks):
            targets |= {block.next} - {number + 1}
            targets |= {block.otherwise} if block.condition is not None else set()
        for number, block in enumerate(jumps.blocks):
            flow.forget()
            if number in targets:
                writer.line(f"{label}_{number}:;")
            with writer.block(""):
                self.statements(block.body)
                if block.condition is not None:
                    condition = self._expressions.condition(block.condition)
                    with writer.block(f"if (!({condition}))"):
                        go(number, block.otherwise)
                if block.next != number + 1:
                    go(number, block.next)
        flow.forget()
        if len(jumps.blocks) in targets:
            writer.line(f"{label}_{len(jumps.blocks)}:;")

    def set(self, field: FieldRef, value: Value) -> None:
        """Assign a value, truncated to the field's width."""
        value = self._expressions.fit(value, field.width, field.signed)
        name = self._context.field(field)
        kind = kind_of_width(field.width, field.signed)
        writer = self._context.writer
        if kind != "wide":
            writer.line(f"{name} = {self._expressions.scalar(value, kind)};")
            return
        limbs = limbs_of(field.width)
        text = self._expressions.wide.text(value, limbs, bare=True).replace("§", "i")
        writer.limbs(limbs, f"{name}[i] = {text};")
        self._context.function.flow.write(field)

    def assign(self, field: FieldRef, expr: ir.Expr) -> None:
        self.set(field, self._expressions.data(expr, field.width))

    _assign = assign

    # -- Headers -----------------------------------------------------------------------------------

    def _assign_header(self, target: ir.HeaderValue, origin: ir.HeaderValue) -> None:
        context = self._context
        headers = context.program.headers
        with context.optional(context.valid(origin.header)):
            context.writer.line(f"{context.valid(target.header)} = true;")
            pairs = zip(headers[target.header].state, headers[origin.header].state, strict=True)
            for to, from_ in pairs:
                if context.is_live(to):
                    self.set(to, self._expressions.field(from_))
        with context.writer.block("else"):
            context.writer.line(f"{context.valid(target.header)} = false;")

    def _swap_headers(self, one: ir.HeaderValue, other: ir.HeaderValue) -> None:
        context, writer = self._context, self._context.writer
        headers = context.program.headers
        left, right = context.valid(one.header), context.valid(other.header)
        kept = context.function.temporary("kept")
        writer.line(f"const bool {kept} = {left};")
        writer.line(f"{left} = {right};")
        writer.line(f"{right} = {kept};")
        for a, b in zip(headers[one.header].state, headers[other.header].state, strict=True):
            before = self._expressions.field(a)
            if before.kind != "wide":
                before = self._expressions.named(before, "kept")
                self.set(a, self._expressions.field(b))
                self.set(b, before)
                continue
            limbs = before.limbs
            name, other_name = context.field(a), context.field(b)
            self._expressions.field(b)  # which is read here
            kept = context.function.temporary("kept")
            writer.limbs(limbs, f"const uint64_t {kept} = {name}[i];")
            writer.limbs(limbs, f"{name}[i] = {other_name}[i];")
            writer.limbs(limbs, f"{other_name}[i] = {kept};")

    def _add_header(self, target: ir.HeaderValue) -> None:
        context, writer = self._context, self._context.writer
        header = context.program.headers[target.header]
        valid = context.valid(header.name)
        with context.optional(f"!{valid}"):
            writer.line(f"{valid} = true;")
            for field in header.fields:
                if context.is_live(field):
                    self.set(field, constant(0))
            # As in BMv2 a varbit field is as long as it was last; of zeros, that is.
            if self._context.length_matters(self._stage):
                writer.line(f"length += {context.size_of(header)};")

    def _remove_header(self, target: ir.HeaderValue) -> None:
        context = self._context
        header = context.program.headers[target.header]
        if self._context.length_matters(self._stage):
            with context.writer.block(f"if ({context.valid(header.name)})"):
                context.writer.line(f"length -= {context.size_of(header)};")
        self._invalidate(target)

    def _invalidate(self, target: ir.HeaderValue) -> None:
        context = self._context
        header = context.program.headers[target.header]
        context.writer.line(f"{context.valid(header.name)} = false;")
        packed_before = not context.packed_in_egress(header.name)
        if self._stage == "egress" and header.name in context.wire and packed_before:
            context.writer.line(f"{context.names.of('size', header.name)} = 0;")

    # -- Where packets go --------------------------------------------------------------------------

    def _mark_to_drop(self, *header: ir.HeaderValue) -> None:
        fields = self._context.program.drop_fields(*header)
        reads = self._context.usage.egress.reads
        for field in fields:
            if field.name == "egress_spec":
                port = make("u64", "common->drop_port", 0, (1 << 64) - 1, atom=True)
                self.set(field, port)
            elif self._stage != "egress" or field in reads:
                self.set(field, constant(0))

    _drop = _mark_to_drop

    def _exit(self) -> None:
        self._exits.append(self._context.function.flow.fork())
        self._context.writer.line(f"goto leave_{self._stage};")

    def _no_op(self) -> None:
        pass

    def _clone_ingress_pkt_to_egress(self, session: ir.Expr, kept: ir.FieldList) -> None:
        value = self._expressions.fit(self._expressions.data(session, 15), 15)
        assert MAX_SESSION_ID == (1 << 15) - 1
        self._context.writer.line(f"clone_session = (int32_t){paren(self._u64(value))};")
        self._keep("clone", kept)

    _clone_egress_pkt_to_egress = _clone_ingress_pkt_to_egress

    def _resubmit(self, kept: ir.FieldList) -> None:
        self._context.writer.line("resubmit = true;")
        self._keep("resubmit", kept)

    def _recirculate(self, kept: ir.FieldList) -> None:
        self._context.writer.line("recirculate = true;")
        self._keep("recirculate", kept)

    def _keep(self, what: str, kept: ir.FieldList) -> None:
        """Note which of several field lists counts."""
        lists = self._context.stage(self._stage).kept[what]
        if len(lists) > 1:
            self._context.writer.line(f"{what}_list = {lists.index(kept)};")

    def _truncate(self, length: ir.Expr) -> None:
        text = self._u64(self._expressions.assigned(length, 32))
        self._context.writer.line(f"most = p4r_clamp_u64(most, {text});")

    def _u64(self, value: Value) -> str:
        return self._expressions.scalar(value, "u64")

    # -- State -------------------------------------------------------------------------------------

    def _count(self, counter: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.counters[counter.name]
        if array.table is not None:
            return  # a direct counter counts with the table's hits
        at, test = self._cell(index, array.size)
        name = self._context.names.of("counter", array.name)
        with self._context.optional(test):
            self._context.writer.line(f"program->{name}.packets[{at}]++;")
            self._context.writer.line(f"program->{name}.bytes[{at}] += size;")

    def _cell(self, index: ir.Expr, size: int) -> tuple[str, str]:
        """Text of an index, and the condition that the cell is there (empty: it always is).

        A cell that is not there is neither read nor written.
        """
        value = self._expressions.data(index)
        if value.is_constant:
            return str(value.low), "" if 0 <= value.low < size else "false"
        if not value.atom:
            value = self._expressions.named(value, "index")
        if value.low >= 0 and value.high < size:
            return self._u64(value), ""
        tests = []
        if value.low < 0:
            tests.append(self._expressions.compare(">=", value, constant(0)))
        tests.append(self._expressions.compare("<", value, constant(size)))
        return self._expressions.scalar(value, "u64"), " && ".join(tests)

    def _register_read(self, field: FieldRef, register: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.registers[register.name]
        name = self._context.names.of("register", array.name)
        full = (1 << array.width) - 1
        kind = kind_of_width(array.width)
        if kind == "wide":
            self._read_wide(field, array, index)
            return
        at, test = self._cell(index, array.size)
        text = f"(uint64_t)program->{name}[{at}]" if kind == "u64" else f"program->{name}[{at}]"
        with self._context.optional(test):
            self.set(field, make(kind, text, 0, full))

    def _read_wide(self, field: FieldRef, array: ir.RegisterArray, index: ir.Expr) -> None:
        """A cell that is not there is taken to be what the field is already."""
        context, flow = self._context, self._context.function.flow
        limbs = limbs_of(array.width)
        full = (1 << array.width) - 1
        same = kind_of_width(field.width, field.signed) == "wide" and not field.signed
        same = same and field.width == array.width
        at, test = self._cell(index, array.size)
        cells = f"program->{context.names.of('register', array.name)}[{at}]"
        if not test or not same:
            with context.optional(test):
                cell = self._pointer("const uint64_t", cells, limbs, at)
                self.set(field, stored(cell, array.width, False, (0, full)))
            return
        name = context.field(field)
        fallback = name
        if flow.is_untouched(field):
            fallback = "no_limbs"  # zeros
        else:
            flow.read(field)
            context.writer.end_limbs()  # what may be read here, the loop before may write
        cell = self._pointer("const uint64_t", f"{test} ? {cells} : {fallback}", limbs, at)
        self.set(field, stored(cell, array.width, False, (0, full)))

    def _pointer(self, type_: str, text: str, limbs: int, at: str) -> str:
        """A pointer to a cell, also if the loop in which it is used has begun already."""
        name = self._context.function.temporary("cell")
        line = f"{type_} *const {name} = {text};"
        if at.isidentifier() and at.startswith(("f_", "arg_")):
            self._context.writer.before_limbs(limbs, line)
        else:
            self._context.writer.line(line)
        return name

    def _register_write(self, register: ir.ObjectRef, index: ir.Expr, value: ir.Expr) -> None:
        array = self._context.program.kept.registers[register.name]
        name = self._context.names.of("register", array.name)
        kind = kind_of_width(array.width)
        what = self._expressions.assigned(value, array.width)
        at, test = self._cell(index, array.size)
        writer = self._context.writer
        if kind != "wide":
            cast = {8: "(uint8_t)", 16: "(uint16_t)", 32: "(uint32_t)"}.get(_cell_bits(array), "")
            text = self._expressions.scalar(what, kind)
            with self._context.optional(test):
                writer.line(f"program->{name}[{at}] = {cast}{paren(text) if cast else text};")
            return
        limbs = limbs_of(array.width)
        cells = f"program->{name}[{at}]"
        place = f"{test} ? {cells} : program->nowhere" if test else cells
        cell = self._pointer("uint64_t", place, limbs, at)
        text = self._expressions.wide.text(what, limbs).replace("§", "i")
        writer.limbs(limbs, f"{cell}[i] = {text};")

    def _execute_meter(self, field: FieldRef, meter: ir.ObjectRef, index: ir.Expr) -> None:
        array = self._context.program.kept.meters[meter.name]
        name = self._context.names.of("meter", array.name)
        at, test = self._cell(index, array.size)
        with self._context.optional(test):
            text = f"p4r_meter_execute(&program->{name}[{at}], size, common->now_ns)"
            self.set(field, make("u64", text, 0, 2, atom=True))

    def execute_direct_meter(self, meter: ir.MeterArrayDecl, entry: str) -> None:
        """Set the target of an entry's direct meter."""
        assert meter.target is not None
        text = f"p4r_meter_execute({entry}->meter, size, common->now_ns)"
        self.set(meter.target, make("u64", text, 0, 2, atom=True))

    # -- Everything else ---------------------------------------------------------------------------

    def _generate_digest(self, _: ir.Expr, digest: ir.ObjectRef) -> None:
        # As in BMv2 it is sent after ingress, and only a packet's last one.
        number = sorted(self._context.program.kept.digests).index(digest.name) + 1
        self._context.writer.line(f"digest = {number}; /* which */")

    def _modify_field_with_hash_based_offset(
        self, field: FieldRef, base: ir.Expr, calculation: ir.ObjectRef, size: ir.Expr
    ) -> None:
        expressions = self._expressions
        what = self._context.program.calculations[calculation.name]
        payload = ("payload", "payload_size")
        if self._stage != "egress":
            payload = ("frame + at", "size - at")
        hashed = write_hash(self._context, what, payload)
        base_value, size_value = expressions.data(base), expressions.data(size)
        chosen = self._within(hashed, size_value)
        if base_value.is_constant and base_value.low == 0:
            self.set(field, chosen)
            return
        bounds = (chosen.low + base_value.low, chosen.high + base_value.high)
        total = expressions.operation("+", chosen, base_value, bounds, field.width)
        self.set(field, total)

    def _within(self, hashed: Value, size: Value) -> Value:
        """A hash modulo `size`. As in BMv2, an empty range counts as one of a single value."""
        expressions = self._expressions
        if size.low < 0:
            raise NotNativeError("the range of a hash is signed")
        high = min(hashed.high, max(size.high - 1, 0))
        if size.kind == "u64":
            text = f"p4r_mod64({hashed.text}, {self._u64(size)})"
            return make("u64", text, 0, high, atom=True)
        large = expressions.compare(">", size, constant((1 << 64) - 1))
        cut = self._u64(expressions.mask(size, (1 << 64) - 1))
        return make("u64", f"({large}) ? {hashed.text} : p4r_mod64({hashed.text}, {cut})", 0, high)

    def _modify_field_rng_uniform(self, field: FieldRef, low: ir.Expr, high: ir.Expr) -> None:
        context, expressions = self._context, self._expressions
        low_value, high_value = expressions.data(low), expressions.data(high)
        least, most = min(low_value.low, 0), max(high_value.high, 0)
        limbs = limbs_of(
            max(least.bit_length(), most.bit_length(), low_value.high.bit_length()) + 1
        )
        test = expressions.compare("<=", low_value, high_value)
        with context.optional(test):
            first = expressions.wide.array(low_value, limbs)
            last = expressions.wide.array(high_value, limbs)
            name, span = (context.function.temporary("random") for _ in range(2))
            context.function.take_stack(2 * limbs)
            context.writer.line(f"uint64_t {name}[{limbs}], {span}[{limbs}];")
            context.writer.line(
                f"p4r_random_between(&common->random, {name}, {first.name}, {last.name}, "
                f"{span}, {limbs});"
            )
            full = (1 << 64 * limbs) - 1
            if limbs <= 2:
                text = f"{name}[0]"
                if limbs == 2 and field.width > 64:
                    text = f"((p4r_u128){name}[1] << 64 | {name}[0])"
                    self.set(field, make("u128", text, 0, full))
                else:
                    self.set(field, make("u64", text, 0, (1 << 64) - 1, atom=True))
            else:
                self.set(field, stored(name, 64 * limbs, False, (0, full)))

    def _assert(self, condition: ir.Expr, kind: str, source: ir.SourceLocation) -> None:
        context = self._context
        text = self._expressions.condition(condition)
        with context.writer.block(f"if (!({text}))"):
            number = context.event(kind, str(source), ())
            context.writer.line(f"p4r_event(&common->events, {number}, 0);")
            context.writer.line("common->stats.dropped_assertion++;")
            context.writer.line("return;")

    def _log_msg(self, text: ir.Text, values: ir.Values) -> None:
        write_event(
            self._context,
            self._expressions,
            "log",
            text.value,
            [self._expressions.data(item) for item in values.items],
        )


def write_event(
    context: CContext, expressions: CExpressions, kind: str, text: str, values: Sequence[Value]
) -> None:
    """Record an event with values for Python."""
    writer = context.writer
    shapes = [
        (
            max(value.limbs, 1) if value.kind == "wide" else 2 if "128" in value.kind else 1,
            value.low < 0,
        )
        for value in values
    ]
    number = context.event(kind, text, shapes)
    words = sum(size for size, _ in shapes)
    arrays = [
        expressions.wide.array(value, size) if value.kind == "wide" else value
        for value, (size, _) in zip(values, shapes, strict=True)
    ]
    name = context.function.temporary("event")
    writer.line(f"uint64_t *const {name} = p4r_event(&common->events, {number}, {words});")
    if not values:
        return
    with writer.block(f"if ({name})"):
        at = 0
        for value, (size, signed) in zip(arrays, shapes, strict=True):
            if value.kind == "wide":
                writer.line(f"p4r_wide_copy({name} + {at}, {value.name}, {size});")
            elif size == 1:
                writer.line(f"{name}[{at}] = (uint64_t){paren(_raw(expressions, value))};")
            else:
                type_ = "i128" if signed else "u128"
                writer.line(
                    f"p4r_wide_from_{type_}({name} + {at}, {size}, {_raw(expressions, value)});"
                )
            at += size


def _raw(expressions: CExpressions, value: Value) -> str:
    return expressions.scalar(value, value.kind)


def _cell_bits(array: ir.RegisterArray) -> int:
    """How many bits a cell of a register takes in memory, up to 64."""
    return next((bits for bits in (8, 16, 32) if array.width <= bits), 64)
