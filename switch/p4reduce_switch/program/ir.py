# SPDX-License-Identifier: Apache-2.0
"""A P4 program as the BMv2 JSON describes it: typed, checked, and all names resolved.

The loader makes it, and a generator turns it into code. Field references are `FieldRef`s with their
width, so nobody has to look them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from p4reduce_switch.state.tables import MatchKind


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in the P4 source; empty if p4c does not give it."""

    filename: str = ""
    line: int = 0
    fragment: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename or "unknown source"


NOWHERE = SourceLocation()


# -- Headers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header or metadata instance, `width` in bits. It is also an expression."""

    header: str
    name: str
    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{self.header}.{self.name}"

    @property
    def low(self) -> int:
        """The least value."""
        return -1 << (self.width - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest value."""
        return (1 << (self.width - self.signed)) - 1


VARBITS = "$varbits"
"""The hidden metadata that holds how many bits the varbit fields of all headers have."""
METADATA_VARBITS = "$metadata_varbits"
"""The same of varbit variables, which p4c makes metadata of."""


@dataclass(frozen=True, slots=True)
class Varbit:
    """A header's field of variable length.

    `field` has the maximum width, and holds the bits as a number. `length`, a field of hidden
    metadata, holds their count, which is a multiple of 8.
    """

    field: FieldRef
    length: FieldRef


@dataclass(frozen=True, slots=True)
class Unit:
    """Fields of a header that fill `size` bytes, `offset` bytes after its start."""

    fields: tuple[FieldRef, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class HeaderInstance:
    """A header or metadata instance, with its fields in the order of the wire."""

    name: str
    fields: tuple[FieldRef, ...]
    is_metadata: bool
    varbit: Varbit | None = None
    """Of its fields, the one whose length is not fixed; there is one at most."""

    @property
    def bits(self) -> int:
        """The number of bits without a varbit field."""
        bits = sum(field.width for field in self.fields)
        return bits if self.varbit is None else bits - self.varbit.field.width

    @property
    def size(self) -> int:
        """The bytes on the wire without a varbit field. For headers only."""
        return self.bits // 8

    @property
    def most_bytes(self) -> int:
        """The bytes on the wire with a varbit field of maximum length."""
        return sum(field.width for field in self.fields) // 8

    @property
    def units(self) -> Iterator[Unit]:
        """The shortest runs of fields that fill whole bytes, up to a varbit field."""
        fields: list[FieldRef] = []
        bits = start = 0
        for part in self.fields:
            if self.varbit is not None and part == self.varbit.field:
                return
            fields.append(part)
            bits += part.width
            if bits % 8 == 0:
                yield Unit(tuple(fields), start, bits // 8 - start)
                fields, start = [], bits // 8

    @property
    def state(self) -> tuple[FieldRef, ...]:
        """All fields that a copy of the header includes, beside its validity."""
        return self.fields if self.varbit is None else (*self.fields, self.varbit.length)


# -- Expressions -----------------------------------------------------------------------------------
# Values are unbounded integers ("data"), booleans, or header instances, as in BMv2. Only an
# assignment to a field cuts a value to the field's width.


@dataclass(frozen=True, slots=True)
class Const:
    value: int


@dataclass(frozen=True, slots=True)
class BoolConst:
    value: bool


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the enclosing action.

    `negative`: whether an entry or default action of the program gives it a negative number.
    P4Runtime's values are unsigned.
    """

    index: int
    name: str
    width: int
    negative: bool = False

    @property
    def low(self) -> int:
        """The least argument."""
        return -1 << (self.width - 1) if self.negative else 0

    @property
    def high(self) -> int:
        """The largest argument."""
        return (1 << self.width) - 1


@dataclass(frozen=True, slots=True)
class Valid:
    """The validity of a header: 0 or 1 as data (hidden field `$valid$`), or a boolean (`valid`)."""

    header: str
    is_bool: bool


@dataclass(frozen=True, slots=True)
class HeaderValue:
    """A whole header, as an operand of == and !=."""

    header: str


@dataclass(frozen=True, slots=True)
class Unary:
    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Ternary:
    """The expression condition ? left : right."""

    condition: Expr
    left: Expr
    right: Expr


Expr = Const | BoolConst | FieldRef | Param | Valid | HeaderValue | Unary | Binary | Ternary
ExprType = Literal["data", "bool", "header"]

# Operator -> (type of the operands, type of the result).
UNARY_OPERATORS: Mapping[str, tuple[ExprType, ExprType]] = {
    "~": ("data", "data"),
    "not": ("bool", "bool"),
    "d2b": ("data", "bool"),
    "b2d": ("bool", "data"),
}
_DATA_OPERATORS = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")
_CASTS = ("two_comp_mod", "sat_cast", "usat_cast")
BINARY_OPERATORS: Mapping[str, tuple[ExprType, ExprType]] = {
    **dict.fromkeys((*_DATA_OPERATORS, *_CASTS), ("data", "data")),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), ("data", "bool")),
    **dict.fromkeys(("and", "or", "==b", "!=b"), ("bool", "bool")),
    **dict.fromkeys(("==h", "!=h"), ("header", "bool")),
}


