# SPDX-License-Identifier: Apache-2.0
"""The parser's states, and the order of the deparser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.elements import at_run_time, invalidations, load_statements
from p4reduce_switch.loader.expressions import RUN_TIME_ELEMENT
from p4reduce_switch.loader.json_values import (
    Json,
    as_hex,
    as_number,
    as_text,
    as_width,
    find,
    located,
    refusal,
    source_of,
)
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import HeaderStack, do_at_index
from p4reduce_switch.program.ir import NOWHERE, FieldRef, SourceLocation
from p4reduce_switch.program.limits import MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError

# Hidden metadata for what parsers select on.
_KEYS = "$keys"


def load_parser(
    context: LoaderContext, parsers: Sequence[Json], errors: Mapping[str, int]
) -> ir.Parser:
    if len(parsers) != 1:
        raise LoadError(f"there are {len(parsers)} parsers; v1model has one")
    loader = _States(context, errors)
    states = {item["name"]: loader.state(item) for item in parsers[0]["parse_states"]}
    for state in states.values():
        for next_state in (*(case.next_state for case in state.cases), state.default):
            if next_state is not None:
                find(states, next_state, "parser state", NOWHERE)
    start = parsers[0]["init_state"]
    find(states, start, "parser state", NOWHERE)
    return ir.Parser(start, states)


def load_deparser(context: LoaderContext, deparsers: Sequence[Json]) -> tuple[str, ...]:
    """Return the headers that leave, in order."""
    if len(deparsers) != 1:
        raise LoadError(f"there are {len(deparsers)} deparsers; v1model has one")
    if primitives := deparsers[0].get("primitives"):
        raise refusal(f"'{primitives[0]['op']}' in the deparser", source_of(primitives[0]))
    source = source_of(deparsers[0])
    return tuple(context.headers.header(name, source) for name in deparsers[0]["order"])


class _States:
    """Loads states, and puts what they select on into hidden fields where it is no field."""

    def __init__(self, context: LoaderContext, errors: Mapping[str, int]) -> None:
        self._context = context
        self._out_of_bounds = errors.get("StackOutOfBounds", 1)
        self._headers = context.headers
        self._expressions = context.expressions
        self._keys: list[FieldRef] = []

    def state(self, item: Json) -> ir.ParserState:
        name = as_text(item["name"], "the name of a parser state")
        source = source_of(item, SourceLocation(f"parser state {name}"))
        ops: list[ir.ParserOp] = []
        for op in item["parser_ops"]:
            where = _with_state(source_of(op, source), name)
            with located(where):
                ops += self._op(op, name, where)
        with located(source):
            key = [self._key(part, ops, source) for part in item["transition_key"]]
        cases = []
        default: str | None = None
        for transition in item["transitions"]:
            kind = transition["type"]
            if kind == "default":
                default = transition["next_state"]
            elif kind == "hexstr":
                cases.append(_case(transition, key))
            else:
                cases.append(self._value_set_case(transition, key, source))
        return ir.ParserState(name, tuple(ops), tuple(key), tuple(cases), default)

    # -- Operations --------------------------------------------------------------------------------

    def _op(self, item: Json, state: str, source: SourceLocation) -> list[ir.ParserOp]:
        """An operation, and what it does to other headers of a union."""
        op, args = item["op"], item["parameters"]
        if op == "primitive":
            statements = load_statements(self._context, args[0], source_of(args[0], source))
            checks = self._bounds_checks(args[0], source)
            return [*checks, *(ir.Execute(statement) for statement in statements)]
        if op == "set":
            if self._headers.is_empty(args[0]):
                return []
            assigned = self._assigned(args, source)
            if assigned is not None:
                return [ir.Execute(statement) for statement in assigned]
        if op in ("extract", "extract_VL"):
            return self._extract(item, state, source)
        return [self._plain_op(item, state, source)]

    def _bounds_checks(self, item: Json, source: SourceLocation) -> list[ir.ParserOp]:
        """Tests of whether a stack has the `last` or `next` that a primitive copies.

        P4_16 says that parsing stops where it has not. (BMv2 copies neither.)
        """
        checks: list[ir.ParserOp] = []
        kinds = ir.PRIMITIVES.get(item["op"], ())
        for kind, argument in zip(kinds, item["parameters"], strict=False):
            if kind == "header" and (part := self._expressions.last_or_next(argument, source)):
                stack, index = part
                inside = ir.Binary("<", index, ir.Const(len(stack.elements)))
                there = ir.Binary(">=", index, ir.Const(0))
                bounds = ir.Binary("and", there, inside)
                checks.append(ir.Verify(bounds, ir.Const(self._out_of_bounds)))
        return checks

    def _assigned(
        self, args: Sequence[Json], source: SourceLocation
    ) -> tuple[ir.Statement, ...] | None:
        """An assignment of a varbit field, or with an element at a run-time index; else None."""
        if args[0]["type"] == args[1]["type"] == "field":
            origin = self._expressions.value(args[1], source)
            if isinstance(origin, FieldRef) and self._headers.varbit(origin) is not None:
                varbit = {"op": "assign_VL", "parameters": args}
                return load_statements(self._context, varbit, source)
        return at_run_time(self._context, {"op": "assign", "parameters": args}, source)

    def _plain_op(self, item: Json, state: str, source: SourceLocation) -> ir.ParserOp:
        op, args = item["op"], item["parameters"]
        if op == "set":
            field = self._expressions.target(args[0], source)
            self._headers.check_fixed("'set'", field, source)
            if args[1]["type"] == "lookahead":
                return ir.Peek(field, *_lookahead(args[1]["value"]))
            value = self._expressions.data(args[1], source)
            return ir.Execute(ir.Primitive("assign", (field, value), source))
        if op == "verify":
            condition = self._expressions.condition(args[0], source)
            return ir.Verify(condition, self._expressions.data(args[1], source))
        if op == "advance":
            return ir.Advance(self._expressions.data(args[0], source))
        if op == "shift":
            return ir.Advance(ir.Const(8 * as_number(args[0], f"{source}: a shift", 0, MAX_WIDTH)))
        raise refusal(f"parser operation '{op}' in parser state '{state}'", source)

    def _extract(self, item: Json, state: str, source: SourceLocation) -> list[ir.ParserOp]:
        """Extraction, with or without a varbit field, of a header or a stack's next one."""
        op, args = item["op"], item["parameters"]
        bits = self._expressions.data(args[1], source) if op == "extract_VL" else None
        if args[0]["type"] in ("stack", "union_stack"):
            stack = self._next_of(args[0], source)
            headers: tuple[str, ...] = stack.elements
        else:
            stack = None
            headers = (self._extracted(args[0], state, source),)
        if (self._headers.by_name[headers[0]].varbit is None) != (bits is None):
            varbit = "a" if bits is None else "no"
            raise LoadError(
                f"{source}: '{op}' into '{headers[0]}', which has {varbit} varbit field"
            )
        if stack is not None:
            extracted = ir.ExtractNext(headers, stack.next, bits)
            return [extracted, *self._others_of_last(stack, source)]
        single = ir.Extract(headers[0]) if bits is None else ir.ExtractVariable(headers[0], bits)
        return [single, *map(ir.Execute, invalidations(self._headers, headers[0], source))]

    def _next_of(self, item: Json, source: SourceLocation) -> HeaderStack:
        """The stack that is extracted into; of a stack of unions that of one of their headers."""
        if item["type"] == "stack":
            return self._headers.stack(item["value"], source)
        name, member = item["value"]
        return self._headers.union_stack(name, source).column(member)

    def _others_of_last(self, stack: HeaderStack, source: SourceLocation) -> list[ir.ParserOp]:
        """What happens to the other headers of the union that was extracted into."""
        others = partial(invalidations, self._headers, source=source)
        if not any(map(others, stack.elements)):
            return []
        return [ir.Execute(s) for s in do_at_index(stack, stack.last_index(), others)]

    def _extracted(self, item: Json, state: str, source: SourceLocation) -> str:
        if item["type"] != "regular":
            raise refusal(f"extract into a {item['type']} in parser state '{state}'", source)
        if not isinstance(item["value"], str):
            raise refusal(f"extract into {RUN_TIME_ELEMENT}", source)
        return self._headers.header(item["value"], source)

    # -- Select ------------------------------------------------------------------------------------

    def _key(self, item: Json, ops: list[ir.ParserOp], source: SourceLocation) -> FieldRef:
        """The field to select on; a value that is no field is first copied into a hidden one."""
        if item["type"] == "lookahead":
            offset, width = _lookahead(item["value"])
            hidden = self._hidden(width)
            ops.append(ir.Peek(hidden, offset, width))
            return hidden
        value = self._expressions.value(item, source)
        if isinstance(value, FieldRef):
            self._headers.check_fixed("select", value, source)
            return value
        if last := self._expressions.last_field(item, source):
            stack, name = last
            width = self._headers.field(stack.elements[0], name, source).width
        elif element_field := self._expressions.element_field(item, source):
            stack, _, number = element_field
            width = self._headers.by_name[stack.elements[0]].fields[number].width
        else:
            raise refusal("select on a value that is not a field", source)
        hidden = self._hidden(width)
        ops.append(ir.Execute(ir.Primitive("assign", (hidden, value), source)))
        return hidden

    def _hidden(self, width: int) -> FieldRef:
        hidden = FieldRef(_KEYS, f"key{len(self._keys)}", width)
        self._keys.append(hidden)
        self._headers.by_name[_KEYS] = ir.HeaderInstance(_KEYS, tuple(self._keys), is_metadata=True)
        return hidden

    def _value_set_case(
        self, item: Json, key: Sequence[FieldRef], source: SourceLocation
    ) -> ir.SelectCase:
        if item["mask"] is not None:
            raise refusal("value set with a mask", source)
        name = item["value"]
        widths = tuple(field.width for field in key)
        before = find(self._context.kept.value_sets, name, "parser value set", source)
        if before.widths and before.widths != widths:
            raise refusal(f"value set '{name}' of keys of different widths", source)
        self._context.kept.value_sets[name] = ir.ValueSetDecl(name, widths, before.size)
        return ir.SelectCase((), (), item["next_state"], name)


