# SPDX-License-Identifier: Apache-2.0
"""What `slots.SlotMachine` shares with C: arrays that both see, figures that are handed over."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import COUNTED, Library, SlotsStructure
from p4reduce.protocol.timers import SlotTimers
from p4reduce.protocol.window import Gate
from p4reduce.statistics import Counts
from p4reduce.tensors.blocks import Indices
from p4reduce.transport.base import RECEIVE_BATCH
from p4reduce.wire.frames import FrameBuffer

Array = npt.NDArray[Any]

_ROW_PAD = 2  # a frame begins that many bytes into its row

# Figures that are attributes of Python objects, as they lie in the structure, from `timeout` on:
# two timeouts, the window's times, when the switch was heard; the window's numbers, how many round
# trips; who has left; flags. After them, what C has counted. All in one call, as to set a field of
# a ctypes structure costs a microsecond, and this is done for every turn.
_FIGURES = struct.Struct("@8d8d2dd6qqQ4I")
_COUNTED = struct.Struct(f"@{len(COUNTED)}q")
_NOTHING = (0,) * len(COUNTED)
_TIMEOUT, _OPENING_TIMEOUT, _TIMES, _HEARD = slice(8), slice(8, 16), slice(16, 18), 18
_NUMBERS, _ROUND_TRIPS = slice(19, 25), 25
_BACKED_OFF, _SOME_OPEN, _HOLDS_BACK, _SOME_HALVES = range(27, 31)


class NativeSlots:
    """`struct p4r_slots` of a machine.

    Args:
        library: the functions.
        constants: the structure's first fields, by name.
        wanted, mask: see `answers.own_answers`.
        arrays: those that the machine has itself, by the structure's names.
        outgoing: the frames to send.
        timers, gate: the machine's.

    Attributes:
        streams: for each slot the address of its collective's `struct p4r_stream`, or 0 where it
            is not for C.
        address: of the structure.
        outgoing: the frames to send.
    """

    most = RECEIVE_BATCH
    """Frames that `receive` takes at a time."""

    def __init__(
        self,
        library: Library,
        constants: Mapping[str, int],
        wanted: npt.NDArray[np.uint64],
        mask: npt.NDArray[np.uint64],
        arrays: Mapping[str, Array],
        outgoing: FrameBuffer,
        timers: SlotTimers,
        gate: Gate,
    ) -> None:
        slots = constants["slots"]
        self.library = library
        self.outgoing = outgoing
        self.streams = np.zeros(slots, np.uint64)
        self._queued = np.zeros(slots, np.int64)
        self._ended = np.zeros(slots, np.int64)
        self._ended_late = np.zeros(slots, np.bool_)
        self._timers, self._gate = timers, gate
        self._arrays = {
            **arrays,
            **timers.arrays,
            **gate.arrays,
            "streams": self.streams,
            "queued": self._queued,
            "ended": self._ended,
            "ended_late": self._ended_late,
            "verdicts": np.zeros(self.most, np.uint8),
            "seen": np.zeros(slots, np.uint8),
            "completed": np.zeros(slots, np.int64),
            "how": np.zeros(slots, np.uint8),
            "next": np.zeros(2 * slots, np.uint32),
            "sorted": np.zeros(slots, np.int64),
            "samples": np.zeros_like(timers.arrays["round_trips"]),
        }
        self._shared = SlotsStructure(**constants, **timers.constants, most=self.most)
        self._shared.wanted[:] = wanted.tolist()
        self._shared.mask[:] = mask.tolist()
        self._shared.outgoing = outgoing.address - _ROW_PAD
        for name, array in self._arrays.items():
            if not array.flags.c_contiguous:
                raise ValueError(f"{name} is not contiguous")
            setattr(self._shared, name, array.ctypes.data)
        self.address = ctypes.addressof(self._shared)
        self._left = 0
        self._raw = memoryview(self._shared).cast("B")
        self._figures_at = SlotsStructure.timeout.offset
        self._counted_at = SlotsStructure.counts.offset
        if self._figures_at + _FIGURES.size != self._counted_at:
            raise TypeError("the figures do not lie as struct p4r_slots has them")

    def receive(self, buffer: FrameBuffer, count: int, now: float) -> int:
        """Take frames, the first `count` rows of a buffer, `most` at most; return `odd`."""
        self.library.receive(
            self.address, buffer.address - _ROW_PAD, buffer.lengths.ctypes.data, count, now
        )
        return self.odd

    def open(self, stream: int, which: Indices) -> None:
        """Start the stripes of a stream, given by its address, in slots that are free."""
        self.library.open(self.address, stream, which.ctypes.data, len(which))

    @property
    def odd(self) -> int:
        """How many frames are for Python to take; these are the first rows then."""
        return int(self._shared.odd_count)

    @property
    def queued(self) -> Indices:
        """The rows that are to be sent after `receive`."""
        rows: Indices = self._queued[: self._shared.queued_count].copy()
        return rows

    def take_finished(self) -> bool:
        """Return whether collectives are over that were not when this was last asked."""
        finished = bool(self._shared.finished)
        self._shared.finished = 0
        return finished

    @property
    def ended(self) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """The slots whose stripe is over after `receive`, and whether by a timer of this rank's.

        Only those that another collective waits for: it is for Python to go on with that.
        """
        count = self._shared.ended_count
        return self._ended[:count].copy(), self._ended_late[:count].copy()

    # -- Figures -------------------------------------------------------------------------------

    def ranks_left(self, bits: npt.NDArray[np.uint64]) -> None:
        """Tell C who has left, as bits of each switch above this rank."""
        self._left = self._shared.left = int(bits[0])
        self._shared.left_elsewhere = bool(bits[1:].any())

    def hand_over(self, heard_switch_at: float, some_halves: bool) -> None:
        """Give C the figures that are attributes of Python objects."""
        timers, gate = self._timers, self._gate
        numbers, times = gate.window.figures
        _FIGURES.pack_into(
            self._raw,
            self._figures_at,
            *timers.timeout.figures,
            *timers.opening_timeout.figures,
            *times,
            heard_switch_at,
            *numbers,
            timers.round_trips.count,
            self._left,
            *timers.flags,
            gate.holds_back,
            some_halves,
        )

    def take_back(self, counts: Counts) -> tuple[float, bool]:
        """Take them from C; return when the switch was heard, and whether there were halves."""
        timers, gate = self._timers, self._gate
        figures = _FIGURES.unpack_from(self._raw, self._figures_at)
        timers.timeout.figures = figures[_TIMEOUT]
        timers.opening_timeout.figures = figures[_OPENING_TIMEOUT]
        gate.window.figures = figures[_NUMBERS], figures[_TIMES]
        timers.round_trips.count = figures[_ROUND_TRIPS]
        timers.flags = bool(figures[_BACKED_OFF]), bool(figures[_SOME_OPEN])
        gate.holds_back = bool(figures[_HOLDS_BACK])
        counted = _COUNTED.unpack_from(self._raw, self._counted_at)
        if counted != _NOTHING:
            for name, number in zip(COUNTED, counted, strict=True):
                if number:
                    setattr(counts, name, getattr(counts, name) + number)
            _COUNTED.pack_into(self._raw, self._counted_at, *_NOTHING)
        return figures[_HEARD], bool(figures[_SOME_HALVES])
