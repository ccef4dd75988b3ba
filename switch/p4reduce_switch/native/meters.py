# SPDX-License-Identifier: Apache-2.0
"""Meters of a compiled program: configured here, executed there (csrc/p4/meter.h)."""

from __future__ import annotations

import ctypes
from typing import Any

from p4reduce_switch.native.program import HEADER, NativeProgram
from p4reduce_switch.state.meters import Meter, MeterArray, Rates
from p4reduce_switch.state.timers import Clock

_MeterStructure = HEADER.structure("p4r_meter")


class NativeMeter(Meter):
    """A meter in memory that machine code shares.

    `cell`: its address. Without one it is allocated, as for an entry's direct meter.
    """

    __slots__ = ("_cell", "_program")

    def __init__(
        self, program: NativeProgram, clock: Clock, *, in_bytes: bool, cell: Any = None
    ) -> None:
        super().__init__(clock, in_bytes=in_bytes)
        self._program = program
        self._cell = _MeterStructure() if cell is None else cell
        self._cell.start_ns = max(self._start_ns, 0)
        self._cell.in_bytes = in_bytes

    @property
    def address(self) -> int:
        return ctypes.addressof(self._cell)

    def configure(self, rates: Rates | None) -> None:
        self.rates = rates
        self._cell.is_configured = rates is not None
        if rates is not None:
            _fill(self._cell.peak, rates.pir, rates.pburst)
            _fill(self._cell.committed, rates.cir, rates.cburst)

    def execute(self, size: int) -> int:
        library = self._program.library
        color: int = library.p4r_meter_color(self.address, size, self._clock())
        return color


def _fill(bucket: Any, rate: int, burst: int) -> None:
    bucket.per_microsecond = rate / 1e6
    bucket.burst = bucket.tokens = burst
    bucket.filled_low = bucket.filled_high = 0


class NativeMeterArray(MeterArray):
    """An array of meters, or the maker of a table's direct meters, in a compiled program.

    `address`: of the first `struct p4r_meter`; 0 for direct meters.
    """

    def __init__(
        self, array: MeterArray, program: NativeProgram, clock: Clock, address: int
    ) -> None:
        self._program = program
        super().__init__(array.name, 0, clock, in_bytes=array.in_bytes, table=array.table)
        self.size = array.size
        if address:
            self._memory = (_MeterStructure * array.size).from_address(address)
            self._memory.owner = program  # type: ignore[attr-defined]
            self.cells = [self._make(cell) for cell in self._memory]

    def make(self) -> Meter:
        return self._make(None)

    def _make(self, cell: Any) -> Meter:
        return NativeMeter(self._program, self._clock, in_bytes=self.in_bytes, cell=cell)
