# SPDX-License-Identifier: Apache-2.0
"""Actions: their parameters, and their primitives with conditionals made of jumps again."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_switch.loader.context import Context
from p4reduce_switch.loader.elements import load_statements
from p4reduce_switch.loader.expressions import Params
from p4reduce_switch.loader.json_values import (
    Json,
    as_number,
    as_text,
    as_width,
    constant_of,
    located,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Source, Statement
from p4reduce_switch.program.limits import MAX_DEPTH
from p4reduce_switch.program.load_error import LoadError

__all__ = ["load_action"]


def load_action(context: Context, item: Json) -> ir.Action:
    source = source_of(item)
    params = tuple(
        ir.Param(
            index,
            as_text(param["name"], "the name of an action parameter"),
            as_width(param["bitwidth"], f"parameter {param['name']}"),
        )
        for index, param in enumerate(item["runtime_data"])
    )
    primitives = item["primitives"]
    if not item.get("source_info") and primitives:
        source = source_of(primitives[0])
    body = _Body(context, primitives, params).block(0, len(primitives), source)
    name = as_text(item["name"], "the name of an action")
    return ir.Action(as_number(item["id"], f"the id of {name}"), name, params, body, source)


class _Body:
    """The primitives of one action."""

    def __init__(self, context: Context, primitives: Sequence[Json], params: Params) -> None:
        self._context = context
        self._primitives = primitives
        self._params = params
        self._depth = 0

    def block(self, start: int, end: int, source: Source) -> tuple[Statement, ...]:
        """Primitives start..end-1, with p4c's forward jumps turned into conditionals again."""
        statements: list[Statement] = []
        index = start
        while index < end:
            item = self._primitives[index]
            where = source_of(item, source)
            with located(where):
                if item["op"] == "_jump_if_zero":
                    conditional, index = self._conditional(item, index, end, where)
                    statements.append(conditional)
                else:
                    statements += load_statements(self._context, item, where, self._params)
                    index += 1
        return tuple(statements)

    def _conditional(
        self, item: Json, index: int, end: int, source: Source
    ) -> tuple[Statement, int]:
        """The conditional that begins with a jump, and the index of what comes after it."""
        condition = self._context.expressions.condition(item["parameters"][0], source, self._params)
        target = _jump_target(item["parameters"][1], index, end, source)
        then_end, after = target, target
        last = self._primitives[target - 1]
        if target - 1 > index and last["op"] == "_jump":
            then_end = target - 1
            after = _jump_target(last["parameters"][0], target - 1, end, source)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise LoadError(f"{source}: more than {MAX_DEPTH} conditionals within each other")
        then = self.block(index + 1, then_end, source)
        otherwise = self.block(target, after, source)
        self._depth -= 1
        return ir.If(condition, then, otherwise), after


def _jump_target(item: Json, index: int, end: int, source: Source) -> int:
    target = constant_of(item)
    if target is None or not index < target <= end:
        raise refusal("loop in an action, or a jump that is no plain conditional,", source)
    return target
