# SPDX-License-Identifier: Apache-2.0
"""Memory for copies of gradients, used again and again.

Fresh memory for each copy would cost more than the copy: the kernel fills every page with zeros
first. So memory that a copy has left waits here for the next one: `LIMIT` bytes at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from p4reduce.tensors.blocks import Array

_SMALL = 1 << 18  # bytes; below, malloc hands out memory that has been used before
_ROOMY = 2  # times the memory that is asked for; more would be a waste
_MOST_PASSES = 16  # copies that had no use for a piece of memory, before it is given back

LIMIT = 128 << 20
"""Bytes of unused memory, at most."""


class PooledCopy:
    """A copy's memory, which goes back to the spare memory when this object is released.

    Attributes:
        rows: shape (blocks, lanes), not yet filled.
    """

    _memory: Array | None = None  # also where an exception has cut `__init__` short

    def __init__(self, rows: Array, memory: Array | None, copy_pool: CopyPool) -> None:
        self.rows = rows
        self._memory, self._copy_pool = memory, copy_pool

    def __del__(self) -> None:
        if self._memory is not None:
            self._copy_pool.take_back(self._memory)


class CopyPool:
    """Memory that copies have released. Any thread may use it; nothing here waits for a lock."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Array, int]] = deque()  # memory, and how often it was passed by

    @property
    def nbytes(self) -> int:
        """The unused memory in bytes."""
        return sum(memory.nbytes for memory, _ in list(self._waiting))

    def take(self, blocks: int, lanes: int, dtype: np.dtype[Any]) -> PooledCopy:
        """Return memory for a copy, unused or fresh."""
        need = blocks * lanes * dtype.itemsize
        memory = self._fitting(need)
        if memory is None:
            memory = np.empty(need, np.uint8)
        rows = memory[:need].view(dtype).reshape(blocks, lanes)
        return PooledCopy(rows, memory if need >= _SMALL else None, self)

    def _fitting(self, need: int) -> Array | None:
        """Take the first piece that fits out of those that wait; release those that never do."""
        found: list[Array] = []

        def stays(memory: Array, passed_by: int) -> bool:
            if not found and need >= _SMALL and need <= memory.nbytes <= _ROOMY * need:
                found.append(memory)
                return False
            return passed_by < _MOST_PASSES

        self._sift(stays)
        return found[0] if found else None

    def take_back(self, memory: Array) -> None:
        """Keep unused memory for a later copy, and give back the oldest beyond `LIMIT`."""
        self._waiting.append((memory, 0))
        with suppress(IndexError):  # another thread has taken the last one
            while self.nbytes > LIMIT:
                self._waiting.popleft()

    def _sift(self, stays: Callable[[Array, int], bool]) -> None:
        """Keep the pieces for which a function says so."""
        for _ in range(len(self._waiting)):
            try:
                memory, passed_by = self._waiting.popleft()
            except IndexError:  # another thread has it
                break
            if stays(memory, passed_by):
                self._waiting.append((memory, passed_by + 1))
