# SPDX-License-Identifier: Apache-2.0
"""A session of one rank, without a switch, a controller or a thread.

A switch would send back to a single rank what it has sent. So the caller's thread converts numbers
to lanes and back at once, and the result has the same bits.
"""

from __future__ import annotations

import copy
import os
import threading
from dataclasses import asdict

import numpy as np

from p4reduce.errors import ClosedError, InterruptedCallError, P4ReduceError
from p4reduce.session.lane_codec import codec_for
from p4reduce.statistics import Counts, Statistics
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import NONFINITE_EXPONENT
from p4reduce.wire.frames import FrameBuffer

_BLOCKS_AT_A_TIME = 64


class Solo:
    """A `Session` for a single rank.

    Args:
        job: the name for messages.
    """

    rank = 0
    shares_link = False
    world_size = 1
    slots = 1
    urgent_slots: tuple[int, ...] = ()
    leaf = (0,)

    def __init__(self, job: str) -> None:
        self.job = job
        self.origin = os.urandom(32)  # as `Session.origin`
        self.broken: P4ReduceError | None = None
        self._counts = Counts()
        self._lock = threading.Lock()

    def submit(self, collective: Collective, *, here: bool = False) -> None:
        """Run a collective completely. Raises the error that broke this before."""
        if self.broken is not None:
            raise copy.copy(self.broken)
        blocks = np.flatnonzero(
            collective.next_nonzero[: collective.count] == np.arange(collective.count)
        )
        exponents = collective.exponents[blocks]
        frames = FrameBuffer(min(len(blocks), _BLOCKS_AT_A_TIME))
        codec = codec_for(collective, self.world_size, frames)
        nonfinite = exponents == NONFINITE_EXPONENT
        if nonfinite.any():
            codec.withhold(blocks[nonfinite])
            collective.target.fill(blocks[nonfinite], np.nan)
            blocks, exponents = blocks[~nonfinite], exponents[~nonfinite]
        for start in range(0, len(blocks), _BLOCKS_AT_A_TIME):
            some = blocks[start : start + _BLOCKS_AT_A_TIME]
            scales = exponents[start : start + _BLOCKS_AT_A_TIME]
            rows = np.arange(len(some))
            codec.encode(some, scales, rows)
            codec.decode(some, scales, rows)
        with self._lock:
            self._counts.collectives += 1
            self._counts.blocks += collective.count
            self._counts.blocks_announced += len(blocks) + int(np.count_nonzero(nonfinite))
        collective.finish()

    def on_interrupted(self, error: InterruptedCallError) -> None:
        """Break, because an exception left a call."""
        self.broken = self.broken or error

    def unlock(self) -> None:
        """Do nothing: no lock is held for long."""

    def statistics(self) -> Statistics:
        """Return the statistics so far: nothing is sent."""
        return Statistics(**asdict(self._counts))

    def close(self, *, linger: bool = False) -> None:
        """End. Idempotent."""
        self.broken = self.broken or ClosedError("the communicator is closed")

    def abandon(self) -> None:
        """End, without waiting for anybody. Idempotent."""
        self.close()
