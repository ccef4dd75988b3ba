# SPDX-License-Identifier: Apache-2.0
"""Actions: their parameters and primitives. Jumps become conditionals again.

Other jumps (loops, and `return`, `break` and `continue` within conditionals) become blocks with a
successor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.elements import load_statements
from p4reduce_switch.loader.expressions import Params
from p4reduce_switch.loader.json_values import (
    Json,
    as_number,
    as_text,
    as_width,
    constant_of,
    located,
    source_of,
)
from p4reduce_switch.loader.structs import copy_of_struct
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import SourceLocation, Statement
from p4reduce_switch.program.limits import MAX_DEPTH
from p4reduce_switch.program.load_error import LoadError


def load_action(context: LoaderContext, item: Json) -> ir.Action:
    source = source_of(item)
    params = tuple(
        ir.Param(
            index,
            as_text(param["name"], "the name of an action parameter"),
            # An entry gives one of no bits as well; nothing reads it.
            as_width(param["bitwidth"] or 1, f"parameter {param['name']}"),
            (item["id"], index) in context.negative_arguments,
        )
        for index, param in enumerate(item["runtime_data"])
    )
    primitives = item["primitives"]
    if not item.get("source_info") and primitives:
        source = source_of(primitives[0])
    values = [
        param if item["runtime_data"][param.index]["bitwidth"] else ir.Const(0) for param in params
    ]
    loader = _Body(context, primitives, values)
    try:
        body = loader.block(0, len(primitives), source)
    except _OtherJump:
        body = (loader.jumps(source),)
    name = as_text(item["name"], "the name of an action")
    return ir.Action(as_number(item["id"], f"the id of {name}"), name, params, body, source)


class _OtherJump(Exception):  # noqa: N818
    """A jump that is not part of a plain conditional."""


class _Body:
    """The primitives of one action."""

    def __init__(self, context: LoaderContext, primitives: Sequence[Json], params: Params) -> None:
        self._context = context
        self._primitives = primitives
        self._params = params
        self._depth = 0

    def block(self, start: int, end: int, source: SourceLocation) -> tuple[Statement, ...]:
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
                elif item["op"] == "_jump":
                    raise _OtherJump
                else:
                    copy = copy_of_struct(self._context, item, where)
                    if copy is None:
                        copy = load_statements(self._context, item, where, self._params)
                    statements += copy
                    index += 1
        return tuple(statements)

    def _conditional(
        self, item: Json, index: int, end: int, source: SourceLocation
    ) -> tuple[Statement, int]:
        """The conditional that begins with a jump, and the index of what comes after it."""
        condition = self._context.expressions.condition(item["parameters"][0], source, self._params)
        target = _forward(item["parameters"][1], index, end)
        then_end, after = target, target
        last = self._primitives[target - 1]
        if target - 1 > index and last["op"] == "_jump":
            then_end = target - 1
            after = _forward(last["parameters"][0], target - 1, end)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise LoadError(f"{source}: more than {MAX_DEPTH} nested conditionals")
        then = self.block(index + 1, then_end, source)
        otherwise = self.block(target, after, source)
        self._depth -= 1
        return ir.If(condition, then, otherwise), after

    # -- Other jumps -------------------------------------------------------------------------------

    def jumps(self, source: SourceLocation) -> ir.Jumps:
        """All primitives, in blocks from one jump or jump's target to the next."""
        count = len(self._primitives)
        starts = {0}
        for index, item in enumerate(self._primitives):
            if item["op"] in _JUMPS:
                with located(source_of(item, source)):
                    starts |= {index + 1, self._target(item, source)}
        bounds = sorted(starts | {count})
        numbers = {start: number for number, start in enumerate(bounds)}
        blocks = [
            self._block(start, end, numbers, source) for start, end in itertools.pairwise(bounds)
        ]
        return ir.Jumps(tuple(blocks), source)

    def _block(
        self, start: int, end: int, numbers: Mapping[int, int], source: SourceLocation
    ) -> ir.Block:
        last = self._primitives[end - 1]
        where = source_of(last, source)
        if last["op"] not in _JUMPS:
            return ir.Block(self.block(start, end, source), None, numbers[end], numbers[end])
        body = self.block(start, end - 1, source)
        target = numbers[self._target(last, where)]
        if last["op"] == "_jump":
            return ir.Block(body, None, target, target)
        with located(where):
            parameter = last["parameters"][0]
            condition = self._context.expressions.condition(parameter, where, self._params)
        return ir.Block(body, condition, numbers[end], target)

    def _target(self, item: Json, source: SourceLocation) -> int:
        target = constant_of(item["parameters"][_JUMPS[item["op"]]])
        if target is None or not 0 <= target <= len(self._primitives):
            raise LoadError(
                f"{source}: a jump to {target}, in an action of {len(self._primitives)} primitives"
            )
        return target


_JUMPS = {"_jump": 0, "_jump_if_zero": 1}
"""Each jump, and which of its parameters says where to."""


def _forward(item: Json, index: int, end: int) -> int:
    """Where a jump goes to that is part of a plain conditional."""
    target = constant_of(item)
    if target is None or not index < target <= end:
        raise _OtherJump
    return target