def type_of(expr: Expr) -> ExprType:
    """Return the type of an expression's value."""
    if isinstance(expr, (Const, FieldRef, Param)):
        return "data"
    if isinstance(expr, BoolConst):
        return "bool"
    if isinstance(expr, Valid):
        return "bool" if expr.is_bool else "data"
    if isinstance(expr, HeaderValue):
        return "header"
    if isinstance(expr, Unary):
        return UNARY_OPERATORS[expr.op][1]
    if isinstance(expr, Binary):
        return BINARY_OPERATORS[expr.op][1]
    return type_of(expr.left)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and all its parts."""
    yield expr
    if isinstance(expr, Unary):
        yield from walk(expr.operand)
    elif isinstance(expr, Binary):
        yield from walk(expr.left)
        yield from walk(expr.right)
    elif isinstance(expr, Ternary):
        yield from walk(expr.condition)
        yield from walk(expr.left)
        yield from walk(expr.right)


# -- Actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A counter array, register array or calculation as the argument of a primitive."""

    kind: Literal["counter_array", "register_array", "calculation", "meter_array", "digest"]
    name: str


@dataclass(frozen=True, slots=True)
class FieldList:
    """The metadata that a packet keeps when it is cloned, resubmitted or recirculated."""

    fields: tuple[FieldRef, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A string, as the argument of a primitive."""

    value: str


@dataclass(frozen=True, slots=True)
class Values:
    """A list of values, as the argument of a primitive."""

    items: tuple[Expr, ...]


Argument = Expr | ObjectRef | FieldList | Text | Values


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive of an action. `PRIMITIVES` lists its arguments."""

    op: str
    args: tuple[Argument, ...]
    source: SourceLocation


@dataclass(frozen=True, slots=True)
class If:
    """A conditional within an action, which BMv2 writes as forward jumps."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Statements of an action with jumps, and the number of the next block.

    `next` follows if the condition holds or there is none, else `otherwise`.
    """

    body: tuple[Statement, ...]
    condition: Expr | None
    next: int
    otherwise: int


@dataclass(frozen=True, slots=True)
class Jumps:
    """The blocks of an action whose jumps are not plain conditionals. The first block is the start.

    A number beyond the last block is the end. A jump to its own block or one before it is a loop.
    """

    blocks: tuple[Block, ...]
    source: SourceLocation

    def loops(self) -> bool:
        """Whether any jump goes back."""
        return any(
            number >= min(block.next, block.otherwise) for number, block in enumerate(self.blocks)
        )


Statement = Primitive | If | Jumps


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield all statements, including those within conditionals and blocks."""
    for statement in body:
        yield statement
        if isinstance(statement, If):
            yield from statements(statement.then)
            yield from statements(statement.otherwise)
        elif isinstance(statement, Jumps):
            for block in statement.blocks:
                yield from statements(block.body)


ArgumentKind = Literal[
    "field",
    "value",
    "condition",
    "header",
    "counter_array",
    "register_array",
    "calculation",
    "meter_array",
    "digest",
    "field_list",
    "text",
    "values",
]
# What the primitives take in the JSON. "field" is assigned to, and comes first in `Primitive.args`;
# "value" is any data expression.
PRIMITIVES: Mapping[str, tuple[ArgumentKind, ...]] = {
    "assign": ("field", "value"),
    "assign_VL": ("field", "field"),  # the loader makes two of "assign" of it
    "assign_header": ("header", "header"),
    "swap_headers": ("header", "header"),
    "add_header": ("header",),
    "remove_header": ("header",),
    "invalidate": ("header",),
    "mark_to_drop": ("header",),
    "drop": (),
    "exit": (),
    "no_op": (),
    "count": ("counter_array", "value"),
    "register_read": ("field", "register_array", "value"),
    "register_write": ("register_array", "value", "value"),
    "modify_field_with_hash_based_offset": ("field", "value", "calculation", "value"),
    "modify_field_rng_uniform": ("field", "value", "value"),
    "clone_ingress_pkt_to_egress": ("value", "field_list"),
    "clone_egress_pkt_to_egress": ("value", "field_list"),
    "resubmit": ("field_list",),
    "recirculate": ("field_list",),
    "truncate": ("value",),
    "execute_meter": ("meter_array", "value", "field"),
    "generate_digest": ("value", "digest"),
    "assert": ("condition",),
    "assume": ("condition",),
    "log_msg": ("text", "values"),
}


@dataclass(frozen=True, slots=True)
class Action:
    id: int
    name: str
    params: tuple[Param, ...]
    body: tuple[Statement, ...]
    source: SourceLocation


# -- Parser ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extract:
    header: str


@dataclass(frozen=True, slots=True)
class ExtractVariable:
    """Extract a header with a varbit field of `bits` bits."""

    header: str
    bits: Expr


@dataclass(frozen=True, slots=True)
class ExtractNext:
    """Extract into the next element of a header stack. `next` counts the elements in use.

    `bits` is the length of the elements' varbit field, if they have one.
    """

    elements: tuple[str, ...]
    next: FieldRef
    bits: Expr | None = None


@dataclass(frozen=True, slots=True)
class Peek:
    """Read `target` from the packet without advancing (lookahead); `offset` and `width` in bits."""

    target: FieldRef
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Stop parsing with this error unless the condition holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True, slots=True)
class Advance:
    """Skip that many bits of the packet."""

    bits: Expr


@dataclass(frozen=True, slots=True)
class Execute:
    statement: Statement


ParserOp = Extract | ExtractVariable | ExtractNext | Peek | Verify | Advance | Execute


@dataclass(frozen=True, slots=True)
class SelectCase:
    """A case of `select`: taken if (key & mask) == value, field by field. `next_state` None ends
    the parser.

    With a value set it is taken if the set contains the key, and has no values and masks.
    """

    values: tuple[int, ...]
    masks: tuple[int, ...]
    next_state: str | None
    value_set: str | None = None


@dataclass(frozen=True, slots=True)
class ParserState:
    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[FieldRef, ...]
    cases: tuple[SelectCase, ...]
    default: str | None


@dataclass(frozen=True, slots=True)
class Parser:
    start: str
    states: Mapping[str, ParserState]


# -- Controls --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyField:
    name: str
    kind: MatchKind
    field: Expr
    """Within `width` bits."""
    width: int
    mask: int | None


@dataclass(frozen=True, slots=True)
class InitialEntry:
    """An entry of the program. `priority` is P4Runtime's: the larger one wins."""

    match: tuple[int | tuple[int, int], ...]
    priority: int
    action: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ActionProfileDecl:
    """The implementation of indirect tables. `selector` hashes the selector key, if there is one.

    `size` is the number of members.
    """

    name: str
    size: int
    selector: Calculation | None
    source: SourceLocation


@dataclass(frozen=True, slots=True)
class ApplyTable:
    """A table in a control. Hit and miss, or the action, decide what comes next."""

    name: str
    key: tuple[KeyField, ...]
    size: int
    actions: tuple[int, ...]
    default_action: int
    default_args: tuple[int, ...]
    const_default_action: bool
    has_direct_counter: bool
    initial_entries: tuple[InitialEntry, ...]
    next_hit: str | None
    next_miss: str | None
    next_by_action: Mapping[int, str | None] | None
    source: SourceLocation
    profile: ActionProfileDecl | None = None
    """The last action then is one without a name that does nothing, the default."""
    meter: MeterArrayDecl | None = None
    has_idle_timeout: bool = False

    @property
    def successors(self) -> tuple[str | None, ...]:
        if self.next_by_action is not None:
            return tuple(dict.fromkeys(self.next_by_action.values()))
        return tuple(dict.fromkeys((self.next_hit, self.next_miss)))

    @property
    def goes_on_by_action(self) -> bool:
        return self.next_by_action is not None and len(self.successors) > 1

    @property
    def goes_on_by_hit(self) -> bool:
        return self.next_by_action is None and len(self.successors) > 1

    @property
    def hits_are_noted(self) -> bool:
        """Whether a hit changes the entry, whatever the action does. (Counts change at misses
        too.)"""
        return self.meter is not None or self.has_idle_timeout


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    condition: Expr
    if_true: str | None
    if_false: str | None
    source: SourceLocation

    @property
    def successors(self) -> tuple[str | None, ...]:
        return tuple(dict.fromkeys((self.if_true, self.if_false)))


@dataclass(frozen=True, slots=True)
class DirectCall:
    """An action without parameters that is called directly."""

    name: str
    action: int
    next: str | None
    source: SourceLocation

    @property
    def successors(self) -> tuple[str | None, ...]:
        return (self.next,)


Node = ApplyTable | Branch | DirectCall


@dataclass(frozen=True, slots=True)
class Control:
    """A directed graph without cycles. A successor None is the end."""

    name: str
    start: str | None
    nodes: Mapping[str, Node]


# -- Checksums and state ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConstBits:
    """A constant in the input of a calculation; `width` in bits."""

    value: int
    width: int


@dataclass(frozen=True, slots=True)
class Calculation:
    """A hash over fields, in order. Fields of invalid headers are left out, as in BMv2."""

    name: str
    algorithm: str
    inputs: tuple[FieldRef | ConstBits, ...]
    with_payload: bool
    source: SourceLocation

    @property
    def groups(self) -> Iterator[tuple[str, list[FieldRef | ConstBits]]]:
        """The inputs in their order: those of a header ("" of none) that follow one another."""
        for header, parts in groupby(self.inputs, lambda part: getattr(part, "header", "")):
            yield header, list(parts)


@dataclass(frozen=True, slots=True)
class Checksum:
    target: FieldRef
    calculation: Calculation
    condition: Expr | None


@dataclass(frozen=True, slots=True)
class CounterArray:
    name: str
    size: int
    table: str | None  # the table it is direct to


@dataclass(frozen=True, slots=True)
class MeterArrayDecl:
    """Two-rate three-colour meters of bytes or packets.

    A table's direct meter sets `target` at each hit, whatever the action does.
    """

    name: str
    size: int
    counts_bytes: bool
    table: str | None
    target: FieldRef | None


@dataclass(frozen=True, slots=True)
class DigestDecl:
    """The values that `digest` sends: those of the fields at the end of ingress."""

    id: int
    name: str
    fields: tuple[FieldRef, ...]


@dataclass(frozen=True, slots=True)
class RegisterArray:
    name: str
    width: int
    size: int


@dataclass(frozen=True, slots=True)
class ValueSetDecl:
    """A set that `select` looks up a key in. `widths` of the key's fields are in bits."""

    name: str
    widths: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class StatefulObjects:
    """A program's state and messages beside its packets, by name."""

    counters: dict[str, CounterArray] = field(default_factory=dict)
    registers: dict[str, RegisterArray] = field(default_factory=dict)
    meters: dict[str, MeterArrayDecl] = field(default_factory=dict)
    value_sets: dict[str, ValueSetDecl] = field(default_factory=dict)
    digests: dict[str, DigestDecl] = field(default_factory=dict)


ARRAYS: Mapping[ArgumentKind, str] = {
    "counter_array": "counters",
    "register_array": "registers",
    "meter_array": "meters",
}
"""Where in `StatefulObjects` what is that is an argument of primitives."""


@dataclass(frozen=True, slots=True, eq=False)  # so that what is made of one can be kept for it
class Program:
    headers: Mapping[str, HeaderInstance]
    errors: Mapping[str, int]
    intrinsic: Mapping[str, FieldRef]
    """The target's own fields by simple_switch's name ("mcast_grp"), if the program has them."""
    parser: Parser
    verify: tuple[Checksum, ...]
    ingress: Control
    egress: Control
    update: tuple[Checksum, ...]
    deparser: tuple[str, ...]
    actions: Mapping[int, Action]
    calculations: Mapping[str, Calculation]
    kept: StatefulObjects

    def primitives(self) -> Iterator[Primitive]:
        """Yield all primitives: those of actions, and those of the parser."""
        bodies = [action.body for action in self.actions.values()]
        ops = (op for state in self.parser.states.values() for op in state.ops)
        bodies += [(op.statement,) for op in ops if isinstance(op, Execute)]
        for body in bodies:
            yield from (part for part in statements(body) if isinstance(part, Primitive))

    def drop_fields(self, header: HeaderValue | None = None) -> tuple[FieldRef, ...]:
        """Return the fields that `mark_to_drop` sets: `egress_spec`, then `mcast_grp`, if they
        exist.

        They are fields of the header that is its argument. If standard metadata is an action's
        argument, p4c passes a copy.
        """
        if header is None or header.header == self.intrinsic["egress_spec"].header:
            found = self.intrinsic
        else:
            found = {field.name: field for field in self.headers[header.header].fields}
        return tuple(found[name] for name in ("egress_spec", "mcast_grp") if name in found)
