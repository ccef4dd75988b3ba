# SPDX-License-Identifier: Apache-2.0
"""One collective: its input and output as blocks and stripes, and its end."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from p4reduce_common.figures import three_digits

from p4reduce.errors import P4ReduceError, P4ReduceTimeoutError
from p4reduce.latch import Latch
from p4reduce.tensors.blocks import Absent, BlockRows, Blocks, BlockSource, BlockTarget
from p4reduce.tensors.collective_trace import CollectiveTrace
from p4reduce.tensors.measure import BlockTables
from p4reduce.tensors.noise import Noise
from p4reduce.tensors.progress import PartPlace
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import FLOAT_LANES, Format, stripes_of

DTYPES = (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32)
"""What can be reduced, as dtypes in the machine's own byte order."""

BEFORE_LOWER = 1 << 58
"""Taken from the order of a collective for each class below its own: more than any number of
stripes. See docs/protocol.md, "Classes"."""

_NO_OVERFLOW = -1  # P4R_NO_OVERFLOW
_GRACE = 8.0  # seconds that the progress thread has beyond a deadline to report it
_SLICE = 1.0  # seconds; a wait in slices does not count the time for which the process was stopped


class Collective:
    """One stream of blocks through the slots, from its call to its end.

    All that the switch does is to sum; which collective it is depends on who has blocks and on
    who keeps sums (docs/collectives.md). A rank without blocks gives a source without any, one
    that has no use for the sums a target that drops them.

    Attributes:
        tables: what this rank's blocks are, `left` included.
        working_dtype: what the lanes are computed from and turned into: float32 for float16.
        count: blocks; `none` (the same number) stands for "no block" in `next_nonzero`.
        stripes: how many slots it uses, at least one: with no blocks at all, the round that opens
            a stripe still makes the ranks meet and compares their tags.
        next_nonzero: the first block from b on in b's stripe that is not all zeros, or `none`;
            shape (at least count + stripes,).
        priority: its class.
        residual: takes this rank's rounding errors; None: they are dropped.
        is_full: whether no block is all zeros.
        exponents: of each block, and 0 for `none`; shape (count + 1,).
        deadline: seconds on the monotonic clock.
        slots, first_slot: how many slots there are for it, and the first of these.
        offset: the slot of stripe 0; the others have those after it, and continue from the first.
        placed: whether the job's slots have been dealt to it, from `offset` on.
        left: `remaining`, and the first block with a sum that overflowed or -1, where machine code
            sees them too.
        number: of the call within the communicator, for messages.
        counted: whether it counts as a collective in statistics.
        over_at: when it ended, on the monotonic clock.
        on_end: called when it has ended; must not wait for anything.
        stream: what machine code keeps of it; see `tensors.native_stream.Stream`.
        runner: what runs it in the thread that waits for it; None: the progress thread does.
        trace: what is written down about it; None: it is not traced.
        place: where it belongs among the parts at other switches; None: they need not know.
    """

    # With so many attributes, each object would have a dictionary with keys of its own.
    __slots__ = (
        "_over",
        "call",
        "count",
        "counted",
        "deadline",
        "dtype",
        "error",
        "exponents",
        "first_slot",
        "format",
        "is_full",
        "is_mean",
        "left",
        "next_nonzero",
        "noise",
        "none",
        "number",
        "offset",
        "on_end",
        "over_at",
        "place",
        "placed",
        "priority",
        "residual",
        "runner",
        "sequence",
        "slots",
        "source",
        "started",
        "stream",
        "stripes",
        "tables",
        "tag",
        "target",
        "timeout",
        "trace",
        "working_dtype",
    )

    def __init__(
        self,
        call: Call,
        source: BlockSource,
        target: BlockTarget,
        *,
        sequence: int,
        slots: int,
        first_slot: int = 0,
        timeout: float,
        lane_format: Format = Format.INT32,
        noise: Noise | None = None,
        number: int | None = None,
        counted: bool = True,
        on_end: Callable[[Collective], object] | None = None,
        place: PartPlace | None = None,
    ) -> None:
        """Measure the input.

        Args:
            call: what to do.
            source: what this rank has; must not change until the collective is over.
            target: takes the sums; may write to what `source` reads.
            sequence: number of the collective within the job on its switch.
            slots: of the job, that are for collectives of its class.
            first_slot: of these.
            timeout: seconds from now on.
            lane_format: of the blocks, which have as many elements as that has lanes.
            noise: for rounding floats to narrow lanes.
            number: of the call within the communicator. None: `sequence`.
            counted: whether it counts as a collective in statistics.
            on_end: called when it has ended. None: nothing is.
            place: where it belongs among the parts at other switches.

        Raises:
            ValueRangeError: see `quantise.block_exponents`.
        """
        self.call = call
        self.priority = call.priority
        self.is_mean = call.operation is Operation.MEAN
        self.sequence = sequence
        self.number = sequence if number is None else number
        self.dtype = source.dtype
        self.working_dtype = np.dtype(np.float32) if self.dtype == np.float16 else self.dtype
        self.format = lane_format
        self.noise = noise
        self.tag = call.fingerprint(sequence, lane_format)
        if lane_format is Format.INT32 and self.working_dtype == np.float32:
            self.tag |= FLOAT_LANES
        self.source: BlockRows = source
        self.residual = source.residual if isinstance(source, Blocks) else None
        self.target = target
        self.count = self.none = len(source)
        self.stripes = stripes_of(self.count, slots, lane_format.lane_bits)
        tables = self.tables = BlockTables(self.count, self.stripes)
        self.left, self.exponents = tables.left, tables.exponents
        self.next_nonzero = tables.next_nonzero
        self.left[:] = self.stripes, _NO_OVERFLOW
        self.slots, self.first_slot = slots, first_slot
        self.offset = first_slot
        self.placed = False
        source.measure(tables)
        self.is_full = tables.look_ahead() == self.count
        # What no rank announces stays zero. This rank's own zeros (of either sign) are all that
        # nobody may announce, and in place they are zeros as well.
        if not self.is_full:
            target.fill(~tables.nonzero, 0)
            if self.residual is not None:
                self.residual.fill(~tables.nonzero, 0)
        self.timeout = timeout
        self.started = time.monotonic()
        self.deadline = self.started + timeout
        self.error: P4ReduceError | None = None
        self.counted = counted
        self.over_at = math.inf
        self.on_end = on_end
        self.place = place
        self.stream: Any = None
        self.runner: Callable[[], object] | None = None
        self.trace: CollectiveTrace | None = None
        self._over = Latch()

    @property
    def remaining(self) -> int:
        """The number of stripes that are not complete."""
        return int(self.left[0])

    @property
    def overflowed(self) -> int | None:
        """The first block whose sum is known to overflow; None if there is none."""
        block = int(self.left[1])
        return None if block == _NO_OVERFLOW else block

    @overflowed.setter
    def overflowed(self, block: int) -> None:
        self.left[1] = block

    @property
    def description(self) -> str:
        """For messages: "allreduce 7 ('grad', SUM of 1,000 float32)"."""
        return self.call.describe(self.number)

    def finish(self, error: P4ReduceError | None = None) -> None:
        """End it. The first call counts.

        What keeps the collective does not keep the caller's arrays.
        """
        if not self._over.is_set():
            self.error = error
            self.source = self.target = Absent(self.dtype, self.count)
            self.residual = None
            self.over_at = time.monotonic()
            if self.trace is not None:
                self.trace.end(self.over_at, error)
            self._over.set()
            if self.on_end is not None:
                self.on_end(self)

    def done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self._over.is_set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has. None: without a limit."""
        runner, self.runner = self.runner, None
        if runner is not None:
            runner()
        if self._over.is_set():
            return True
        if timeout is not None:
            return self._over.wait(timeout)
        left = max(self.deadline - time.monotonic(), 0.0) + _GRACE
        while left > 0 and not self._over.wait(min(left, _SLICE)):
            left -= _SLICE
        return self._over.is_set()

    def wait(self, timeout: float | None) -> None:
        """Wait for the end, at most `timeout` seconds. Raises the error that ended it."""
        if not self.join(timeout):
            limit = self.timeout + _GRACE if timeout is None else timeout
            within = f"{three_digits(limit)} s"
            raise P4ReduceTimeoutError(
                f"{self.description} is not complete after {within}; it continues"
                if timeout is not None
                else f"the progress thread did not end {self.description} within {within}",
                seconds=limit,
            )
        if self.error is not None:
            raise copy.copy(self.error)
