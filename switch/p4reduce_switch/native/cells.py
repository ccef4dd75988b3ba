# SPDX-License-Identifier: Apache-2.0
"""Counters, registers and statistics of a compiled program: views of its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from p4reduce_switch.native.program import HEADER, NativeProgram
from p4reduce_switch.state.pipeline_stats import PipelineStats


def _view(type_: Any, address: int, program: NativeProgram) -> Any:
    """Memory as a ctypes object, which keeps the program alive."""
    view = type_.from_address(address)
    view.owner = program
    return view


def counts_at(program: NativeProgram, address: int, size: int) -> Any:
    """The cells of a counter as a sequence of integers."""
    return _view(ctypes.c_int64 * size, address, program)


def register_cells(program: NativeProgram, address: int, width: int, size: int) -> Any:
    """The cells of a register as a sequence of integers."""
    if width > 64:
        return WideCells(program, address, width, size)
    for bits, type_ in ((8, ctypes.c_uint8), (16, ctypes.c_uint16), (32, ctypes.c_uint32)):
        if width <= bits:
            return _view(type_ * size, address, program)
    return _view(ctypes.c_uint64 * size, address, program)


class WideCells:
    """Cells of more than 64 bits."""

    __slots__ = ("_bytes", "_memory", "_size")

    def __init__(self, program: NativeProgram, address: int, width: int, size: int) -> None:
        self._size = size
        self._bytes = 8 * ((width + 63) // 64)
        self._memory = _view(ctypes.c_ubyte * (self._bytes * size), address, program)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        at = self._at(index)
        return int.from_bytes(bytes(self._memory[at : at + self._bytes]), "little")

    def __setitem__(self, index: int, value: int) -> None:
        at = self._at(index)
        data = value.to_bytes(self._bytes, "little")
        ctypes.memmove(ctypes.addressof(self._memory) + at, data, self._bytes)

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(self._size))

    def _at(self, index: int) -> int:
        if index < 0:
            index += self._size
        if not 0 <= index < self._size:
            raise IndexError(f"cells 0..{self._size - 1}, not {index}")
        return self._bytes * index


_StatsStructure = HEADER.structure("p4r_stats")


def _stat(name: str) -> Any:
    def read(stats: NativeStats) -> int:
        value: int = getattr(stats._memory, name)
        return value

    def write(stats: NativeStats, value: int) -> None:
        setattr(stats._memory, name, value)

    return property(read, write)


class NativeStats(PipelineStats):
    """Counts of the frames, as machine code keeps them."""

    def __init__(self, program: NativeProgram) -> None:
        self._memory = _view(_StatsStructure, program.common, program)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in PipelineStats.__dataclass_fields__}


for _name in PipelineStats.__dataclass_fields__:
    setattr(NativeStats, _name, _stat(_name))
