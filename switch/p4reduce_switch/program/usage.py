# SPDX-License-Identifier: Apache-2.0
"""How a program uses its fields, stage by stage.

The generator leaves out code without an effect. A field that is never read is not unpacked or
assigned. A header that is never changed leaves as the bytes that came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Expr, FieldRef, Program

Stage = Literal["parser", "ingress", "egress"]

# Primitives that only assign to their first argument; left out if nothing reads that.
ASSIGNING = frozenset({"assign", "register_read", "modify_field_with_hash_based_offset"})
_ASSIGNS = frozenset(op for op, kinds in ir.PRIMITIVES.items() if "field" in kinds)
# To simple_switch both kinds of clone are the same: the control makes the difference.
REPLAYING = {
    "clone_ingress_pkt_to_egress": "clone",
    "clone_egress_pkt_to_egress": "clone",
    "resubmit": "resubmit",
    "recirculate": "recirculate",
}


@dataclass(slots=True)
class StageUsage:
    """What one stage (parser, ingress, egress) uses."""

    reads: set[FieldRef] = field(default_factory=set)
    writes: set[FieldRef] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    """Headers whose validity matters."""
    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    exits: bool = False
    digests: set[str] = field(default_factory=set)
    kept: dict[str, list[ir.FieldList]] = field(default_factory=dict)
    """Clone, resubmit, recirculate ("clone" is both kinds) -> the field lists that it is used with,
    each once; their position is their number in the generated code."""
    truncates: bool = False


QUEUE_FIELDS = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")
"""What the target says of a frame's time in its egress queue."""


