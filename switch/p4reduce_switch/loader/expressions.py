# SPDX-License-Identifier: Apache-2.0
"""Loads expressions, and checks their operands' types.

`header_stacks.py` turns `last`, `lastIndex` and stack elements at a run-time index into expressions
of plain fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from p4reduce_switch.loader.headers import Headers
from p4reduce_switch.loader.json_values import Json, as_hex, as_number, as_text, as_width, refusal
from p4reduce_switch.loader.value_bits import check_bits
from p4reduce_switch.program import ir
from p4reduce_switch.program.header_stacks import HeaderStack, at_index
from p4reduce_switch.program.ir import FieldRef, SourceLocation
from p4reduce_switch.program.limits import MAX_DEPTH, MAX_PARTS
from p4reduce_switch.program.load_error import LoadError

Params = Sequence[ir.Expr]

# Types of values that are not supported, and how the language calls them.
UNSUPPORTED_VALUES = {
    "lookahead": "lookahead",
    "header_union": "header union",
    "header_union_stack": "stack of header unions",
    "register": "register as an expression",
    "meter_array": "meter",
    "extern": "extern instance",
}

RUN_TIME_ELEMENT = "an element of a header stack at a run-time index"


def unwrapped(item: Any) -> Any:
    """Remove the wrapper of the same type that p4c sometimes puts around an expression."""
    while isinstance(item, dict) and item.get("type") == "expression":
        item = item["value"]
    return item


class ExpressionLoader:
    """Makes expressions from JSON. `params` are those of the enclosing action."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._depth = 0

    # -- By what they are for ----------------------------------------------------------------------

    def data(self, item: Json, source: SourceLocation, params: Params = ()) -> ir.Expr:
        """Return an integer expression."""
        expr = self.value(item, source, params)
        if isinstance(expr, ir.BoolConst):
            return ir.Const(int(expr.value))
        return _typed("data", expr, "assign", source)

    def condition(self, item: Json, source: SourceLocation, params: Params = ()) -> ir.Expr:
        expr = self.value(item, source, params)
        if ir.type_of(expr) == "data":
            return ir.Unary("d2b", expr)
        return _typed("bool", expr, "condition", source)

    def field(
        self, item: Json, source: SourceLocation, otherwise: str, params: Params = ()
    ) -> FieldRef:
        """Return a field. `otherwise` names other things in its place, for the error."""
        field = self.value(item, source, params)
        if not isinstance(field, FieldRef):
            raise refusal(otherwise, source)
        return field

    def target(self, item: Json, source: SourceLocation, params: Params = ()) -> FieldRef:
        """Return the target of an assignment."""
        return self.field(item, source, "assignment to a value that is not a field", params)

    def element(
        self, item: Any, source: SourceLocation, params: Params = ()
    ) -> tuple[HeaderStack, ir.Expr] | None:
        """Return a stack element at a run-time index; None for others."""
        item = unwrapped(item)
        if not isinstance(item, dict) or item.get("op") != "dereference_header_stack":
            return None
        stack = self._headers.stack(item["left"]["value"], source)
        index = self.data(item["right"], source, params)
        # Each element is compared with the index, and so each with that in it.
        most = MAX_PARTS // len(stack.elements)
        if sum(1 for _ in islice(ir.walk(index), most + 1)) > most:
            raise refusal(f"index of '{stack.name}' of more than {most} parts", source)
        return stack, index

    def element_field(
        self, item: Any, source: SourceLocation, params: Params = ()
    ) -> tuple[HeaderStack, ir.Expr, int] | None:
        """Return a field of a stack element at a run-time index, and the field's number; None for
        others."""
        operation = unwrapped(item)
        if operation.get("op") != "access_field":
            return None
        element = self.element(operation["left"], source, params)
        if element is None:
            return None
        return *element, as_number(operation["right"], "the number of a field")

    def last_or_next(self, item: Any, source: SourceLocation) -> tuple[HeaderStack, ir.Expr] | None:
        """Return a stack's `last` or `next` as a whole header, and its index; None for others.

        Use it only for arguments that are headers, because p4c writes a field called "last" in the
        same way. For a stack of unions it names a header of the last union.
        """
        item = unwrapped(item)
        if not isinstance(item, dict) or item.get("type") != "stack_field":
            return None
        stack_name, name = item["value"]
        if self._headers.is_union_stack(stack_name):
            column = self._headers.union_stack(stack_name, source).column(name)
            return column, column.last_index()
        stack = self._headers.stack(stack_name, source)
        if name == "next":
            return stack, stack.next
        if name != "last":
            raise LoadError(f"{source}: stack '{stack_name}' has no header '{name}'")
        return stack, stack.last_index()

    def last_field(self, item: Json, source: SourceLocation) -> tuple[HeaderStack, str] | None:
        """Return the name of a field of a stack's last header, and the stack; None for others.

        For a stack of unions it is a header of the last union. p4c then writes that header before
        the field's name, while BMv2 looks for three names.
        """
        kind, value = item["type"], item["value"]
        if kind == "stack_field":
            stack, name = value
            return self._headers.stack(stack, source), as_text(name, "the name of a field")
        if kind == "field" and self._headers.is_union_stack(value[0]):
            member, _, name = as_text(value[1], "the name of a field").partition(".")
        elif kind == "union_stack_field":
            _, member, name = value
        else:
            return None
        return self._headers.union_stack(value[0], source).column(member), name

    # -- By what they are --------------------------------------------------------------------------

    def value(self, item: Json, source: SourceLocation, params: Params = ()) -> ir.Expr:
        """Return any expression with a value."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise LoadError(f"{source}: more than {MAX_DEPTH} nested operations")
        expr = self._value(item, source, params)
        self._depth -= 1
        if not self._depth:
            check_bits(expr, source)
        return expr

    def _value(self, item: Json, source: SourceLocation, params: Params) -> ir.Expr:
        if self._headers.is_empty(item):
            return ir.Const(0)
        kind = item["type"]
        value = item["value"]
        if last := self.last_field(item, source):
            stack, name = last
            return stack.last_field(lambda header: self._headers.field(header, name, source))
        if kind == "field":
            header, name = value
            if element := self.element(header, source, params):
                return at_index(
                    *element,
                    lambda taken: self.value({"type": kind, "value": [taken, name]}, source),
                    ir.Const(0),
                )
            if name == "$valid$":
                return ir.Valid(self._headers.header(header, source), is_bool=False)
            return self._headers.field(header, name, source)
        if kind == "expression":
            # Either an operation or a wrapper, as in `unwrapped`.
            return (
                self._operation(value, source, params)
                if "op" in value
                else self.value(value, source, params)
            )
        if kind == "hexstr":
            return ir.Const(as_hex(value, f"{source}: a constant"))
        if kind == "bool":
            return ir.BoolConst(bool(value))
        if kind in ("runtime_data", "local"):
            return params[as_number(value, "the index of an action parameter")]
        if kind == "header":
            return ir.HeaderValue(self._headers.header(value, source))
        raise refusal(UNSUPPORTED_VALUES.get(kind, f"value of type '{kind}'"), source)

    def _operation(self, item: Json, source: SourceLocation, params: Params) -> ir.Expr:
        op = item["op"]
        if op == "?":
            choice = ir.Ternary(
                _typed("bool", self.value(item["cond"], source, params), op, source),
                self.value(item["left"], source, params),
                self.value(item["right"], source, params),
            )
            _typed(ir.type_of(choice.left), choice.right, op, source)
            return choice
        if op == "last_stack_index":
            return self._headers.any_stack(item["right"]["value"], source).last_index()
        if element_field := self.element_field(item, source, params):
            stack, index, number = element_field
            headers = self._headers.by_name
            return at_index(stack, index, lambda name: headers[name].fields[number], ir.Const(0))
        if op == "valid":
            return self._valid(item["right"], source, params)
        if op == "valid_union":
            return self._valid_union(item["right"]["value"], source)
        if op in ("==", "!=") and self._is_union(item["left"]):
            return self._same_union(op, item["left"]["value"], item["right"]["value"], source)
        if op in ir.UNARY_OPERATORS:
            right = self.value(item["right"], source, params)
            return ir.Unary(op, _typed(ir.UNARY_OPERATORS[op][0], right, op, source))
        if op in ir.BINARY_OPERATORS:
            return self._binary(op, item, source, params)
        if op == "dereference_header_stack":
            raise refusal(f"this use of {RUN_TIME_ELEMENT}", source)
        raise refusal(f"operator '{op}'", source)

    def _valid(self, item: Json, source: SourceLocation, params: Params) -> ir.Expr:
        if element := self.element(item, source, params):
            return at_index(
                *element, lambda header: ir.Valid(header, is_bool=True), ir.BoolConst(False)
            )
        return ir.Valid(self._headers.header(item["value"], source), is_bool=True)

    def _is_union(self, item: Json) -> bool:
        return item["type"] == "header_union" or (
            item["type"] == "header" and self._headers.is_union(item["value"])
        )

    def _valid_union(self, name: str, source: SourceLocation) -> ir.Expr:
        """Whether one of its headers is valid."""
        valid: ir.Expr = ir.BoolConst(False)
        for header in reversed(self._headers.union(name, source)):
            test = ir.Valid(header, is_bool=True)
            valid = test if isinstance(valid, ir.BoolConst) else ir.Binary("or", test, valid)
        return valid

    def _same_union(self, op: str, left: str, right: str, source: SourceLocation) -> ir.Expr:
        """As in BMv2: the same header is valid in both, with the same fields."""
        one, other = (self._headers.union(name, source) for name in (left, right))
        same: ir.Expr = ir.BoolConst(False)
        for a, b in zip(one, other, strict=True):
            test = ir.Binary("==h", ir.HeaderValue(a), ir.HeaderValue(b))
            same = test if isinstance(same, ir.BoolConst) else ir.Binary("or", same, test)
        return same if op == "==" else ir.Unary("not", same)

    def _binary(self, op: str, item: Json, source: SourceLocation, params: Params) -> ir.Expr:
        right = self.value(item["right"], source, params)
        left = self.value(item["left"], source, params)
        if op in ("==", "!="):
            op += {"data": "", "bool": "b", "header": "h"}[ir.type_of(left)]
        for operand in (left, right):
            _typed(ir.BINARY_OPERATORS[op][0], operand, op, source)
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            if not isinstance(right, ir.Const):
                raise refusal(f"operator '{op}' with a width that is not constant", source)
            as_width(right.value, f"operator '{op}'")
        return ir.Binary(op, left, right)


def _typed(wanted: ir.ExprType, expr: ir.Expr, op: str, source: SourceLocation) -> ir.Expr:
    if ir.type_of(expr) != wanted:
        raise LoadError(
            f"{source}: an operand of '{op}' is of type {ir.type_of(expr)}, not {wanted}"
        )
    return expr
