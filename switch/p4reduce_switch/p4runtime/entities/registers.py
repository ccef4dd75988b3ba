# SPDX-License-Identifier: Apache-2.0
"""Registers by P4Runtime ("RegisterEntry"), which can be read but not written.

BMv2's server supports neither. A debugger and the live page need to read. A controller that writes
cells would change a program's state between two of its packets.
"""

from __future__ import annotations

from typing import Any, NoReturn

from p4reduce_switch.errors import invalid, not_found, unsupported
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import query_cells, selected
from p4reduce_switch.p4runtime.entities.kinds import Query


def plan_register(config: ForwardingConfig, update_type: int, message: Any) -> NoReturn:
    """Refuse the update."""
    raise unsupported("registers can be read, not written")


def query_registers(config: ForwardingConfig, message: Any) -> Query:
    """One cell, all cells of a register, or all of all registers that the program has."""
    if message.HasField("index") and not message.register_id:
        raise invalid("index is set, but register_id 0 (all registers) takes no index")
    registers = config.pipeline.registers
    specs = selected(config.p4info.registers, message.register_id, "register")
    there = [spec for spec in specs if spec.name in registers]
    if not there:
        raise not_found("the compiler has left this register out")

    def fill(value: int, out: Any) -> None:
        out.data.bitstring = bytestrings.encode(value)

    return query_cells(
        "register", there, message, lambda spec, cell: registers[spec.name].cells[cell], fill
    )