class Usage:
    """What a whole program uses.

    Args:
        queues: whether egress queues are requested, even if the program does not use them.

    Attributes:
        queued: whether egress queues are between ingress and egress: they are requested, or
            the program reads their fields or chooses a priority.
        parser, ingress, egress: by stage. Verifying checksums counts as ingress. Updating them,
            and the deparser's use of validity, count as egress.
        live: fields that are read, or that leave.
    """

    def __init__(self, program: Program, *, queues: bool = False) -> None:
        self._program = program
        self.queued = queues
        wire = set(program.deparser)
        self.live: set[FieldRef] = {
            field_ for name in wire for field_ in program.headers[name].state
        }
        self.live.update(
            program.intrinsic[name]
            for name in ("egress_spec", "mcast_grp")
            if name in program.intrinsic
        )
        while True:
            self.parser, self.ingress, self.egress = StageUsage(), StageUsage(), StageUsage()
            self._parser()
            self._control(program.ingress, self.ingress)
            self._control(program.egress, self.egress)
            self._replays()
            for name in wire:
                self.egress.reads.update(self._length(name))
            for checksum in program.verify:
                self._checksum(
                    checksum, self.ingress, updates=False, raw=self.is_raw_verified(checksum)
                )
            for checksum in program.update:
                self._checksum(checksum, self.egress, updates=True, raw=False)
            self._queues()
            grown = self.live | self.parser.reads | self.ingress.reads | self.egress.reads
            if grown == self.live:
                break
            self.live = grown
        self.reads = self.parser.reads | self.ingress.reads | self.egress.reads
        self.writes = self.parser.writes | self.ingress.writes | self.egress.writes
        self.added = self.parser.added | self.ingress.added | self.egress.added
        self.removed = self.parser.removed | self.ingress.removed | self.egress.removed
        self._touched = {field_.header for field_ in self.writes} | self.added

    def is_raw_verified(self, checksum: ir.Checksum) -> bool:
        """Whether the checksum can be verified on the bytes of its header as they came in."""
        written = {field_.header for field_ in self._parser_writes()}
        return checksum.target.header not in written and _is_whole_header(self._program, checksum)

    def touched(self, header: str) -> bool:
        """Whether the header may leave changed."""
        return header in self._touched

    def goes_stale(self, header: str) -> bool:
        """Whether fields may be non-zero while the header is invalid."""
        return header in self._touched or header in self.removed

    # -- Collecting --------------------------------------------------------------------------------

    def _parser_writes(self) -> Iterator[FieldRef]:
        for state in self._program.parser.states.values():
            for op in state.ops:
                if isinstance(op, ir.Peek):
                    yield op.target
                elif isinstance(op, ir.Execute):
                    for primitive in _primitives((op.statement,)):
                        yield from _written(self._program, primitive)

    def _parser(self) -> None:
        usage = self.parser
        for state in self._program.parser.states.values():
            usage.reads.update(state.key)
            for op in state.ops:
                if isinstance(op, ir.Verify):
                    self._expr(op.condition, usage)
                    self._expr(op.error, usage)
                elif isinstance(op, ir.ExtractVariable):
                    self._extract_variable(op.bits, (op.header,), usage)
                elif isinstance(op, ir.ExtractNext):
                    usage.reads.add(op.next)
                    usage.writes.add(op.next)
                    if op.bits is not None:
                        self._extract_variable(op.bits, op.elements, usage)
                elif isinstance(op, ir.Peek):
                    usage.writes.add(op.target)
                elif isinstance(op, ir.Advance):
                    self._expr(op.bits, usage)
                elif isinstance(op, ir.Execute):
                    self._statements((op.statement,), usage)

    def _extract_variable(self, bits: Expr, headers: Iterable[str], usage: StageUsage) -> None:
        self._expr(bits, usage)
        for header in headers:
            usage.reads.update(self._length(header))
            usage.writes.update(self._length(header))

    def _length(self, header: str) -> tuple[FieldRef, ...]:
        """That of the header's varbit field."""
        varbit = self._program.headers[header].varbit
        return () if varbit is None else (varbit.length,)

    def _control(self, control: ir.Control, usage: StageUsage) -> None:
        for node in control.nodes.values():
            if isinstance(node, ir.Branch):
                self._expr(node.condition, usage)
            elif isinstance(node, ir.DirectCall):
                self._statements(self._program.actions[node.action].body, usage)
            else:
                for key in node.key:
                    self._expr(key.field, usage)
                    if isinstance(key.field, FieldRef):
                        usage.tests.add(key.field.header)
                if node.meter is not None and node.meter.target is not None:
                    usage.writes.add(node.meter.target)
                if node.profile is not None and node.profile.selector is not None:
                    self._calculation(node.profile.selector, usage)
                for action in node.actions:
                    self._statements(self._program.actions[action].body, usage)

    def _replays(self) -> None:
        """Count fields of packets that come back to the parser, and of copies from egress."""
        for lists in (self.ingress.kept.get("resubmit"), self.egress.kept.get("recirculate")):
            for kept in lists or ():
                self.parser.writes.update(kept.fields)
        if "clone" in self.egress.kept:
            self.egress.tests |= self.egress.removed

    def _queues(self) -> None:
        """With egress queues, the target looks at the priority when a copy is queued."""
        stages = (self.parser, self.ingress, self.egress)
        fields = {self._program.intrinsic.get(name) for name in QUEUE_FIELDS}
        priority = self._program.intrinsic.get("priority")
        self.queued = self.queued or any(
            fields & stage.reads or priority in stage.writes for stage in stages
        )
        if self.queued and priority is not None:
            self.egress.reads.add(priority)

    def _checksum(
        self, checksum: ir.Checksum, usage: StageUsage, *, updates: bool, raw: bool
    ) -> None:
        if checksum.condition is not None:
            self._expr(checksum.condition, usage)
        usage.tests.add(checksum.target.header)
        if not raw:
            self._calculation(checksum.calculation, usage)
        if updates:
            usage.writes.add(checksum.target)
        elif not raw:
            usage.reads.add(checksum.target)

    def _calculation(self, calculation: ir.Calculation, usage: StageUsage) -> None:
        fields = [part for part in calculation.inputs if isinstance(part, FieldRef)]
        usage.reads.update(fields)
        for header in {part.header for part in fields}:
            usage.reads.update(self._length(header))
            usage.tests.add(header)

    def _statements(self, body: Iterable[ir.Statement], usage: StageUsage) -> None:
        for statement in ir.statements(body):
            if isinstance(statement, ir.If):
                self._expr(statement.condition, usage)
            elif isinstance(statement, ir.Jumps):
                for block in statement.blocks:
                    if block.condition is not None:
                        self._expr(block.condition, usage)
            else:
                self._primitive(statement, usage)

    def _primitive(self, primitive: ir.Primitive, usage: StageUsage) -> None:
        op, args = primitive.op, primitive.args
        if op == "exit":
            usage.exits = True
        if op == "add_header":
            usage.added.add(_header(args[0]))
        if op in ("remove_header", "invalidate"):
            usage.removed.add(_header(args[0]))
        if op in ("add_header", "remove_header"):
            usage.reads.update(self._length(_header(args[0])))  # for the packet's
        if op == "assign_header":
            target, origin = _header(args[0]), _header(args[1])
            usage.added.add(target)
            usage.removed.add(target)
            usage.tests.add(origin)
            usage.reads.update(self._program.headers[origin].state)
        if op == "generate_digest":
            assert isinstance(args[1], ir.ObjectRef)
            usage.digests.add(args[1].name)
            fields = self._program.kept.digests[args[1].name].fields
            usage.reads.update(fields)
        if op == "truncate":
            usage.truncates = True
        if op in REPLAYING:
            kept = usage.kept.setdefault(REPLAYING[op], [])
            if args[-1] not in kept:
                assert isinstance(args[-1], ir.FieldList)
                kept.append(args[-1])
        if op == "swap_headers":
            for header in (_header(args[0]), _header(args[1])):
                usage.added.add(header)
                usage.removed.add(header)
                usage.tests.add(header)
                usage.reads.update(self._program.headers[header].state)
        usage.writes.update(_written(self._program, primitive))
        rest = args
        if op in _ASSIGNS:
            if op in ASSIGNING and args[0] not in self.live:
                return
            rest = args[1:]
        for argument in rest:
            if isinstance(argument, ir.ObjectRef):
                if argument.kind == "calculation":
                    self._calculation(self._program.calculations[argument.name], usage)
            elif isinstance(argument, ir.FieldList):
                usage.reads.update(argument.fields)
            elif isinstance(argument, ir.Values):
                for item in argument.items:
                    self._expr(item, usage)
            elif not isinstance(argument, (ir.HeaderValue, ir.Text)):
                self._expr(argument, usage)

    def _expr(self, expr: Expr, usage: StageUsage) -> None:
        usage.reads.update(reads_of(expr, self._program))
        for part in ir.walk(expr):
            if isinstance(part, (ir.Valid, ir.HeaderValue)):
                usage.tests.add(part.header)


