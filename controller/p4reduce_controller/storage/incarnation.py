# SPDX-License-Identifier: Apache-2.0
"""Incarnation ids of jobs: 32 bits on the wire, never used twice.

A frame of an earlier life of a job must never count for this one. So the last id is kept in a file.
If the file is lost, ids continue by the clock: no id is below the number of eighths of a second
since 2025. That is above all earlier ids, unless a controller made more than eight jobs per second
on average. The 32 bits last until 2042.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from p4reduce_native.file_lock import lock_file

from p4reduce_controller.storage.durable import write_durably

EPOCH = 1735689600  # 2025-01-01 00:00 UTC
TICKS = 8  # a second
LAST = 0xFFFFFFFF
AHEAD = 2  # ids on disk that no job has yet; what is left of them at the end is never used


class Incarnations:
    """Returns ids, and writes each to `directory`/incarnation before it is used.

    Several controllers on a host may share the directory. Raises OSError if it cannot be written,
    and ValueError if something else is in the file.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._file = directory / "incarnation"
        self._clock = clock
        self._last()  # a broken file shows at start, not at the first job

    def next(self) -> int:
        """Return an id above all earlier ones. Blocks until the disk has it.

        Raises:
            OverflowError: the 32 bits are used up.
        """
        path = self._directory / "incarnation.lock"
        with path.open("w") as file:
            lock_file(file.fileno(), path, wait=True)
            floor = max(1, int((self._clock() - EPOCH) * TICKS))
            incarnation = max(self._last() + 1, floor)
            if incarnation > LAST:
                raise OverflowError(
                    f"job incarnation ids are used up, or the clock is wrong: "
                    f"the next would be {incarnation}"
                )
            write_durably(self._file, f"{incarnation}\n".encode())
        return incarnation

    def _last(self) -> int:
        try:
            text = self._file.read_text("ascii", errors="backslashreplace")
        except FileNotFoundError:
            return 0
        if not text.strip().isdecimal():
            raise ValueError(f"{self._file} should hold a number, not {text[:40]!r}")
        return int(text)


class Reserve:
    """Returns ids that are on disk already, so the event loop does not wait for the disk.

    A thread takes the next ones meanwhile. Only a caller that needs more than `AHEAD` at once
    waits.

    Args:
        take: as `Incarnations.next`; called in that thread alone.
    """

    def __init__(self, take: Callable[[], int]) -> None:
        self._take = take
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="incarnation")
        self._coming: deque[Future[int]] = deque()
        self._request(AHEAD)

    def next(self) -> int:
        """Return an id above all earlier ones. Raises what `take` raises."""
        self._request(1)
        try:
            return self._coming.popleft().result()
        except (OSError, ValueError, OverflowError):
            # What kept the thread from it then may have passed. Later ids are higher, so those
            # ordered before this one are not used any more.
            self._coming.clear()
            self._request(1 + AHEAD)
            return self._coming.popleft().result()

    def close(self) -> None:
        """Stop taking ids."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _request(self, count: int) -> None:
        self._coming.extend(self._thread.submit(self._take) for _ in range(count))
