# SPDX-License-Identifier: Apache-2.0
"""Controls, tables, actions and checksums as functions of a packet, with a method per primitive.

Each function is made once, when the program is loaded: a method with all arguments but the packet.
An expression among these is a function of the packet, and a field that is assigned to is a function
that stores into it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from p4reduce_switch.interpreter.expressions import (
    Expressions,
    Run,
    Store,
    Value,
    first_of,
    store_to,
)
from p4reduce_switch.interpreter.packet import HeaderLayout, PacketState
from p4reduce_switch.messages import assertion_failed, endless_loop, log_msg
from p4reduce_switch.program import ir
from p4reduce_switch.program.hashes import ALGORITHMS
from p4reduce_switch.program.ir import FieldList, Program
from p4reduce_switch.program.limits import MAX_ITERATIONS
from p4reduce_switch.state.clone_sessions import MAX_SESSION_ID
from p4reduce_switch.state.lasting import LastingState
from p4reduce_switch.state.meters import MeterArray
from p4reduce_switch.state.profiles import CHOOSE
from p4reduce_switch.state.registers import Counter, Register

Visit: TypeAlias = Callable[[str, str, ir.SourceLocation, PacketState], None]
"""Called at each point of a program: kind, name, source and packet."""
Step: TypeAlias = Callable[[PacketState], str | None]
"""Runs a node of a control or a state of the parser; gives the next one."""
_Checksums: TypeAlias = Callable[[PacketState], Iterator[tuple[ir.FieldRef, int]]]
_T = TypeVar("_T")
_ALWAYS = ir.BoolConst(True)


class _ExitControl(Exception):  # noqa: N818
    """The program's `exit`: it leaves the control."""


class PacketDropped(Exception):  # noqa: N818
    """An assertion that failed, or a loop without an end: the packet is dropped."""


