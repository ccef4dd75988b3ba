# SPDX-License-Identifier: Apache-2.0
"""The tables of a control as C source: looking a key up, running the action, and going on."""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.checksums import write_hash
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.keys import write_key
from p4reduce_switch.codegen_c.text import flatten_else
from p4reduce_switch.codegen_c.values import (
    C_TYPES,
    Value,
    constant,
    kind_of_width,
    limbs_of,
    literal,
    make,
    stored,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.decisions import Decision, Leaf, decision_tree

Proceed = Callable[["str | None"], None]
"""Writes how to go on to a node (None: the end)."""


class TableWriter:
    """Writes tables.

    Args:
        context: the program, and the code so far.
        expressions: of its function.
        actions: writes the actions that tables run.
    """

    def __init__(self, context: CContext, expressions: CExpressions, actions: ActionWriter) -> None:
        self._context = context
        self._expressions = expressions
        self._actions = actions

    def write(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        """Look a key up, run the action, and go on by hit or miss or by action."""
        writer, flow = self._context.writer, self._context.function.flow
        writer.say(table.source)
        writer.comment(f"table {table.name}")
        if table.const_default_action:
            if not table.key:
                self._count(table, self._miss(table))
                self._const_default(table)
                self._after(table, proceed, table.default_action, hit=False)
                return
            tree = self._tree(table)
            if tree is not None:
                self._decide(table, tree)
                proceed(table.successors[0])
                return
            entry = self._lookup(table)
            misses_matter = self._context.misses_matter(table)
            before = flow.fork()
            missed = before
            if misses_matter:
                with writer.block(f"if (!{entry})"):
                    self._count(table, self._miss(table))
                    self._const_default(table)
                    self._go_inside(table, proceed, table.default_action, hit=False)
                missed = flow.resume(before)
            with writer.block("else" if misses_matter else f"if ({entry})"):
                self._touch(table, entry)
                self._count(table, entry)
                self._run(table, proceed, f"{entry}->choices")
                if table.next_by_action is None:
                    self._go_inside(table, proceed, None, hit=True)
            flow.join(missed)
        elif not table.key:
            self._count(table, self._miss(table))
            self._run(table, proceed, f"{self._miss(table)}->choices")
            if table.next_by_action is None:
                self._go_inside(table, proceed, None, hit=False)
        else:
            self._fallible(table, proceed)
        if len(table.successors) == 1:
            proceed(table.successors[0])

    def _go_inside(
        self, table: ir.ApplyTable, proceed: Proceed, action: int | None, *, hit: bool
    ) -> None:
        """Continue within a branch, unless all branches go on to the same node."""
        if len(table.successors) > 1:
            self._after(table, proceed, action, hit=hit)

    def _after(
        self, table: ir.ApplyTable, proceed: Proceed, action: int | None, *, hit: bool
    ) -> None:
        if table.next_by_action is None:
            proceed(table.next_hit if hit else table.next_miss)
        elif action is not None:
            proceed(table.next_by_action[action])

    # -- Tables with the program's own entries ---------------------------------------------------

    def _tree(self, table: ir.ApplyTable) -> Decision | None:
        """The table as a tree of tests, if looking it up does nothing but run an action."""
        narrow = all(key.width <= 64 for key in table.key)
        counts = table.has_direct_counter or table.hits_are_noted
        if counts or not narrow or table.profile is not None or len(table.successors) > 1:
            return None
        return decision_tree(table)

    def _decide(self, table: ir.ApplyTable, tree: Decision) -> None:
        """Run the tree, or look the key up if somebody has changed the entries."""
        context, writer, flow = self._context, self._context.writer, self._context.function.flow
        expressions = self._expressions
        keys = []
        for field in table.key:
            text = expressions.scalar(self._key_field(field), kind_of_width(field.width))
            keys.append(context.function.temporary("key"))
            writer.line(f"const uint64_t {keys[-1]} = {text};")
        before = flow.fork()
        with writer.block(f"if (program->{context.names.of('table', table.name)}.fixed)"):
            self._tree_node(table, tree, keys)
        decided = flow.resume(before)
        with writer.block("else"):
            entry = self._lookup(table)
            start = flow.fork()
            with writer.block(f"if ({entry})"):
                self._run(table, lambda _: None, f"{entry}->choices")
            hit = flow.resume(start)
            with writer.block("else"):
                self._const_default(table)
            flow.join(hit)
        flow.join(decided)

    def _tree_node(self, table: ir.ApplyTable, node: Decision, keys: list[str]) -> None:
        writer, flow = self._context.writer, self._context.function.flow
        if isinstance(node, Leaf):
            if node.entry is None:
                self._const_default(table)
            else:
                action = self._context.program.actions[node.entry.action]
                self._actions.action(action, [constant(value) for value in node.entry.args])
            return
        test, key = node.test, keys[node.test.field]
        masked = key
        if test.mask != (1 << table.key[test.field].width) - 1:
            masked = f"({key} & {literal(test.mask, 'u64')})"
        before = flow.fork()
        with writer.block(f"if ({masked} == {literal(test.value, 'u64')})"):
            self._tree_node(table, node.if_true, keys)
        then = flow.resume(before)
        mark = writer.mark()
        with writer.block("else"):
            self._tree_node(table, node.if_false, keys)
        flatten_else(writer, mark)
        flow.join(then)

    def _fallible(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        """A table with a key, whose default entry the control plane may change."""
        writer, flow = self._context.writer, self._context.function.flow
        needs_hit = table.goes_on_by_hit
        entry = self._lookup(table)
        if table.hits_are_noted:
            with self._context.optional(entry):
                self._touch(table, entry)
        found = f"({entry} ? {entry} : {self._miss(table)})"
        self._count(table, found)
        self._run(table, proceed, f"{found}->choices")
        if needs_hit:
            before = flow.fork()
            with writer.block(f"if ({entry})"):
                proceed(table.next_hit)
            hit = flow.resume(before)
            with writer.block("else"):
                proceed(table.next_miss)
            flow.join(hit)

    def _miss(self, table: ir.ApplyTable) -> str:
        """The default entry."""
        return f"program->{self._context.names.of('table', table.name)}.miss"

    def _count(self, table: ir.ApplyTable, entry: str) -> None:
        """Count a packet that finds an entry."""
        if table.has_direct_counter:
            self._context.writer.line(f"p4r_entry_count({entry}, size);")

    def _lookup(self, table: ir.ApplyTable) -> str:
        """Statements that look a key up; the variable that has the entry, or NULL."""
        context, writer = self._context, self._context.writer
        key, words = write_key(
            context,
            self._expressions,
            [(self._key_field(field), field.width) for field in table.key],
        )
        entry = context.function.temporary("entry")
        name = context.names.of("table", table.name)
        writer.line(
            f"struct p4r_entry *const {entry} = p4r_table_find(&program->{name}, {key}, {words});"
        )
        return entry

    def _key_field(self, key: ir.KeyField) -> Value:
        expressions, context = self._expressions, self._context
        value = expressions.fit(expressions.data(key.field), key.width)
        if key.mask is not None and key.mask != (1 << key.width) - 1:
            value = expressions.mask(value, key.mask)
        header = context.header_of_key(key)
        if header is None or (value.is_constant and value.low == 0):
            return value
        valid = context.valid(header)
        kind = kind_of_width(key.width)
        if kind == "wide" or value.kind == "wide":
            bounds = (0, value.high)
            limbs = limbs_of(key.width)
            return expressions.wide.choice(valid, value, constant(0), limbs, bounds, value.ones)
        text = f"{valid} ? {expressions.scalar(value, kind)} : 0"
        return make(kind, text, 0, value.high, value.ones)

    def _const_default(self, table: ir.ApplyTable) -> None:
        action = self._context.program.actions[table.default_action]
        self._actions.action(action, [constant(value) for value in table.default_args])

    def _run(self, table: ir.ApplyTable, proceed: Proceed, choices: str) -> None:
        """Run the action of the choices."""
        context, writer, flow = self._context, self._context.writer, self._context.function.flow
        actions = [context.program.actions[action] for action in table.actions]
        if not self._context.runs_anything(table):
            return
        by_action = table.goes_on_by_action
        only_one = len(actions) == 1
        choice = context.function.temporary("choice")
        if table.profile is not None and table.profile.selector is not None:
            choice = self._choose(table.profile.selector, choices, choice)
        else:
            writer.line(f"const struct p4r_choice *const {choice} = &{choices}->choice[0];")
        if only_one:
            self._inline(table, actions[0], proceed, by_action, choice)
            return
        before = flow.fork()
        ends = []
        with writer.block(f"switch ({choice}->action)"):
            for index, action in enumerate(actions):
                last = index == len(actions) - 1
                flow.resume(before)
                with writer.block("default:" if last else f"case {index}:"):
                    writer.comment(action.name)
                    self._inline(table, action, proceed, by_action, choice)
                    writer.line("break;")
                ends.append(flow.fork())
        for end in ends[:-1]:
            flow.join(end)

    def _touch(self, table: ir.ApplyTable, entry: str) -> None:
        """What a hit does to the entry before its action runs."""
        if table.has_idle_timeout:
            self._context.writer.line(f"{entry}->last_hit_ns = common->now_ns;")
        if table.meter is not None:
            self._actions.execute_direct_meter(table.meter, entry)

    def _choose(self, selector: ir.Calculation, choices: str, choice: str) -> str:
        """If the entry leads to a group, take the choice that the hash of the selector key says."""
        context, writer = self._context, self._context.writer
        hashed = context.function.temporary("hash")
        all_choices = context.function.temporary("choices")
        writer.line(f"const struct p4r_choices *const {all_choices} = {choices};")
        writer.line(f"uint64_t {hashed} = 0;")
        with writer.block(f"if ({all_choices}->chooses)"):
            value = write_hash(context, selector, None)
            writer.line(f"{hashed} = {value.text};")
        writer.line(
            f"const struct p4r_choice *const {choice} = p4r_choose({all_choices}, {hashed});"
        )
        return choice

    def _inline(
        self,
        table: ir.ApplyTable,
        action: ir.Action,
        proceed: Proceed,
        by_action: bool,
        choice: str,
    ) -> None:
        writer = self._context.writer
        arguments: list[Value] = []
        at = 0
        for param in action.params:
            name = self._context.names.of("arg", f"{action.name}_{param.name}")
            name = self._context.function.temporary(name)
            width = param.width + param.negative  # a bit more for the sign
            kind = kind_of_width(width, param.negative)
            limbs = limbs_of(width)
            words = f"{choice}->arguments"
            if limbs > 2:
                writer.line(f"const uint64_t *const {name} = {words} + {at};")
            else:
                text = f"{words}[{at}]"
                if limbs == 2:
                    text = f"((p4r_u128){words}[{at + 1}] << 64 | {text})"
                writer.line(f"const {C_TYPES[kind]} {name} = ({C_TYPES[kind]}){text};")
            arguments.append(stored(name, width, param.negative, (param.low, param.high)))
            at += limbs
        self._actions.action(action, arguments)
        if by_action and table.next_by_action is not None:
            proceed(table.next_by_action[action.id])
