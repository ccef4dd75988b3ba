# SPDX-License-Identifier: Apache-2.0
"""The parser as a function of a packet. Headers extracted before an error stay valid."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

from p4reduce_switch.interpreter.actions import Actions, Step
from p4reduce_switch.interpreter.expressions import Run, Store, Value, store_to
from p4reduce_switch.interpreter.packet import HeaderLayout, PacketState
from p4reduce_switch.program import ir
from p4reduce_switch.program.limits import MOST_VARBITS


class _ParserError(Exception):
    """Parsing stops, with the number of an error."""


class PacketParser:
    """Runs the parser of a program on packets."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._program = actions.program
        self._states = {
            name: actions.visited("state", name, ir.NOWHERE, self._state(state))
            for name, state in self._program.parser.states.items()
        }

    def run(self, packet: PacketState) -> None:
        """Parse a packet from its start."""
        name: str | None = self._program.parser.start
        # A loop that takes nothing from the packet would never end; BMv2 hangs in it.
        left = len(self._states) * (len(packet.frame) + 2)
        try:
            while name is not None:
                left -= 1
                self._expect(left > 0, "ParserTimeout")
                name = self._states[name](packet)
        except _ParserError as error:
            if (field := self._program.intrinsic.get("parser_error")) is not None:
                store_to(field)(packet, error.args[0])

    def _expect(self, condition: bool, error: str) -> None:
        if not condition:
            raise _ParserError(self._program.errors.get(error, 1))

    def _need(self, size: int, packet: PacketState) -> None:
        self._expect(packet.at + size <= len(packet.frame), "PacketTooShort")

    def _bytes(self, bits: Value, packet: PacketState) -> int:
        """The whole bytes of a number of bits."""
        number = bits(packet)
        self._expect(number >= 0 and number % 8 == 0, "ParserInvalidArgument")
        return number // 8

    def _state(self, state: ir.ParserState) -> Step:
        ops = list(map(self._op, state.ops))
        fields = list(map(self._actions.bits, state.key))
        cases = [(self._matches(case), case.next_state) for case in state.cases]

        def run(packet: PacketState) -> str | None:
            for op in ops:
                op(packet)
            key = [field(packet) for field in fields]
            for matches, next_state in cases:
                if matches(key):
                    return next_state
            return state.default

        return run

    def _op(self, op: ir.ParserOp) -> Run:
        value = self._actions.value
        match op:
            case ir.Execute():
                return self._actions.body((op.statement,))
            case ir.Extract():
                return self._extraction(op.header, None)
            case ir.ExtractVariable():
                return self._extraction(op.header, op.bits)
            case ir.ExtractNext():
                elements = [self._extraction(name, op.bits) for name in op.elements]
                return partial(self._extract_next, elements, value(op.next), store_to(op.next))
            case ir.Peek():
                return partial(self._peek, op, store_to(op.target))
            case ir.Verify():
                return partial(self._verify, value(op.condition), value(op.error))
            case ir.Advance():
                return partial(self._advance, value(op.bits))

    def _extract_next(
        self, elements: list[Run], used: Value, set_used: Store, packet: PacketState
    ) -> None:
        number = used(packet)
        self._expect(number < len(elements), "StackOutOfBounds")
        elements[number](packet)
        set_used(packet, number + 1)

    def _peek(self, op: ir.Peek, store: Store, packet: PacketState) -> None:
        end = (op.offset + op.width + 7) // 8
        self._need(end, packet)
        bits = int.from_bytes(packet.frame[packet.at : packet.at + end], "big")
        store(packet, bits >> 8 * end - op.offset - op.width & (1 << op.width) - 1)

    def _verify(self, condition: Value, error: Value, packet: PacketState) -> None:
        if not condition(packet):
            raise _ParserError(error(packet))

    def _advance(self, bits: Value, packet: PacketState) -> None:
        skipped = self._bytes(bits, packet)
        self._need(skipped, packet)
        packet.at += skipped

    def _extraction(self, name: str, bits: ir.Expr | None) -> Run:
        layout, varbit = self._actions.layouts[name], self._program.headers[name].varbit
        if bits is None or varbit is None:
            return partial(self._extract, layout)
        length = self._actions.value(bits)
        return partial(self._extract_variable, layout, length, store_to(varbit.length))

    def _extract(self, layout: HeaderLayout, packet: PacketState) -> None:
        self._need(layout.fixed_size, packet)
        layout.take(packet)

    def _extract_variable(
        self, layout: HeaderLayout, bits: Value, set_length: Store, packet: PacketState
    ) -> None:
        """The errors in the order in which BMv2 looks for them. It takes a varbit field of more
        than 31 bits of length for an odd one, and counts the bytes of an earlier extraction too."""
        size = self._bytes(bits, packet)
        self._expect(8 * size <= MOST_VARBITS, "ParserInvalidArgument")
        needed = layout.size(packet) + size
        self._need(needed, packet)
        self._expect(needed <= layout.most_bytes, "HeaderTooShort")
        set_length(packet, 8 * size)
        layout.take(packet)

    def _matches(self, case: ir.SelectCase) -> Callable[[list[int]], bool]:
        if case.value_set is not None:
            members = self._actions.pipeline.value_sets[case.value_set]
            return lambda key: (key[0] if len(key) == 1 else tuple(key)) in members
        masks, values = list(case.masks), list(case.values)
        return lambda key: list(map(operator.and_, key, masks)) == values