def _case(item: Json, key: Sequence[FieldRef]) -> ir.SelectCase:
    widths = [field.width for field in key]
    values = _unpack(as_hex(item["value"], "a value to select"), widths)
    full = [(1 << width) - 1 for width in widths]
    masks = _unpack(as_hex(item["mask"], "a mask"), widths) if item["mask"] is not None else full
    return ir.SelectCase(
        tuple(value & mask for value, mask in zip(values, masks, strict=True)),
        tuple(mask & all_ for mask, all_ in zip(masks, full, strict=True)),
        item["next_state"],
    )


def _unpack(value: int, widths: Iterable[int]) -> list[int]:
    """Split a concatenation of fields, each padded to whole bytes."""
    parts = []
    for width in reversed(list(widths)):
        bits = (width + 7) // 8 * 8
        parts.append(value & ((1 << bits) - 1))
        value >>= bits
    return parts[::-1]


def _lookahead(value: Any) -> tuple[int, int]:
    """The offset and the width, in bits, of a lookahead."""
    if not isinstance(value, list) or len(value) != 2:
        raise LoadError(f"a lookahead is {value!r}, not a pair of an offset and a width")
    return (
        as_number(value[0], "the offset of a lookahead", 0, MAX_WIDTH),
        as_width(value[1], "a lookahead"),
    )


def _with_state(source: SourceLocation, state: str) -> SourceLocation:
    """p4c gives parser states no source line: name the state instead."""
    return source if source.line else SourceLocation(f"parser state {state}", 0)
