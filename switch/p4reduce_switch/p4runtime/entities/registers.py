# SPDX-License-Identifier: Apache-2.0
"""Registers by P4Runtime ("RegisterEntry"), which BMv2's server does not have."""

from __future__ import annotations

from typing import Any

from p4reduce_switch.errors import invalid, unsupported
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import (
    find,
    indices,
    only_modify,
    query_cells,
    selected,
)
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import RegisterSpec

_KIND = "register"


def plan_register(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `RegisterEntry` update: of one cell, or of all."""
    spec = find(config.p4info.registers, message.register_id, _KIND)
    where = f"register '{spec.name}'"
    only_modify(update_type, where)
    chosen = indices(where, spec.size, message)
    field = _field_of(spec)
    given = message.data.WhichOneof("data")
    if given != field:
        raise invalid(f"data of {where} must be a {field}, but the update gives {given or 'none'}")
    data = getattr(message.data, field)
    decode = bytestrings.decode_signed if spec.signed else bytestrings.decode
    value = decode(data, spec.width, f"data of {where}") & (1 << spec.width) - 1
    cells = config.pipeline.registers[spec.name].cells

    def write() -> None:
        for index in chosen:
            cells[index] = value

    return write


def query_registers(config: ForwardingConfig, message: Any) -> Query:
    """Query one cell, all cells of a register, or all registers."""
    if message.HasField("index") and not message.register_id:
        raise invalid("index is set, but register_id 0 (all registers) takes no index")
    registers = config.pipeline.registers

    def fill(read: Any, out: Any) -> None:
        spec, value = read
        encoded = (
            bytestrings.encode_signed(value, spec.width)
            if spec.signed
            else bytestrings.encode(value)
        )
        setattr(out.data, _field_of(spec), encoded)

    return query_cells(
        _KIND,
        selected(config.p4info.registers, message.register_id, _KIND),
        message,
        lambda spec, cell: (spec, registers[spec.name].cells[cell]),
        fill,
    )


def _field_of(spec: RegisterSpec) -> str:
    if spec.field is None:
        raise unsupported(f"register '{spec.name}' has cells of a type that is not supported")
    return spec.field
