# SPDX-License-Identifier: Apache-2.0
"""Ingress and egress as C source.

A control is a graph of tables and conditions, which p4c made from structured source. The branches
of an `if` join at its immediate post-dominator, the first node that all paths from it reach. If
paths join elsewhere, as with p4c's `return`, the nodes in between are written more than once, up to
a limit. If nested blocks get too large, each node gets a label instead, and edges become `goto`.
"""

from __future__ import annotations

from functools import partial

from p4reduce_switch.codegen_c.actions import ActionWriter
from p4reduce_switch.codegen_c.context import CContext
from p4reduce_switch.codegen_c.expressions import CExpressions
from p4reduce_switch.codegen_c.flow import WrittenFields
from p4reduce_switch.codegen_c.tables import TableWriter
from p4reduce_switch.codegen_c.text import flatten_else
from p4reduce_switch.program import ir
from p4reduce_switch.program.graphs import post_dominators, topological_order
from p4reduce_switch.program.usage import Stage

DEEPEST = 60  # blocks within each other


def write_control(context: CContext, expressions: CExpressions, control: ir.Control) -> None:
    """Write a control. `exit` jumps to the label at its end."""
    is_ingress = control is context.program.ingress
    stage = "ingress" if is_ingress else "egress"
    exits: list[WrittenFields] = []
    if control.start is not None:
        _ControlWriter(context, expressions, control, exits).write()
    usage = context.usage.ingress if is_ingress else context.usage.egress
    if usage.exits:
        context.writer.line(f"leave_{stage}:;")
        for state in exits:
            context.function.flow.join(state)


class _TooLargeError(Exception):
    """The control cannot be written as nested blocks."""


class _ControlWriter:
    def __init__(
        self,
        context: CContext,
        expressions: CExpressions,
        control: ir.Control,
        exits: list[WrittenFields],
    ) -> None:
        self._control = control
        self._order = topological_order(control)
        self._join = post_dominators(control, self._order)
        self._budget = 0  # nodes that may still be written
        self._context = context
        self._expressions = expressions
        self._stage: Stage = "ingress" if control is context.program.ingress else "egress"
        self._actions = ActionWriter(context, expressions, self._stage, exits)
        self._tables = TableWriter(context, expressions, self._actions)

    def write(self) -> None:
        writer = self._context.writer
        mark = writer.mark()
        flow = self._context.function.flow
        before = flow.fork()
        try:
            self._nest()
        except _TooLargeError:
            writer.rewind(mark)
            flow.resume(before)
            self._sequence()

    # -- Nested blocks -----------------------------------------------------------------------------

    def _nest(self) -> None:
        """Write all of it. Raises _TooLargeError, with a part of it written."""
        self._budget = 4 * len(self._order) + 16
        self._region(self._control.start, None)

    def _region(self, name: str | None, stop: str | None) -> None:
        """Write the nodes from `name` until `stop`, which comes after them."""
        while name != stop:
            assert name is not None
            self._budget -= 1
            if self._budget < 0 or self._context.writer.depth > DEEPEST:
                raise _TooLargeError
            node = self._control.nodes[name]
            join = self._join[name]
            if isinstance(node, ir.Branch):
                self._branch(node, join)
            elif isinstance(node, ir.DirectCall):
                self._call(node)
            else:
                self._tables.write(node, partial(self._region, stop=join))
            name = join

    def _call(self, node: ir.DirectCall) -> None:
        self._actions.action(self._context.program.actions[node.action], ())

    def _branch(self, node: ir.Branch, join: str | None) -> None:
        writer, flow = self._context.writer, self._context.function.flow
        writer.say(node.source)
        condition = self._expressions.condition(node.condition)
        if join in (node.if_true, node.if_false):
            test, direction = f"!({condition})", node.if_false
            if node.if_true != join:
                test, direction = condition, node.if_true
            with self._context.optional(test):
                self._region(direction, join)
            return
        otherwise = flow.fork()
        with writer.block(f"if ({condition})"):
            self._region(node.if_true, join)
        then = flow.resume(otherwise)
        mark = writer.mark()
        with writer.block("else"):
            self._region(node.if_false, join)
        flatten_else(writer, mark)
        flow.join(then)

    # -- A sequence of nodes -----------------------------------------------------------------------

    def _sequence(self) -> None:
        writer, flow = self._context.writer, self._context.function.flow
        numbers = {name: number for number, name in enumerate(self._order)}

        def goto(successor: str | None) -> None:
            label = "end" if successor is None else str(numbers[successor])
            writer.line(f"goto {self._stage}_{label};")

        goto(self._control.start)
        for name in self._order:
            node = self._control.nodes[name]
            flow.forget()
            writer.line(f"{self._stage}_{numbers[name]}:;")
            with writer.block(""):
                if isinstance(node, ir.Branch):
                    condition = self._expressions.condition(node.condition)
                    with writer.block(f"if ({condition})"):
                        goto(node.if_true)
                    goto(node.if_false)
                elif isinstance(node, ir.DirectCall):
                    self._call(node)
                    goto(node.next)
                else:
                    self._tables.write(node, goto)
        flow.forget()
        writer.line(f"{self._stage}_end:;")
