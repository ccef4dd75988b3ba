# SPDX-License-Identifier: Apache-2.0
"""From p4c's BMv2 JSON to a checked `Program`.

The format is behavioral-model's docs/JSON_format.md, version 2. Whatever is not supported is
refused here, with its name and source line, so that a program that loads also runs as written.
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from . import program as ir
from .header_stacks import STACKS, HeaderStack, at_index, do_at_index, hidden_metadata
from .program import NOWHERE, FieldRef, Source
from .tables import MatchKind

__all__ = ["HASH_ALGORITHMS", "LoadError", "load"]

HASH_ALGORITHMS = frozenset(
    {
        "cksum16",
        "crc16",
        "crc16_custom",
        "crc32",
        "crc32_custom",
        "crcCCITT",
        "csum16",
        "identity",
        "xor16",
        "xor32",
    }
)

_T = TypeVar("_T")
_Json = Mapping[str, Any]


class LoadError(Exception):
    """The program cannot be loaded; the message names the construct and the source line."""


def load(config: bytes | str) -> ir.Program:
    """Load a program.

    Raises:
        LoadError: `config` is not BMv2 JSON, or needs what this switch does not support.
    """
    try:
        root = json.loads(config)
    except (ValueError, UnicodeDecodeError) as error:
        raise LoadError(f"not JSON: {error}") from None
    if not isinstance(root, dict):
        raise LoadError("the JSON is not an object; p4c's output for BMv2 is")
    try:
        return _Loader(root).program()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # The checks below are for what p4c can produce; damaged JSON ends up here.
        raise LoadError(f"not the BMv2 JSON format: {type(error).__name__}: {error}") from error


# Top-level lists of objects that are not supported, and how the language calls them.
_UNSUPPORTED_LISTS = {
    "header_union_stacks": "stack of header unions",
    "extern_instances": "extern instance",
}
_UNSUPPORTED_VALUES = {
    "lookahead": "lookahead",
    "union_stack_field": "field of a stack of header unions",
    "header_union": "header union",
    "header_union_stack": "stack of header unions",
    "register": "register as an expression",
    "meter_array": "meter",
    "extern": "extern instance",
}


_NOTHING = ir.Action(-1, "", (), (), ir.NOWHERE)
"""What an indirect table does on a miss, or with an empty group."""


# Hidden metadata for what parsers select on.
_KEYS = "$keys"


def _refuse(construct: str, source: Source) -> NoReturn:
    where = f"{source}: " if source.filename else ""
    raise LoadError(f"{where}{construct} is not supported")


def _source(json_object: _Json, default: Source = ir.NOWHERE) -> Source:
    info = json_object.get("source_info")
    if not info:
        return default
    return Source(info.get("filename", ""), info.get("line", 0), info.get("source_fragment", ""))


def _find(items: Mapping[Any, _T], key: Any, what: str, source: Source) -> _T:
    try:
        return items[key]
    except KeyError:
        raise LoadError(f"{source}: there is no {what} {key!r}") from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{what} is {value!r}, not a string")
    return value


def _number(value: Any, what: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LoadError(f"{what} is {value!r}, not an integer of at least {least}")
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise LoadError(f"{what} is {value!r}, not true or false")
    return value


def _lookahead(value: Any) -> tuple[int, int]:
    """The offset and the width, in bits, of a lookahead."""
    if not isinstance(value, list) or len(value) != 2:
        raise LoadError(f"a lookahead is {value!r}, not a pair of an offset and a width")
    return (
        _number(value[0], "the offset of a lookahead"),
        _number(value[1], "the width of a lookahead", 1),
    )


class _Loader:
    def __init__(self, root: _Json) -> None:
        self._root = root
        self._headers: dict[str, ir.Header] = {}
        self._fields: dict[tuple[str, str], FieldRef] = {}
        self._counters: dict[str, ir.CounterArray] = {}
        self._registers: dict[str, ir.RegisterArray] = {}
        self._calculations: dict[str, ir.Calculation] = {}
        self._actions: dict[int, ir.Action] = {}
        self._profiles: dict[str, ir.ActionProfile] = {}
        self._meters: dict[str, ir.MeterArray] = {}
        self._digests: dict[str, ir.Digest] = {}
        self._field_lists: dict[int, ir.FieldList] = {}
        self._stacks: dict[str, HeaderStack] = {}
        self._most: dict[str, int] = {}
        """Most bytes of each header with a varbit field."""
        self._siblings: dict[str, tuple[str, ...]] = {}
        """Header of a union -> the union's other headers, which become invalid when it is valid."""
        self._unions: dict[str, tuple[str, ...]] = {}
        self._keys: list[FieldRef] = []
        self._value_sets: dict[str, ir.ValueSet] = {}

    def program(self) -> ir.Program:
        root = self._root
        self._keys.clear()
        version = root.get("__meta__", {}).get("version", [2, 0])
        if version[0] != 2:
            raise LoadError(f"BMv2 JSON version {version[0]}.{version[1]}; version 2 is needed")
        for key, construct in _UNSUPPORTED_LISTS.items():
            for item in root.get(key, ()):
                _refuse(f"{construct} '{item['name']}'", _source(item))
        self._load_headers()
        self._load_state()
        self._load_digests()
        for item in root.get("field_lists", ()):
            self._field_lists[item["id"]] = self._field_list(item)
        for item in root["calculations"]:
            self._calculations[item["name"]] = self._calculation(item)
        for item in root["actions"]:
            self._actions[item["id"]] = self._action(item)
        verify, update = self._checksums()
        controls = {item["name"]: self._control(item) for item in root["pipelines"]}
        for name in controls.keys() - {"ingress", "egress"}:
            raise LoadError(f"pipeline '{name}' is not of the v1model architecture")
        for name, control in controls.items():
            self._check_stage(name, control)
        empty = {name: ir.Control(name, None, {}) for name in ("ingress", "egress")}
        return ir.Program(
            headers=self._headers,
            errors=dict(root.get("errors", ())),
            intrinsic=self._intrinsic(),
            parser=self._parser(),
            verify=verify,
            ingress=controls.get("ingress", empty["ingress"]),
            egress=controls.get("egress", empty["egress"]),
            update=update,
            deparser=self._deparser(),
            actions=self._actions,
            calculations=self._calculations,
            counters=self._counters,
            registers=self._registers,
            meters=self._meters,
            value_sets=self._value_sets,
            digests=self._digests,
        )

    # -- Headers, state ----------------------------------------------------------------------------

    def _load_headers(self) -> None:
        types = {item["name"]: item for item in self._root["header_types"]}
        for item in self._root["headers"]:
            name = _text(item["name"], "the name of a header")
            type_ = _find(types, item["header_type"], "header type", _source(item))
            fields: list[FieldRef] = []
            tail: FieldRef | None = None
            for field_name, width, *signed in type_["fields"]:
                if tail is not None or (width == "*" and not fields):
                    _refuse(
                        f"varbit field in '{name}' that is not the last of several fields",
                        _source(type_, _source(item)),
                    )
                if width == "*":
                    tail = FieldRef(ir.VARBITS, f"{name}.{field_name}", 0)
                    self._most[name] = _number(type_["max_length"], f"the length of {name}")
                    continue
                _number(width, f"the width of field {name}.{field_name}", 1)
                _text(field_name, f"the name of a field of header {name}")
                fields.append(FieldRef(name, field_name, width, bool(signed and signed[0])))
            header = ir.Header(name, tuple(fields), bool(item["metadata"]), tail)
            if not header.is_metadata and header.bits % 8:
                raise LoadError(f"header '{name}' has {header.bits} bits, not a multiple of 8")
            self._headers[name] = header
            self._fields.update(((name, field.name), field) for field in fields)
        tails = tuple(h.tail for h in self._headers.values() if h.tail is not None)
        if tails:
            self._headers[ir.VARBITS] = ir.Header(ir.VARBITS, tails, is_metadata=True)
        numbers = {item["id"]: item["name"] for item in self._root["headers"]}
        for item in self._root.get("header_stacks", ()):
            name = _text(item["name"], "the name of a header stack")
            elements = tuple(
                self._header(numbers[number], NOWHERE) for number in item["header_ids"]
            )
            self._check_fixed(f"stack '{name}'", elements, NOWHERE)
            self._stacks[name] = HeaderStack(name, elements)
        for item in self._root.get("header_unions", ()):
            name = _text(item["name"], "the name of a header union")
            members = tuple(self._header(numbers[number], NOWHERE) for number in item["header_ids"])
            self._unions[name] = members
            self._check_fixed(f"union '{name}'", members, NOWHERE)
            for member in members:
                self._siblings[member] = tuple(other for other in members if other != member)
        if self._stacks:
            self._headers[STACKS] = hidden_metadata(tuple(self._stacks.values()))

    def _load_state(self) -> None:
        for item in self._root.get("parse_vsets", ()):
            name = _text(item["name"], "the name of a parser value set")
            size = _number(item["max_size"], f"the size of parser value set {name}")
            self._value_sets[name] = ir.ValueSet(name, (), size)
        sizes = {
            table["name"]: _number(table["max_size"], f"the size of table {table['name']}")
            for pipeline in self._root["pipelines"]
            for table in pipeline["tables"]
        }
        for item in self._root.get("counter_arrays", ()):
            name = _text(item["name"], "the name of a counter")
            is_direct = _flag(item["is_direct"], f"is_direct of counter {name}")
            table = item["binding"] if is_direct else None
            if table is None:
                size = _number(item["size"], f"the size of counter {name}")
            else:
                size = _find(sizes, table, "table", _source(item))
            self._counters[name] = ir.CounterArray(name, size, table)
        self._load_meters(sizes)
        for item in self._root.get("register_arrays", ()):
            name = _text(item["name"], "the name of a register")
            width = _number(item["bitwidth"], f"the width of register {name}", 1)
            size = _number(item["size"], f"the size of register {name}")
            self._registers[name] = ir.RegisterArray(name, width, size)

    def _load_meters(self, table_sizes: Mapping[str, int]) -> None:
        for item in self._root.get("meter_arrays", ()):
            name = _text(item["name"], "the name of a meter")
            source = _source(item)
            if item["rate_count"] != 2:
                _refuse(f"meter '{name}' of {item['rate_count']} rates", source)
            table, target = None, None
            if _flag(item["is_direct"], f"is_direct of meter {name}"):
                table = item["binding"]
                size = _find(table_sizes, table, "table", source)
                target = self._field(item["result_target"][0], item["result_target"][1], source)
            else:
                size = _number(item["size"], f"the size of meter {name}")
            in_bytes = item["type"] == "bytes"
            self._meters[name] = ir.MeterArray(name, size, in_bytes, table, target)

    def _load_digests(self) -> None:
        for item in self._root.get("learn_lists", ()):
            name = _text(item["name"], "the name of a digest")
            fields = []
            for part in item["elements"]:
                field = self._value(part, (), _source(item))
                if not isinstance(field, FieldRef):
                    _refuse(f"digest '{name}' of something else than fields", _source(item))
                fields.append(field)
            number = _number(item["id"], f"the id of digest {name}", 1)
            if name in self._digests:
                _refuse(f"digest '{name}' at several places", _source(item))
            self._digests[name] = ir.Digest(number, name, tuple(fields))

    def _intrinsic(self) -> dict[str, FieldRef]:
        found = {
            field.name: field
            for (header, _), field in self._fields.items()
            if header == "standard_metadata"
        }
        for alias, (header, name) in self._root.get("field_aliases", ()):
            found[alias.split(".", 1)[1]] = self._field(header, name, ir.NOWHERE)
        for name in ("ingress_port", "packet_length", "instance_type", "egress_spec"):
            if name not in found:
                raise LoadError(f"there is no field standard_metadata.{name}, which v1model needs")
        return found

    def _check_fixed(self, what: str, headers: Iterable[str], source: Source) -> None:
        """Headers with varbit fields can be extracted, made valid or not, and go out; no more."""
        for header in headers:
            if self._headers[header].tail is not None:
                _refuse(f"{what} with varbit header '{header}'", source)

    def _field(self, header: str, name: str, source: Source) -> FieldRef:
        if (tail := self._headers[header].tail) is not None and tail.name == f"{header}.{name}":
            _refuse(f"varbit field '{header}.{name}' in an expression or assignment", source)
        return _find(self._fields, (header, name), "field", source)

    def _header(self, name: str, source: Source) -> str:
        header = _find(self._headers, name, "header", source)
        if header.is_metadata:
            raise LoadError(f"{source}: '{name}' is metadata, not a header")
        return header.name

    # -- Expressions -------------------------------------------------------------------------------

    def _value(self, item: _Json, params: Sequence[ir.Param], source: Source) -> ir.Expr:
        kind = item["type"]
        value = item["value"]
        if kind == "hexstr":
            return ir.Const(int(value, 16))
        if kind == "bool":
            return ir.BoolConst(bool(value))
        if kind == "field":
            header, name = value
            if name == "$valid$":
                return ir.Valid(self._header(header, source), is_bool=False)
            return self._field(header, name, source)
        if kind in ("runtime_data", "local"):
            return params[_number(value, "the index of an action parameter")]
        if kind == "header":
            return ir.HeaderValue(self._header(value, source))
        if kind == "stack_field":
            name = _text(value[1], "the name of a field")
            stack = _find(self._stacks, value[0], "header stack", source)
            return stack.last_field(lambda header: self._field(header, name, source))
        if kind == "expression":
            # p4c wraps an expression into another object of the same type now and then.
            return (
                self._operation(value, params, source)
                if "op" in value
                else self._value(value, params, source)
            )
        _refuse(_UNSUPPORTED_VALUES.get(kind, f"value of type '{kind}'"), source)

    def _operation(self, item: _Json, params: Sequence[ir.Param], source: Source) -> ir.Expr:
        op = item["op"]
        if op == "?":
            choice = ir.Choice(
                self._typed("bool", self._value(item["cond"], params, source), op, source),
                self._value(item["left"], params, source),
                self._value(item["right"], params, source),
            )
            self._typed(ir.type_of(choice.left), choice.right, op, source)
            return choice
        if op == "last_stack_index":
            return _find(self._stacks, item["right"]["value"], "header stack", source).last_index()
        if op == "access_field" and self._is_element(item["left"]):
            stack, index = self._element(item["left"], params, source)
            number = _number(item["right"], "the number of a field")
            return at_index(
                stack, index, lambda header: self._headers[header].fields[number], ir.Const(0)
            )
        if op == "valid" and self._is_element(item["right"]):
            stack, index = self._element(item["right"], params, source)
            return at_index(
                stack, index, lambda header: ir.Valid(header, is_bool=True), ir.BoolConst(False)
            )
        if op == "valid":
            return ir.Valid(self._header(item["right"]["value"], source), is_bool=True)
        known = op in ir.BINARY_OPERATORS or op in ir.UNARY_OPERATORS
        if not known:
            _refuse(f"operator '{op}'", source)
        right = self._value(item["right"], params, source)
        if op in ir.UNARY_OPERATORS:
            self._typed(ir.UNARY_OPERATORS[op][0], right, op, source)
            return ir.Unary(op, right)
        left = self._value(item["left"], params, source)
        if op in ("==", "!="):
            op += {"data": "", "bool": "b", "header": "h"}[ir.type_of(left)]
        for operand in (left, right):
            if isinstance(operand, ir.HeaderValue):
                self._check_fixed(f"'{op[:2]}'", (operand.header,), source)
            self._typed(ir.BINARY_OPERATORS[op][0], operand, op, source)
        if op in ("two_comp_mod", "sat_cast", "usat_cast") and not isinstance(right, ir.Const):
            _refuse(f"operator '{op}' with a width that is not constant", source)
        return ir.Binary(op, left, right)

    def _is_element(self, item: Any) -> bool:
        """Whether it is an element of a header stack by an index known only at run time."""
        while isinstance(item, dict) and item.get("type") == "expression":
            item = item["value"]
        return isinstance(item, dict) and item.get("op") == "dereference_header_stack"

    def _element(
        self, item: _Json, params: Sequence[ir.Param], source: Source
    ) -> tuple[HeaderStack, ir.Expr]:
        while "op" not in item:
            item = item["value"]
        stack = _find(self._stacks, item["left"]["value"], "header stack", source)
        return stack, self._data(item["right"], params, source)

    def _at_run_time(
        self, item: _Json, params: Sequence[ir.Param], source: Source
    ) -> tuple[ir.Statement, ...] | None:
        """A primitive whose target is an element of a stack by a run-time index; else None."""
        if item["op"] not in ("assign", "add_header", "remove_header") or not item["parameters"]:
            return None
        target, *rest = item["parameters"]
        while target.get("type") == "expression":
            target = target["value"]
        number: int | None = None
        if target.get("op") == "access_field":
            number = _number(target["right"], "the number of a field")
            target = target["left"]
        if not self._is_element(target):
            return None
        stack, index = self._element(target, params, source)

        def make(header: str) -> ir.Statement:
            if number is None:
                return ir.Primitive(item["op"], (ir.HeaderValue(header),), source)
            value = self._data(rest[0], params, source)
            return ir.Primitive("assign", (self._headers[header].fields[number], value), source)

        return do_at_index(stack, index, make)

    def _stack_primitive(self, item: _Json, source: Source) -> list[ir.Statement]:
        first, second = item["parameters"]
        stack = _find(self._stacks, first["value"], "header stack", source)
        if item["op"] == "assign_header_stack":
            return stack.assign(
                _find(self._stacks, second["value"], "header stack", source), source
            )
        if second["type"] != "hexstr":
            _refuse(f"'{item['op']}' by a number that is not constant", source)
        count = int(second["value"], 16)
        return stack.push(count, source) if item["op"] == "push" else stack.pop(count, source)

    def _assign_union(self, item: _Json, source: Source) -> list[ir.Statement]:
        target, origin = (
            _find(self._unions, part["value"], "header union", source)
            for part in item["parameters"]
        )
        statements: list[ir.Statement] = []
        for to, from_ in zip(target, origin, strict=True):
            args = (ir.HeaderValue(to), ir.HeaderValue(from_))
            statements += self._with_siblings(ir.Primitive("assign_header", args, source))
        return statements

    def _with_siblings(self, primitive: ir.Primitive) -> tuple[ir.Statement, ...]:
        """The primitive, and what it does to the other headers of a union."""
        if primitive.op not in ("add_header", "assign_header"):
            return (primitive,)
        target = primitive.args[0]
        assert isinstance(target, ir.HeaderValue)
        others = self._invalidations(target.header, primitive.source)
        if not others or primitive.op == "add_header":
            return (primitive, *others)
        origin = primitive.args[1]
        assert isinstance(origin, ir.HeaderValue)
        return (primitive, ir.If(ir.Valid(origin.header, is_bool=True), others, ()))

    def _invalidations(self, header: str, source: Source) -> tuple[ir.Statement, ...]:
        return tuple(
            ir.Primitive("invalidate", (ir.HeaderValue(other),), source)
            for other in self._siblings.get(header, ())
        )

    def _typed(self, wanted: ir.ExprType, expr: ir.Expr, op: str, source: Source) -> ir.Expr:
        if ir.type_of(expr) != wanted:
            raise LoadError(
                f"{source}: an operand of '{op}' is of type {ir.type_of(expr)}, not {wanted}"
            )
        return expr

    def _data(self, item: _Json, params: Sequence[ir.Param], source: Source) -> ir.Expr:
        expr = self._value(item, params, source)
        if isinstance(expr, ir.BoolConst):
            return ir.Const(int(expr.value))
        return self._typed("data", expr, "assign", source)

    def _condition(self, item: _Json, params: Sequence[ir.Param], source: Source) -> ir.Expr:
        expr = self._value(item, params, source)
        if ir.type_of(expr) == "data":
            return ir.Unary("d2b", expr)
        return self._typed("bool", expr, "condition", source)

    # -- Actions -----------------------------------------------------------------------------------

    def _action(self, item: _Json) -> ir.Action:
        source = _source(item)
        params = tuple(
            ir.Param(
                index,
                _text(param["name"], "the name of an action parameter"),
                _number(param["bitwidth"], f"the width of parameter {param['name']}", 1),
            )
            for index, param in enumerate(item["runtime_data"])
        )
        primitives = item["primitives"]
        if not item.get("source_info") and primitives:
            source = _source(primitives[0])
        body = self._block(primitives, 0, len(primitives), params, source)
        name = _text(item["name"], "the name of an action")
        return ir.Action(_number(item["id"], f"the id of {name}"), name, params, body, source)

    def _block(
        self,
        primitives: Sequence[_Json],
        start: int,
        end: int,
        params: Sequence[ir.Param],
        source: Source,
    ) -> tuple[ir.Statement, ...]:
        """Primitives start..end-1, with p4c's forward jumps turned into conditionals again."""
        statements: list[ir.Statement] = []
        index = start
        while index < end:
            item = primitives[index]
            where = _source(item, source)
            if item["op"] == "_jump_if_zero":
                condition = self._condition(item["parameters"][0], params, where)
                target = self._jump_target(item["parameters"][1], index, end, where)
                then_end, after = target, target
                last = primitives[target - 1]
                if target - 1 > index and last["op"] == "_jump":
                    then_end = target - 1
                    after = self._jump_target(last["parameters"][0], target - 1, end, where)
                then = self._block(primitives, index + 1, then_end, params, where)
                otherwise = self._block(primitives, target, after, params, where)
                statements.append(ir.If(condition, then, otherwise))
                index = after
                continue
            index += 1
            element = self._at_run_time(item, params, where)
            if element is not None:
                statements += element
            elif item["op"] in ("push", "pop", "assign_header_stack"):
                statements += self._stack_primitive(item, where)
            elif item["op"] == "assign_union":
                statements += self._assign_union(item, where)
            else:
                statements += self._with_siblings(self._primitive(item, params, where))
        return tuple(statements)

    def _jump_target(self, item: _Json, index: int, end: int, source: Source) -> int:
        target = int(item["value"], 16) if item["type"] == "hexstr" else -1
        if not index < target <= end:
            _refuse("jump that is no plain conditional (a loop in an action?)", source)
        return target

    def _primitive(
        self, item: _Json, params: Sequence[ir.Param], default: Source = ir.NOWHERE
    ) -> ir.Primitive:
        op = item["op"]
        source = _source(item, default)
        signature = ir.PRIMITIVES.get(op)
        if signature is None:
            _refuse(f"primitive '{op}'", source)
        arguments = item["parameters"]
        if len(arguments) != len(signature):
            raise LoadError(
                f"{source}: primitive '{op}' takes {len(signature)} arguments, not {len(arguments)}"
            )
        args = tuple(
            self._argument(op, kind, argument, params, source)
            for kind, argument in zip(signature, arguments, strict=True)
        )
        if op == "execute_meter":
            args = (args[2], args[0], args[1])  # as elsewhere, what is assigned to comes first
        return ir.Primitive(op, args, source)

    def _argument(
        self,
        op: str,
        kind: ir.ArgumentKind,
        item: _Json,
        params: Sequence[ir.Param],
        source: Source,
    ) -> ir.Argument:
        if kind == "value":
            return self._data(item, params, source)
        if kind == "condition":
            return self._condition(item, params, source)
        if kind == "field_list":
            if item["type"] != "hexstr":
                _refuse(f"'{op}' with a field list that is not constant", source)
            return _find(self._field_lists, int(item["value"], 16), "field list", source)
        if kind == "text":
            return ir.Text(_text(item["value"], f"the argument of '{op}'"))
        if kind == "values":
            return ir.Values(tuple(self._data(part, params, source) for part in item["value"]))
        if kind == "field":
            field = self._value(item, params, source)
            if not isinstance(field, FieldRef):
                _refuse("assignment to something else than a field", source)
            return field
        if kind == "digest":
            digests = {digest.id: digest.name for digest in self._digests.values()}
            number = int(item["value"], 16) if item["type"] == "hexstr" else -1
            return ir.ObjectRef(kind, _find(digests, number, "digest", source))
        if item["type"] != kind:
            _refuse(_UNSUPPORTED_VALUES.get(item["type"], f"a {item['type']}"), source)
        name = item["value"]
        if kind == "header" and op == "mark_to_drop":
            return ir.HeaderValue(_find(self._headers, name, "metadata", source).name)
        if kind == "header":
            header = self._header(name, source)
            if op not in ("add_header", "remove_header"):
                self._check_fixed(f"'{op}'", (header,), source)
            return ir.HeaderValue(header)
        if kind == "calculation":
            self._usable_calculation(name, source)
        elif kind == "meter_array":
            _find(self._meters, name, "meter", source)
        elif kind == "counter_array":
            _find(self._counters, name, "counter", source)
        else:
            _find(self._registers, name, "register", source)
        return ir.ObjectRef(kind, name)

    def _field_list(self, item: _Json) -> ir.FieldList:
        fields = []
        for part in item["elements"]:
            field = self._value(part, (), NOWHERE)
            if not isinstance(field, FieldRef) or not self._headers[field.header].is_metadata:
                _refuse(f"field list '{item['name']}' of something else than metadata", NOWHERE)
            if field.header == "standard_metadata":
                _refuse(f"field list '{item['name']}' with {field}", NOWHERE)
            fields.append(field)
        return ir.FieldList(tuple(fields))

    def _check_stage(self, name: str, control: ir.Control) -> None:
        """simple_switch ignores these primitives, or defers them, in the other control."""
        elsewhere = {"ingress": ["recirculate"], "egress": ["resubmit", "generate_digest"]}[name]
        for node in control.nodes.values():
            actions = node.actions if isinstance(node, ir.ApplyTable) else ()
            if isinstance(node, ir.Call):
                actions = (node.action,)
            for action in actions:
                for statement in ir.statements(self._actions[action].body):
                    if isinstance(statement, ir.Primitive) and statement.op in elsewhere:
                        _refuse(f"primitive '{statement.op}' in {name}", statement.source)

    # -- Parser ------------------------------------------------------------------------------------

    def _parser(self) -> ir.Parser:
        parsers = self._root["parsers"]
        if len(parsers) != 1:
            raise LoadError(f"there are {len(parsers)} parsers; v1model has one")
        states = {item["name"]: self._state(item) for item in parsers[0]["parse_states"]}
        for state in states.values():
            for next_state in (*(case.next_state for case in state.cases), state.default):
                if next_state is not None:
                    _find(states, next_state, "parser state", ir.NOWHERE)
        start = parsers[0]["init_state"]
        _find(states, start, "parser state", ir.NOWHERE)
        return ir.Parser(start, states)

    def _state(self, item: _Json) -> ir.ParserState:
        name = _text(item["name"], "the name of a parser state")
        source = _source(item, Source(f"parser state {name}"))
        ops: list[ir.ParserOp] = []
        for op in item["parser_ops"]:
            parsed = self._parser_op(op, name, _source(op, source))
            ops.append(parsed)
            if isinstance(parsed, ir.Extract):
                ops += map(ir.Execute, self._invalidations(parsed.header, source))
            elif isinstance(parsed, ir.Execute) and isinstance(parsed.statement, ir.Primitive):
                ops += map(ir.Execute, self._with_siblings(parsed.statement)[1:])
        key = [self._parser_key(part, ops, source) for part in item["transition_key"]]
        cases = []
        default: str | None = None
        for transition in item["transitions"]:
            kind = transition["type"]
            if kind == "default":
                default = transition["next_state"]
            elif kind == "hexstr":
                cases.append(self._case(transition, key))
            else:
                cases.append(self._value_set_case(transition, key, source))
        return ir.ParserState(name, tuple(ops), tuple(key), tuple(cases), default)

    def _value_set_case(self, item: _Json, key: Sequence[FieldRef], source: Source) -> ir.Case:
        if item["mask"] is not None:
            _refuse("value set with a mask", source)
        name = item["value"]
        widths = tuple(field.width for field in key)
        before = _find(self._value_sets, name, "parser value set", source)
        if before.widths and before.widths != widths:
            _refuse(f"value set '{name}' of keys of different widths", source)
        self._value_sets[name] = ir.ValueSet(name, widths, before.size)
        return ir.Case((), (), item["next_state"], name)

    def _parser_key(self, item: _Json, ops: list[ir.ParserOp], source: Source) -> FieldRef:
        """The field to select on; what is none is first put into a hidden one."""
        if item["type"] == "lookahead":
            offset, width = _lookahead(item["value"])
            hidden = FieldRef(_KEYS, f"key{len(self._keys)}", width)
            ops.append(ir.Peek(hidden, offset, width))
        else:
            value = self._value(item, (), source)
            if isinstance(value, FieldRef):
                return value
            if item["type"] != "stack_field":
                _refuse("select on something else than a field", source)
            stack, name = item["value"]
            width = self._field(self._stacks[stack].elements[0], name, source).width
            hidden = FieldRef(_KEYS, f"key{len(self._keys)}", width)
            ops.append(ir.Execute(ir.Primitive("assign", (hidden, value), source)))
        self._keys.append(hidden)
        self._headers[_KEYS] = ir.Header(_KEYS, tuple(self._keys), is_metadata=True)
        return hidden

    def _case(self, item: _Json, key: Sequence[FieldRef]) -> ir.Case:
        widths = [field.width for field in key]
        values = _unpack(int(item["value"], 16), widths)
        full = [(1 << width) - 1 for width in widths]
        masks = _unpack(int(item["mask"], 16), widths) if item["mask"] is not None else full
        return ir.Case(
            tuple(value & mask for value, mask in zip(values, masks, strict=True)),
            tuple(mask & all_ for mask, all_ in zip(masks, full, strict=True)),
            item["next_state"],
        )

    def _parser_op(self, item: _Json, state: str, source: Source) -> ir.ParserOp:
        op = item["op"]
        source = _named(source, state)
        args = item["parameters"]
        if op == "extract":
            if args[0]["type"] == "stack":
                stack = _find(self._stacks, args[0]["value"], "header stack", source)
                return ir.ExtractNext(stack.elements, stack.next)
            if args[0]["type"] != "regular":
                _refuse(f"extract into a {args[0]['type']} in parser state '{state}'", source)
            return ir.Extract(self._header(args[0]["value"], source))
        if op == "set":
            field = self._argument("assign", "field", args[0], (), source)
            if args[1]["type"] == "lookahead" and isinstance(field, FieldRef):
                return ir.Peek(field, *_lookahead(args[1]["value"]))
            return ir.Execute(
                ir.Primitive("assign", (field, self._data(args[1], (), source)), source)
            )
        if op == "verify":
            return ir.Verify(self._condition(args[0], (), source), self._data(args[1], (), source))
        if op == "advance":
            return ir.Advance(self._data(args[0], (), source))
        if op == "shift":
            return ir.Advance(ir.Const(8 * int(args[0])))
        if op == "primitive":
            return ir.Execute(self._primitive(args[0], (), source))
        if op == "extract_VL":
            if args[0]["type"] != "regular":
                _refuse(f"extract into a {args[0]['type']} in parser state '{state}'", source)
            header = self._header(args[0]["value"], source)
            return ir.ExtractVariable(
                header, self._data(args[1], (), source), _find(self._most, header, "varbit", source)
            )
        _refuse(f"parser operation '{op}' in parser state '{state}'", source)

    # -- Controls ----------------------------------------------------------------------------------

    def _control(self, item: _Json) -> ir.Control:
        for profile in item.get("action_profiles", ()):
            self._profiles[profile["name"]] = self._profile(profile)
        nodes: dict[str, ir.Node] = {}
        for table in item["tables"]:
            nodes[table["name"]] = self._table(table)
        for branch in item["conditionals"]:
            source = _source(branch)
            nodes[branch["name"]] = ir.Branch(
                _text(branch["name"], "the name of a conditional"),
                self._condition(branch["expression"], (), source),
                branch["true_next"],
                branch["false_next"],
                source,
            )
        for call in item.get("action_calls", ()):
            source = _source(call)
            action = _find(self._actions, call["action_id"], "action", source)
            if action.params:
                raise LoadError(f"{source}: action '{action.name}' called without its arguments")
            nodes[call["name"]] = ir.Call(call["name"], action.id, call["next_node"], source)
        for node in nodes.values():
            for successor in node.successors:
                if successor is not None:
                    _find(nodes, successor, "control flow node", node.source)
        start = item["init_table"]
        if start is not None:
            _find(nodes, start, "control flow node", ir.NOWHERE)
        _check_acyclic(item["name"], nodes)
        return ir.Control(item["name"], start, nodes)

    def _table(self, item: _Json) -> ir.ApplyTable:
        name = _text(item["name"], "the name of a table")
        source = _source(item)
        profile = None
        if item["type"] != "simple":
            profile = _find(self._profiles, item["action_profile"], "action profile", source)
            item = self._with_no_default(item, name, source)
        meter = item.get("direct_meters")
        key = tuple(self._key_field(field, name, source) for field in item["key"])
        actions = tuple(
            _number(number, "the id of an action", _NOTHING.id) for number in item["action_ids"]
        )
        names = [_find(self._actions, action, "action", source).name for action in actions]
        if len(set(names)) < len(names):
            raise LoadError(f"{source}: table '{name}' has two actions of the same name")
        default = item.get("default_entry")
        if default is None:
            raise LoadError(f"{source}: table '{name}' has no default action")
        entries = self._const_entries(item.get("entries", ()), key, name, source)
        if default["action_id"] not in actions:
            raise LoadError(f"{source}: the default action of table '{name}' is none of its own")
        next_tables = item["next_tables"]
        by_action: dict[int, str | None] | None = None
        if "__HIT__" not in next_tables and "__MISS__" not in next_tables:
            base = item.get("base_default_next")
            by_action = {
                action: next_tables.get(self._actions[action].name, base) for action in actions
            }
        return ir.ApplyTable(
            name=name,
            key=key,
            size=max(item["max_size"], len(entries)),
            actions=actions,
            default_action=default["action_id"],
            default_args=tuple(int(value, 16) for value in default["action_data"]),
            const_default_action=bool(default.get("action_const")),
            has_direct_counter=bool(item["with_counters"]),
            const_entries=entries,
            next_hit=next_tables.get("__HIT__", item.get("base_default_next")),
            next_miss=next_tables.get("__MISS__", item.get("base_default_next")),
            next_by_action=by_action,
            source=source,
            profile=profile,
            meter=_find(self._meters, meter, "meter", source) if meter else None,
            has_idle_timeout=bool(item.get("support_timeout")),
        )

    def _profile(self, item: _Json) -> ir.ActionProfile:
        name = _text(item["name"], "the name of an action profile")
        source = _source(item)
        size = _number(item["max_size"], f"the size of action profile {name}")
        selector = None
        if "selector" in item:
            hashing = item["selector"]
            selector = self._calculation(
                {"name": name, "algo": hashing["algo"], "input": hashing["input"]}
            )
            if selector.algorithm not in HASH_ALGORITHMS:
                _refuse(f"hash algorithm '{selector.algorithm}'", source)
        return ir.ActionProfile(name, size, selector, source)

    def _with_no_default(self, item: _Json, table: str, source: Source) -> _Json:
        """An indirect table with an action that does nothing as its default: p4c writes none."""
        if item.get("default_entry") is not None:
            _refuse(f"default action of indirect table '{table}'", source)
        if item.get("entries"):
            _refuse(f"const entries of indirect table '{table}'", source)
        self._actions[_NOTHING.id] = _NOTHING
        default = {"action_id": _NOTHING.id, "action_const": True, "action_data": []}
        return {**item, "action_ids": [*item["action_ids"], _NOTHING.id], "default_entry": default}

    def _key_field(self, item: _Json, table: str, source: Source) -> ir.KeyField:
        kind = item["match_type"]
        if kind == "valid":
            valid = ir.Valid(self._header(item["target"], source), is_bool=False)
            return ir.KeyField(item.get("name", valid.header), "exact", valid, 1, None)
        if kind not in ("exact", "lpm", "ternary", "range", "optional"):
            _refuse(f"match kind '{kind}' of table '{table}'", source)
        field = self._value({"type": "field", "value": item["target"]}, (), source)
        if not isinstance(field, (FieldRef, ir.Valid)):
            _refuse(f"key of table '{table}'", source)
        width = field.width if isinstance(field, FieldRef) else 1
        if isinstance(field, FieldRef) and field.signed:
            _refuse(f"signed key field {field} of table '{table}'", source)
        mask = int(item["mask"], 16) if item.get("mask") is not None else None
        return ir.KeyField(item.get("name", ".".join(item["target"])), kind, field, width, mask)

    def _const_entries(
        self, items: Sequence[_Json], key: Sequence[ir.KeyField], table: str, source: Source
    ) -> tuple[ir.ConstEntry, ...]:
        # In BMv2 the smaller number wins, in P4Runtime the larger. p4c numbers 1..n by default;
        # turned over that is n..1, which is also what its P4Info has.
        highest = max((item.get("priority", 0) for item in items), default=0)
        entries = []
        for item in items:
            where = _source(item, source)
            if len(item["match_key"]) != len(key):
                raise LoadError(f"{where}: a const entry of table '{table}' has another key")
            match = tuple(
                _const_match(field.kind, value)
                for field, value in zip(key, item["match_key"], strict=True)
            )
            action = _find(self._actions, item["action_entry"]["action_id"], "action", where)
            args = tuple(int(value, 16) for value in item["action_entry"]["action_data"])
            priority = highest + 1 - item.get("priority", 0)
            entries.append(ir.ConstEntry(match, priority, action.id, args))
        return tuple(entries)

    # -- Checksums, deparser -----------------------------------------------------------------------

    def _calculation(self, item: _Json) -> ir.Calculation:
        source = _source(item)
        inputs: list[FieldRef | ir.ConstBits] = []
        with_payload = False
        if not isinstance(item["input"], list) or not item["input"]:
            raise LoadError(f"{source}: calculation {item['name']!r} is of nothing")
        for part in item["input"]:
            kind = part["type"]
            if kind == "payload":
                with_payload = True
            elif kind == "hexstr":
                inputs.append(ir.ConstBits(int(part["value"], 16), part["bitwidth"]))
            elif kind == "header":
                self._check_fixed("calculation", (self._header(part["value"], source),), source)
                inputs.extend(self._headers[self._header(part["value"], source)].fields)
            else:
                field = self._value(part, (), source)
                if not isinstance(field, FieldRef):
                    _refuse("input of a calculation that is neither a field nor a constant", source)
                inputs.append(field)
        return ir.Calculation(item["name"], item["algo"], tuple(inputs), with_payload, source)

    def _usable_calculation(self, name: str, source: Source) -> ir.Calculation:
        calculation = _find(self._calculations, name, "calculation", source)
        if calculation.algorithm not in HASH_ALGORITHMS:
            _refuse(f"hash algorithm '{calculation.algorithm}'", source)
        return calculation

    def _checksums(self) -> tuple[tuple[ir.Checksum, ...], tuple[ir.Checksum, ...]]:
        verify, update = [], []
        for item in self._root["checksums"]:
            source = _source(item)
            if item["type"] != "generic":
                _refuse(f"checksum of type '{item['type']}'", source)
            condition = item.get("if_cond")
            checksum = ir.Checksum(
                self._field(item["target"][0], item["target"][1], source),
                self._usable_calculation(item["calculation"], source),
                None if condition is None else self._condition(condition, (), source),
            )
            if item.get("verify", True):
                verify.append(checksum)
            if item.get("update", True):
                update.append(checksum)
        return tuple(verify), tuple(update)

    def _deparser(self) -> tuple[str, ...]:
        deparsers = self._root["deparsers"]
        if len(deparsers) != 1:
            raise LoadError(f"there are {len(deparsers)} deparsers; v1model has one")
        for primitive in deparsers[0].get("primitives", ()):
            _refuse(f"'{primitive['op']}' in the deparser", _source(primitive))
        source = _source(deparsers[0])
        return tuple(self._header(name, source) for name in deparsers[0]["order"])


