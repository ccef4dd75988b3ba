# SPDX-License-Identifier: Apache-2.0
"""Registers by P4Runtime ("RegisterEntry"): to be read, not written.

BMv2's server has neither. Reading is what a debugger and the live page need; a controller that
writes cells would change a program's state between two of its packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.entities.cells import indices
from p4reduce_switch.p4runtime.entities.kinds import Query

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import RegisterSpec

__all__ = ["plan_register", "query_registers"]

_Row = tuple[int, int, int]  # the register's id, the cell's index, its value


def plan_register(config: ForwardingConfig, update_type: int, message: Any) -> NoReturn:
    """Refuse it."""
    raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "registers can be read, not written")


def query_registers(config: ForwardingConfig, message: Any) -> Query:
    """One cell, all cells of a register, or all of all registers.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for an unknown register, OUT_OF_RANGE for a cell that it
            does not have, NOT_FOUND for a register that the program lacks.
    """
    specs = list(config.p4info.registers.values())
    if message.register_id:
        specs = [_find(config, message.register_id)]
    elif message.HasField("index"):
        raise invalid("index is set, but register_id 0 (all registers) takes no index")
    registers = config.pipeline.registers
    ranges = [
        (
            spec.id,
            registers[spec.name].cells,
            indices(f"register '{spec.name}'", spec.size, message),
        )
        for spec in specs
        if spec.name in registers
    ]
    if not ranges:
        raise P4RuntimeError(code_pb2.NOT_FOUND, "the compiler has left this register out")
    return Query(lambda: [(id_, i, cells[i]) for id_, cells, span in ranges for i in span], _encode)


def _find(config: ForwardingConfig, number: int) -> RegisterSpec:
    spec = config.p4info.registers.get(number)
    if spec is None:
        raise invalid(f"register_id {number:#x} is not a register of this pipeline")
    return spec


def _encode(row: _Row) -> Any:
    entity = p4runtime_pb2.Entity()
    out = entity.register_entry
    out.register_id, out.index.index = row[0], row[1]
    out.data.bitstring = bytestrings.encode(row[2])
    return entity