def reads_of(expr: Expr, program: Program) -> Iterator[FieldRef]:
    """Return the fields that an expression reads."""
    for part in ir.walk(expr):
        if isinstance(part, FieldRef):
            yield part
        elif isinstance(part, ir.HeaderValue):
            yield from program.headers[part.header].fields


def _primitives(body: Iterable[ir.Statement]) -> Iterator[ir.Primitive]:
    return (s for s in ir.statements(body) if isinstance(s, ir.Primitive))


def _header(argument: ir.Argument) -> str:
    assert isinstance(argument, ir.HeaderValue)
    return argument.header


def _written(program: Program, primitive: ir.Primitive) -> Iterator[FieldRef]:
    """The fields that a primitive may change."""
    op, args = primitive.op, primitive.args
    if op in _ASSIGNS:
        assert isinstance(args[0], FieldRef)
        yield args[0]
    elif op == "swap_headers":
        for argument in args:
            yield from program.headers[_header(argument)].state
    elif op == "assign_header":
        yield from program.headers[_header(args[0])].state
    elif op == "add_header":
        yield from program.headers[_header(args[0])].fields
    elif op in ("mark_to_drop", "drop"):
        yield from program.drop_fields(*(a for a in args if isinstance(a, ir.HeaderValue)))


def _is_whole_header(program: Program, checksum: ir.Checksum) -> bool:
    """Whether a csum16 covers one header but for the checksum itself, all 16-bit aligned."""
    calculation, target = checksum.calculation, checksum.target
    header = program.headers[target.header]
    before = 0
    for field_ in header.fields:
        if field_ == target:
            break
        before += field_.width
    return (
        calculation.algorithm == "csum16"
        and not calculation.with_payload
        and header.varbit is None
        and calculation.inputs == tuple(f for f in header.fields if f != target)
        and target.width == 16
        and before % 16 == 0
        and header.bits % 16 == 0
    )