def _named(source: Source, state: str) -> Source:
    """p4c gives parser states no source line: name the state instead."""
    return source if source.line else Source(f"parser state {state}", 0)


def _unpack(value: int, widths: Iterable[int]) -> list[int]:
    """Split a concatenation of fields, each padded to whole bytes."""
    parts = []
    for width in reversed(list(widths)):
        bits = (width + 7) // 8 * 8
        parts.append(value & ((1 << bits) - 1))
        value >>= bits
    return parts[::-1]


def _const_match(kind: MatchKind, item: _Json) -> int | tuple[int, int] | None:
    read: Callable[[str], int] = lambda name: int(item[name], 16)  # noqa: E731
    if kind == "exact":
        return int(item["key"]) if isinstance(item["key"], bool) else read("key")
    if kind == "lpm":
        return read("key"), _number(item["prefix_length"], "the length of a prefix")
    if kind == "range":
        return read("start"), read("end")
    return read("key"), read("mask")


def _check_acyclic(control: str, nodes: Mapping[str, ir.Node]) -> None:
    try:
        graphlib.TopologicalSorter({n: node.successors for n, node in nodes.items()}).prepare()
    except graphlib.CycleError as error:
        raise LoadError(f"pipeline '{control}' has a loop: {', '.join(error.args[1])}") from None