class Actions(Expressions):
    """Makes functions of parts of a program.

    Args:
        program: of which functions are made.
        pipeline: what outlives a packet.
        visit: called at each point of the program, if given.
    """

    def __init__(self, program: Program, pipeline: LastingState, visit: Visit | None) -> None:
        super().__init__(program.headers)
        self.program = program
        self.pipeline = pipeline
        self._visit = visit
        self.layouts = {name: HeaderLayout(header) for name, header in program.headers.items()}
        self._actions = {
            number: self.visited("action", each.name, each.source, self.body(each.body))
            for number, each in program.actions.items()
        }

    def visited(
        self, kind: str, name: str, source: ir.SourceLocation, run: Callable[[PacketState], _T]
    ) -> Callable[[PacketState], _T]:
        """Return the same function, which first calls `visit`."""
        visit = self._visit
        if visit is None:
            return run

        def both(packet: PacketState) -> _T:
            visit(kind, name, source, packet)
            return run(packet)

        return both

    def control(self, control: ir.Control) -> Run:
        nodes = {name: self._node(node) for name, node in control.nodes.items()}

        def run(packet: PacketState) -> None:
            name = control.start
            try:
                while name is not None:
                    name = nodes[name](packet)
            except _ExitControl:
                return

        return run

    def _node(self, node: ir.Node) -> Step:
        if isinstance(node, ir.ApplyTable):
            return self.visited("table", node.name, node.source, self._table(node))
        if isinstance(node, ir.DirectCall):
            return partial(_then, self._actions[node.action], node.next)
        condition, yes, no = self.value(node.condition), node.if_true, node.if_false
        return self.visited(
            "line", "if", node.source, lambda packet: yes if condition(packet) else no
        )

    def _table(self, node: ir.ApplyTable) -> Step:
        table, profile, meter = self.pipeline.tables[node.name], node.profile, node.meter
        fields = list(map(self._key_field, node.key))
        actions = [self._actions[number] for number in node.actions]
        choice = self.hash(profile.selector) if profile and profile.selector else None
        set_color = store_to(meter.target) if meter and meter.target else None

        def apply(packet: PacketState) -> str | None:
            key = [field(packet) for field in fields]
            slot = table.lookup(key[0] if len(key) == 1 else tuple(key)) if key else None
            number, args, entry = slot or table.default_slot[0]
            size = len(packet.frame)
            if slot and node.has_idle_timeout:
                entry.last_hit_ns = self.pipeline.timers.clock()
            if slot and set_color is not None:
                set_color(packet, 0 if entry.meter is None else entry.meter.execute(size))
            if node.has_direct_counter:
                entry.packets += 1
                entry.bytes += size
            if number == CHOOSE and choice is not None:
                number, args = args[(choice(packet) & 0xFFFFFFFF) % len(args)]
            packet.args = args
            actions[number](packet)
            if node.next_by_action is not None:
                return node.next_by_action[node.actions[number]]
            return node.next_hit if slot else node.next_miss

        return apply

    def _key_field(self, key: ir.KeyField) -> Value:
        """BMv2 reads fields of an invalid header as zero in keys only."""
        value, mask = self.value(key.field), -1 if key.mask is None else key.mask
        if not isinstance(key.field, ir.FieldRef):
            return lambda packet: value(packet) & mask
        header = key.field.header
        return lambda packet: value(packet) & mask if header in packet.valid else 0

    def checksums(self, checksums: Iterable[ir.Checksum]) -> _Checksums:
        """Return what yields the field of each checksum that counts, and what it should be."""
        parts = [
            (c.target, self.value(c.condition or _ALWAYS), self.hash(c.calculation))
            for c in checksums
        ]

        def run(packet: PacketState) -> Iterator[tuple[ir.FieldRef, int]]:
            for target, condition, value in parts:
                if condition(packet) and target.header in packet.valid:
                    yield target, value(packet) & (1 << target.width) - 1

        return run

    def body(self, statements: Iterable[ir.Statement]) -> Run:
        """Return what runs statements."""
        runs = list(map(self._statement, statements))
        return runs[0] if len(runs) == 1 else partial(_run_all, runs)

    def _statement(self, statement: ir.Statement) -> Run:
        if isinstance(statement, ir.Primitive):
            return self.visited("line", statement.op, statement.source, self._primitive(statement))
        if isinstance(statement, ir.Jumps):
            blocks = [
                (self.body(b.body), self.value(b.condition or _ALWAYS), b.next, b.otherwise)
                for b in statement.blocks
            ]
            return partial(self._jump, blocks, statement)
        choices: list[tuple[Value, Run]] = []
        otherwise: tuple[ir.Statement, ...] = (statement,)
        while len(otherwise) == 1 and isinstance(otherwise[0], ir.If):  # stacks make long chains
            branch = otherwise[0]
            choices.append((self.value(branch.condition), self.body(branch.then)))
            otherwise = branch.otherwise
        return partial(first_of, choices, self.body(otherwise))

    def _jump(
        self, blocks: Sequence[tuple[Run, Value, int, int]], jumps: ir.Jumps, packet: PacketState
    ) -> None:
        number, left = 0, MAX_ITERATIONS
        while number < len(blocks):
            before, (body, goes_on, after, otherwise) = number, blocks[number]
            body(packet)
            number = after if goes_on(packet) else otherwise
            if number <= before:  # a jump back
                left -= 1
            if not left:
                endless_loop(self.pipeline.stats, str(jumps.source))
                raise PacketDropped

    def _primitive(self, primitive: ir.Primitive) -> Run:
        """The method of its name, and its arguments, which the loader has checked."""
        args = list(map(self._argument, primitive.args))
        if primitive.op in ("assert", "assume"):
            return partial(self._assert, primitive, *args)
        if "field" in ir.PRIMITIVES[primitive.op] and isinstance(primitive.args[0], ir.FieldRef):
            args[0] = store_to(primitive.args[0])  # what is assigned to comes first
        return partial(getattr(self, f"_{primitive.op}"), *args)

    def _argument(self, argument: ir.Argument) -> Any:
        """What a method takes for an argument."""
        match argument:
            case ir.HeaderValue():
                return self.layouts[argument.header]
            case ir.ObjectRef("calculation"):
                return self.hash(self.program.calculations[argument.name])
            case ir.ObjectRef(kind, name) if kind in ir.ARRAYS:
                return getattr(self.pipeline, ir.ARRAYS[kind])[name]
            case ir.Values():
                return list(map(self.value, argument.items))
            case ir.ObjectRef() | ir.Text() | ir.FieldList():
                return argument
        return self.value(argument)

    def _assert(self, primitive: ir.Primitive, condition: Value, packet: PacketState) -> None:
        if not condition(packet):
            assertion_failed(self.pipeline.stats, primitive.op, str(primitive.source))
            raise PacketDropped

    def _no_op(self, packet: PacketState) -> None:
        pass

    def _exit(self, packet: PacketState) -> None:
        raise _ExitControl

    def _assign(self, store: Store, value: Value, packet: PacketState) -> None:
        store(packet, value(packet))

    def _assign_header(
        self, target: HeaderLayout, origin: HeaderLayout, packet: PacketState
    ) -> None:
        if origin.name not in packet.valid:
            packet.valid.discard(target.name)
            return
        packet.valid.add(target.name)
        for to, from_ in zip(target.state, origin.state, strict=True):
            packet[to] = packet[from_]

    def _swap_headers(self, one: HeaderLayout, other: HeaderLayout, packet: PacketState) -> None:
        names = {one.name, other.name}
        if len(packet.valid & names) == 1:
            packet.valid ^= names
        for a, b in zip(one.state, other.state, strict=True):
            packet[a], packet[b] = packet[b], packet[a]

    def _add_header(self, header: HeaderLayout, packet: PacketState) -> None:
        if header.name not in packet.valid:
            packet.valid.add(header.name)
            packet.update(header.zeros)
            # As in BMv2 a varbit field is as long as it was last; of zeros, that is.
            packet.length += header.size(packet)

    def _remove_header(self, header: HeaderLayout, packet: PacketState) -> None:
        if header.name in packet.valid:
            packet.length -= header.size(packet)
            packet.valid.discard(header.name)

    def _invalidate(self, header: HeaderLayout, packet: PacketState) -> None:
        packet.valid.discard(header.name)

    def _mark_to_drop(self, *args: Any) -> None:
        *headers, packet = args
        for field in self.program.drop_fields(*(ir.HeaderValue(each.name) for each in headers)):
            value = self.pipeline.drop_port if field.name == "egress_spec" else 0
            store_to(field)(packet, value)

    _drop = _mark_to_drop

    def _count(self, array: Counter, index: Value, packet: PacketState) -> None:
        cell = index(packet)
        if not array.is_direct and 0 <= cell < array.size:
            array.packets[cell] += 1
            array.bytes[cell] += len(packet.frame)

    def _register_read(
        self, store: Store, array: Register, index: Value, packet: PacketState
    ) -> None:
        cell = index(packet)
        if 0 <= cell < array.size:
            store(packet, array.cells[cell])

    def _register_write(
        self, array: Register, index: Value, value: Value, packet: PacketState
    ) -> None:
        cell = index(packet)
        if 0 <= cell < array.size:
            array.cells[cell] = value(packet) & (1 << array.width) - 1

    def _execute_meter(
        self, store: Store, array: MeterArray, index: Value, packet: PacketState
    ) -> None:
        cell = index(packet)
        if 0 <= cell < array.size:
            store(packet, array.cells[cell].execute(len(packet.frame)))

    def _generate_digest(self, _: Value, digest: ir.ObjectRef, packet: PacketState) -> None:
        packet.digest = digest.name  # as in BMv2 only a packet's last one is sent, after ingress

    def _modify_field_with_hash_based_offset(
        self, store: Store, base: Value, hash_: Value, size: Value, packet: PacketState
    ) -> None:
        # As in BMv2: an empty range counts as one of a single value.
        store(packet, base(packet) + hash_(packet) % (size(packet) or 1))

    def _modify_field_rng_uniform(
        self, store: Store, low: Value, high: Value, packet: PacketState
    ) -> None:
        least, most = low(packet), high(packet)
        if least <= most:
            store(packet, random.randint(least, most))

    def _clone_ingress_pkt_to_egress(
        self, session: Value, kept: FieldList, packet: PacketState
    ) -> None:
        packet.clone = session(packet) & MAX_SESSION_ID, kept

    _clone_egress_pkt_to_egress = _clone_ingress_pkt_to_egress

    def _resubmit(self, kept: FieldList, packet: PacketState) -> None:
        packet.resubmit = kept

    def _recirculate(self, kept: FieldList, packet: PacketState) -> None:
        packet.recirculate = kept

    def _truncate(self, length: Value, packet: PacketState) -> None:
        packet.most = min(packet.most, length(packet) & 0xFFFFFFFF)

    def _log_msg(self, text: ir.Text, values: list[Value], packet: PacketState) -> None:
        log_msg(text.value, [value(packet) for value in values])

    def hash(self, calculation: ir.Calculation) -> Value:
        """Return what computes a hash. Fields of headers that are not valid are left out."""
        parts: list[tuple[str | None, Value, Value]] = []
        for part in calculation.inputs:
            if isinstance(part, ir.ConstBits):
                value, width = self.value(ir.Const(part.value)), self.value(ir.Const(part.width))
                parts.append((None, value, width))
            else:
                varbit = self.program.headers[part.header].varbit
                is_varbit = varbit is not None and varbit.field == part
                width = self.value(varbit.length if varbit and is_varbit else ir.Const(part.width))
                parts.append((part.header, self.bits(part), width))
        algorithm = ALGORITHMS[calculation.algorithm]

        def run(packet: PacketState) -> int:
            bits = used = 0
            for header, value, width_of in parts:
                if header is None or header in packet.valid:
                    width = width_of(packet)
                    bits, used = bits << width | value(packet), used + width
            data = (bits << -used % 8).to_bytes((used + 7) // 8, "big")
            return algorithm(data + packet.payload if calculation.with_payload else data)

        return run


def _then(run: Run, after: str | None, packet: PacketState) -> str | None:
    run(packet)
    return after


def _run_all(runs: list[Run], packet: PacketState) -> None:
    for run in runs:
        run(packet)
