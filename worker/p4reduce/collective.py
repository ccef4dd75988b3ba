# SPDX-License-Identifier: Apache-2.0
"""One collective: what it reads and writes, cut into blocks and stripes, and how it ends."""

from __future__ import annotations

import copy
import struct
import threading
import time
import zlib
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from p4reduce.blocks import Array, Blocks, Indices
from p4reduce.errors import P4ReduceError, P4ReduceTimeoutError
from p4reduce.wire import Format

DTYPES = (np.float16, np.float32, np.float64, np.int32)
"""What can be reduced, as dtypes in the machine's own byte order."""

_DTYPE_CODES = {np.dtype(kind): code for code, kind in enumerate(DTYPES, start=1)}
_GRACE = 5.0  # seconds that the progress thread has beyond a deadline to report it


class Operation(IntEnum):
    """What a collective does. `BARRIER` is a sum of nothing."""

    SUM = 0
    MEAN = 1
    BARRIER = 2


class Collective:
    """An all-reduce or a barrier from its call to its end.

    Attributes:
        working_dtype: what the lanes are computed from and turned into: float32 for float16.
        count: blocks; `none` (the same number) stands for "no block" in `next_nonzero`.
        stripes: how many slots it uses, at least one: with no blocks at all, the round that opens
            a stripe still makes the ranks meet and compares their tags.
        next_nonzero: the first block from b on in b's stripe that is not all zeros, or `none`;
            shape (at least count + stripes,).
        exponents: of each block, and 0 for `none`; shape (count + 1,).
        deadline: seconds on the monotonic clock.
    """

    def __init__(
        self,
        operation: Operation,
        source: Array,
        target: Array,
        *,
        result: Array,
        sequence: int,
        name: str,
        slots: int,
        timeout: float,
        lane_format: Format = Format.INT32,
    ) -> None:
        """Measure the input.

        Args:
            operation: what to do.
            source: flat and contiguous; must not change until the collective is over.
            target: the same size and dtype; may be `source` itself.
            result: what the caller gets: `target` in the shape wanted.
            sequence: number of the collective within the job.
            name: for the comparison between ranks, and for messages.
            slots: of the job.
            timeout: seconds from now on.
            lane_format: of the blocks.

        Raises:
            ValueRangeError: see `quantise.block_exponents`.
        """
        self.operation = operation
        self.is_mean = operation is Operation.MEAN
        self.sequence = sequence
        self.name = name
        self.size = len(source)
        self.dtype = source.dtype
        self.working_dtype = np.dtype(np.float32) if self.dtype == np.float16 else self.dtype
        self.format = lane_format
        self.tag = _fingerprint(operation, source, lane_format, sequence, name)
        self.source = Blocks(source, lane_format.lanes)
        self.target = Blocks(target, lane_format.lanes)
        self.result = result
        self.count = self.none = len(self.source)
        self.stripes = max(1, min(slots, self.count))
        self.remaining = self.stripes
        self.offset = 0
        exponents, nonzero = self.source.measure()
        self.exponents = np.append(exponents, np.uint8(0))
        self.next_nonzero = _next_nonzero(nonzero, self.stripes)
        # What nobody announces stays zero. This rank's own zeros (of either sign) are all that
        # nobody may announce, and in place they are zeros as well.
        if not nonzero.all():
            self.target.fill(~nonzero, 0)
        self.timeout = timeout
        self.started = time.monotonic()
        self.deadline = self.started + timeout
        self.error: P4ReduceError | None = None
        self.overflowed: int | None = None
        self._over = threading.Event()

    @property
    def description(self) -> str:
        """For messages: "allreduce 7 ('grad', SUM of 1000 float32)"."""
        named = f"{self.name!r}, " if self.name else ""
        if self.operation is Operation.BARRIER:
            return f"barrier {self.sequence}"
        return (
            f"allreduce {self.sequence} ({named}{self.operation.name} of "
            f"{self.size:,} {self.dtype.name})"
        )

    def finish(self, error: P4ReduceError | None = None) -> None:
        """End it; the first call counts."""
        if not self._over.is_set():
            self.error = error
            self._over.set()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over.is_set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has. None: as long as it may take."""
        limit = self.deadline + _GRACE - time.monotonic() if timeout is None else timeout
        return self._over.wait(max(limit, 0.0))

    def wait(self, timeout: float | None) -> Array:
        """Return the result once it is there. Raises what ended the collective."""
        if not self.join(timeout):
            limit = self.timeout + _GRACE if timeout is None else timeout
            raise P4ReduceTimeoutError(
                f"{self.description} is not over after {limit:g} s; it goes on"
                if timeout is not None
                else f"the progress thread did not end {self.description} within {limit:g} s",
                seconds=limit,
            )
        if self.error is not None:
            raise copy.copy(self.error)
        return self.result


def _fingerprint(
    operation: Operation, source: Array, lane_format: Format, sequence: int, name: str
) -> int:
    fixed = struct.pack(
        ">BBBQQ", operation, _DTYPE_CODES[source.dtype], lane_format, len(source), sequence
    )
    return zlib.crc32(fixed + name.encode())


def _next_nonzero(nonzero: npt.NDArray[np.bool_], stripes: int) -> Indices:
    """Look ahead along the stripes: one running minimum from the end, over all of them at once."""
    count = len(nonzero)
    steps = -(-count // stripes)
    blocks = np.full((steps + 1, stripes), count, np.int64)
    blocks.reshape(-1)[:count] = np.where(nonzero, np.arange(count), count)
    return np.minimum.accumulate(blocks[::-1], axis=0)[::-1].reshape(-1)
