# SPDX-License-Identifier: Apache-2.0
"""Ingress and egress as Python source.

A control becomes nested blocks (`program/control_walk.py`). If these get too large, it becomes a
sequence of `if _next == …` in topological order.
"""

from __future__ import annotations

from p4reduce_switch.codegen_python.actions import ActionEmitter
from p4reduce_switch.codegen_python.checksums import emit_hash
from p4reduce_switch.codegen_python.context import PyContext
from p4reduce_switch.codegen_python.expressions import ATOM, Code
from p4reduce_switch.program import ir
from p4reduce_switch.program.control_walk import ControlWalk, Proceed, TooLargeError
from p4reduce_switch.state.profiles import CHOOSE


def emit_control(context: PyContext, control: ir.Control) -> None:
    """Write a control. If its usage says that it exits, `break` leaves it."""
    if control.start is None:
        return
    is_ingress = control is context.program.ingress
    usage = context.usage.ingress if is_ingress else context.usage.egress
    writer = context.writer
    emitter = _Emitter(context, control)
    if usage.exits:
        with writer.block("while True:"):
            emitter.emit()
            writer.line("break")
    else:
        emitter.emit()


class _Emitter(ControlWalk):
    def __init__(self, context: PyContext, control: ir.Control) -> None:
        super().__init__(control)
        self._context = context
        self._writer = context.writer
        self._names = context.names
        self._expressions = context.expressions
        is_ingress = control is context.program.ingress
        self._actions = ActionEmitter(context, "ingress" if is_ingress else "egress")

    def emit(self) -> None:
        mark = self._writer.mark()
        try:
            self._nest()
        except TooLargeError:
            self._writer.rewind(mark)
            self._sequence()

    # -- Nested blocks -----------------------------------------------------------------------------

    @property
    def _depth(self) -> int:
        return self._writer.depth

    def _call(self, node: ir.DirectCall) -> None:
        self._actions.action(self._context.program.actions[node.action], ())

    def _branch(self, node: ir.Branch, join: str | None, keyword: str = "if") -> None:
        if keyword == "if" and node.source.line:
            self._context.point("line", "if", node.source)
        condition, _ = self._expressions.condition(node.condition)
        if node.if_true == join:
            with self._writer.block(f"{keyword} not ({condition}):"):
                self._region(node.if_false, join)
            return
        with self._writer.block(f"{keyword} {condition}:"):
            self._region(node.if_true, join)
        if node.if_false == join:
            return
        following = self._control.nodes[node.if_false] if node.if_false else None
        if isinstance(following, ir.Branch) and self._join[following.name] == join:
            self._budget -= 1
            self._branch(following, join, "elif")
            return
        with self._writer.block("else:"):
            self._region(node.if_false, join)

    # -- A sequence of nodes -----------------------------------------------------------------------

    def _sequence(self) -> None:
        numbers = {name: number for number, name in enumerate(self._order)}

        def goto(successor: str | None) -> None:
            number = -1 if successor is None else numbers[successor]
            self._writer.line(f"_next = {number}")

        goto(self._control.start)
        for name in self._order:
            node = self._control.nodes[name]
            with self._writer.block(f"if _next == {numbers[name]}:"):
                if isinstance(node, ir.Branch):
                    condition, _ = self._expressions.condition(node.condition)
                    with self._writer.block(f"if {condition}:"):
                        goto(node.if_true)
                    with self._writer.block("else:"):
                        goto(node.if_false)
                elif isinstance(node, ir.DirectCall):
                    self._call(node)
                    goto(node.next)
                else:
                    self._table(node, goto)

    # -- Tables ------------------------------------------------------------------------------------

    def _table(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        self._context.point("table", table.name, table.source)
        if table.const_default_action:
            if not table.key:
                self._count_miss(table)
                self._const_default(table)
                self._after(table, proceed, table.default_action, hit=False)
                return
            self._writer.line(f"_slot = {self._lookup(table)}")
            misses_matter = self._context.misses_matter(table)
            if misses_matter:
                with self._writer.block("if _slot is None:"):
                    self._count_miss(table)
                    self._const_default(table)
                    self._go_inside(table, proceed, table.default_action, hit=False)
            with self._writer.block("else:" if misses_matter else "if _slot is not None:"):
                self._touch(table)
                self._run_slot(table, proceed)
                if table.next_by_action is None:
                    self._go_inside(table, proceed, None, hit=True)
        elif not table.key:
            self._writer.line(f"_slot = {self._context.bind('default', table.name)}[0]")
            self._run_slot(table, proceed)
            if table.next_by_action is None:
                self._go_inside(table, proceed, None, hit=False)
        else:
            self._fallible(table, proceed)
        if len(table.successors) == 1:
            proceed(table.successors[0])

    def _fallible(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        """A table with a key, whose default entry the control plane may change."""
        needs_hit = table.goes_on_by_hit
        default = self._context.bind("default", table.name)
        self._writer.line(f"_slot = {self._lookup(table)}")
        hit = f"_hit_{self._order.index(table.name)}"
        if needs_hit:
            self._writer.line(f"{hit} = _slot is not None")
        with self._writer.block("if _slot is None:"):
            self._writer.line(f"_slot = {default}[0]")
        if table.hits_are_noted:
            with self._writer.block("else:"):
                self._touch(table)
        self._run_slot(table, proceed)
        if needs_hit:
            with self._writer.block(f"if {hit}:"):
                proceed(table.next_hit)
            with self._writer.block("else:"):
                proceed(table.next_miss)

    def _lookup(self, table: ir.ApplyTable) -> str:
        key = ", ".join(self._key_field(field) for field in table.key)
        lookup = self._context.bind("lookup", table.name)
        return f"{lookup}(({key}))" if len(table.key) > 1 else f"{lookup}({key})"

    def _key_field(self, key: ir.KeyField) -> str:
        text = self._expressions.data(key.field).at(ATOM)
        if key.mask is not None and key.mask != (1 << key.width) - 1:
            text = f"{text} & {self._names.constant(key.mask)}"
        header = self._context.header_of_key(key)
        return text if header is None else f"{text} if {self._names.valid(header)} else 0"

    def _const_default(self, table: ir.ApplyTable) -> None:
        action = self._context.program.actions[table.default_action]
        arguments = [self._expressions.data(ir.Const(value)) for value in table.default_args]
        self._actions.action(action, arguments)

    def _count_miss(self, table: ir.ApplyTable) -> None:
        """Count a packet that finds the default entry of the program."""
        if table.has_direct_counter:
            self._writer.line(f"_slot = {self._context.bind('default', table.name)}[0]")
            self._count()

    def _count(self) -> None:
        """Count a packet that finds the entry of `_slot`."""
        self._writer.line("_entry = _slot[2]")
        self._writer.line("_entry.packets += 1")
        self._writer.line("_entry.bytes += _size")

    def _run_slot(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        """Count the packet for the entry of `_slot`, and run its action."""
        actions = [self._context.program.actions[action] for action in table.actions]
        if table.has_direct_counter:
            self._count()
        if not self._context.runs_anything(table):
            return
        by_action = table.goes_on_by_action
        only_one = len(actions) == 1
        if table.profile is not None and table.profile.selector is not None:
            self._choose(table.profile.selector)
        self._writer.line("_action, _args, _ = _slot")
        for index, action in enumerate(actions):
            if only_one:
                self._inline(table, action, proceed, by_action)
                return
            last = index == len(actions) - 1
            head = "if" if index == 0 else "elif"
            with self._writer.block("else:" if last else f"{head} _action == {index}:"):
                self._inline(table, action, proceed, by_action)

    def _touch(self, table: ir.ApplyTable) -> None:
        """What a hit does to the entry before its action runs."""
        if table.has_idle_timeout:
            self._writer.line(f"_slot[2].last_hit_ns = {self._context.bind('clock')}()")
        if table.meter is not None:
            self._actions.execute_direct_meter(table.meter)

    def _choose(self, selector: ir.Calculation) -> None:
        """If the entry leads to a group, take the choice that the hash of the selector key says."""
        with self._writer.block(f"if _slot[0] == {CHOOSE}:"):
            value = emit_hash(self._context, selector, "b''")
            self._writer.line("_choices = _slot[1]")
            chosen = f"_choices[({value} & 0xFFFFFFFF) % len(_choices)]"
            self._writer.line(f"_slot = (*{chosen}, _slot[2])")

    def _inline(
        self, table: ir.ApplyTable, action: ir.Action, proceed: Proceed, by_action: bool
    ) -> None:
        arguments = []
        if action.params:
            names = [self._names.argument(param.index, param.name) for param in action.params]
            self._writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = _args")
            for name, param in zip(names, action.params, strict=True):
                arguments.append(Code(name, ATOM, param.low, param.high, param.high))
        self._actions.action(action, arguments)
        if by_action and table.next_by_action is not None:
            proceed(table.next_by_action[action.id])
