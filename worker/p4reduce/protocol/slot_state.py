# SPDX-License-Identifier: Apache-2.0
"""The memory that the engine in C works on: `struct p4r_slots`, as Python sees it.

Only C writes to it while a job runs. Python reads it for statistics and errors, and the model
restores earlier states.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import CONSTANTS, SlotsStructure
from p4reduce.statistics import RoundTrips
from p4reduce.wire.calls import class_slots
from p4reduce.wire.frames import FrameBuffer

SHAPES = CONSTANTS["P4R_SHAPES"]
"""Rows of a slot in the frames to send: without lanes, with, and padded."""

IDLE, OPENING = CONSTANTS["P4R_IDLE"], CONSTANTS["P4R_OPENING"]
"""In `expected`: no round. In `block`: the round that opens a stripe."""

_LAST = np.iinfo(np.int64).max  # P4R_LAST
_MOST_NUMBER_BYTES = 8 * CONSTANTS["P4R_MOST_LANES"]  # of a block: numbers of float64
_TIMEOUT, _FLOOR, _CEILING = 0.05, 0.01, 0.25  # seconds
_WINDOW, _LEAST_WINDOW = 32, 4  # slots

Array = npt.NDArray[Any]


class SlotState:
    """`struct p4r_slots` and the arrays that it points to.

    Args:
        slots: their number.
        urgent: how many of these, the last ones, are for class 1, 2 and so on.
        levels: switches above this rank.
        outgoing: the frames to send.
        kept: takes the slots' last results.
        place: this rank's place among those at its switch, from 0. None: these are few.
        constants: the structure's first fields, by name.

    Attributes:
        structure, address: of C.
        expected: the round whose result a slot waits for, or `IDLE`.
        next_round: its next round.
        block: that the round under way is about, or `OPENING`.
        announced: this rank's next block in the slot.
        exponent: agreed for `block`.
        parts: of the result that have come, as bits.
        row: of `outgoing`: the frame to repeat.
        owner: sequence number of the collective that has the slot.
        heard, level: from the last STATUS, and which switch that is from.
        tries: how often the contribution was repeated, or another rank's in its place.
        sent_at, due: when it was sent first, and when it is to be sent again.
        opening, order, waiting: whether the round opens a stripe; where the slot is in the order
            of all ranks; whether its frame is to be sent.
        left: ranks that have left, as bits of each level.
        streams: addresses of the slots' collectives.
        over: sequence numbers of collectives that are over.
        trips: the round trips, of which `structure` has the number.
        window, flags: numpy's view of the window's size, and of whether something is held back.
    """

    def __init__(
        self,
        slots: int,
        urgent: Sequence[int],
        levels: int,
        outgoing: FrameBuffer,
        kept: FrameBuffer,
        *,
        place: int | None,
        **constants: Any,
    ) -> None:
        self.expected = np.full(slots, IDLE, np.int64)
        self.next_round = np.zeros(slots, np.uint32)
        self.block = np.full(slots, OPENING, np.int64)
        self.announced = np.zeros(slots, np.int64)
        self.exponent = np.zeros(slots, np.uint8)
        self.parts = np.zeros(slots, np.uint8)
        self.row = np.zeros(slots, np.int64)
        self.owner = np.zeros(slots, np.int64)
        self.heard = np.zeros(slots, np.uint64)
        self.level = np.zeros(slots, np.uint8)
        self.tries = np.zeros(slots, np.int64)
        self.sent_at = np.zeros(slots)
        self.due = np.full(slots, np.inf)
        self.opening = np.zeros(slots, np.uint8)
        self.order = np.full(slots, _LAST)
        self.waiting = np.zeros(slots, np.uint8)
        self.left = np.zeros(levels, np.uint64)
        self.trips = RoundTrips()
        self.streams = np.zeros(slots, np.uint64)
        self._scratch: dict[str, Array] = {
            "queued": np.zeros(slots, np.int64),
            "completed": np.zeros(slots, np.int64),
            "how": np.zeros(slots, np.uint8),
            "next": np.zeros(2 * slots, np.uint32),
            "sorted": np.zeros(slots, np.int64),
            "samples": np.zeros_like(self.trips.seconds),
            "visited": np.zeros(3 * slots, np.int64),
            "visiting": np.zeros(slots, np.int64),
        }
        tree = levels > 1
        deferral, tries_a_doubling, stretch = _deferral(place, tree)
        self.structure = SlotsStructure(
            slots=slots,
            classes=1 + len(urgent),
            levels=levels,
            deferral=deferral,
            tries_a_doubling=tries_a_doubling,
            stretch=stretch,
            outgoing=outgoing.rows_address,
            lengths=outgoing.lengths.ctypes.data,
            kept=kept.rows_address,
            round_trips=self.trips.seconds.ctypes.data,
            latest=math.inf,
            heard_switch_at=-math.inf,
            window=min(slots, _WINDOW + sum(urgent)),
            floor=min(slots, _LEAST_WINDOW),
            growth=1,
            **constants,
        )
        starts = [one.start for one in class_slots(slots, urgent)]
        self.structure.starts[: len(starts)] = starts
        for timeout in (self.structure.timeout, self.structure.opening_timeout):
            timeout.seconds, timeout.floor = _TIMEOUT, _FLOOR
            timeout.ceiling = timeout.least_ceiling = _CEILING
            timeout.window_ends = timeout.answered_up_to = timeout.answered_at = -math.inf
        # Each array's address is in the field of its name.
        for name, array in (vars(self) | self._scratch).items():
            if isinstance(array, np.ndarray):
                setattr(self.structure, name, array.ctypes.data)
        self.address = ctypes.addressof(self.structure)
        self._live = np.zeros(0, np.uint64)
        self.over = np.zeros(0, np.int64)
        self._numbers: Array | None = None
        self.make_room_for(8)
        self.window = self._view("window", np.int64)
        self.flags = self._view("holds_back", np.uint32)

    def _view(self, field: str, dtype: Any) -> Array:
        at = getattr(SlotsStructure, field)
        memory = memoryview(self.structure).cast("B")
        view: Array = np.frombuffer(memory, dtype, 1, at.offset)
        return view

    def make_room_for(self, collectives: int) -> None:
        """Make room for that many collectives in flight."""
        if collectives <= len(self.over):
            return
        live = np.zeros(2 * collectives, np.uint64)
        live[: len(self._live)] = self._live
        self._live, self.over = live, np.zeros(2 * collectives, np.int64)
        self.structure.live, self.structure.over = live.ctypes.data, self.over.ctypes.data
        self.structure.room = len(live)

    def make_room_to_visit(self) -> None:
        """Note that some blocks can only be accessed by Python."""
        if self._numbers is None:
            self._numbers = np.zeros((len(self.expected), 2 * _MOST_NUMBER_BYTES), np.uint8)
            self.structure.numbers = self._numbers.ctypes.data

    def relink(self, streams: dict[int, int]) -> None:
        """Set the addresses of collectives in flight again, by sequence number.

        For a caller that has restored the rest of the state.
        """
        self.structure.live_count = len(streams)
        self._live[: len(streams)] = [streams[sequence] for sequence in sorted(streams)]
        self.streams[:] = [streams.get(owner, 0) for owner in self.owner.tolist()]

    @property
    def bare(self) -> npt.NDArray[np.bool_]:
        """The slots whose contributions have no room for a result with lanes."""
        bare: npt.NDArray[np.bool_] = (self.row % SHAPES == 0) & (self.block != OPENING)
        return bare


def _deferral(place: int | None, tree: bool) -> tuple[int, int, float]:
    """Return `deferral`, `tries_a_doubling` and `stretch`; see docs/protocol.md, "Who asks".

    `deferral` is 0 for a rank that asks as soon as a timer runs out, and 1 if another one asks for
    it first, so that it waits twice as long. A timeout is doubled after that many tries. All of
    this takes `stretch` times as long.
    """
    if not place:
        return 0, 4 if place == 0 and tree else 1, 1.0
    return 1, 1, 1.0 if not tree else 1.5 if place == 1 else 2.0
