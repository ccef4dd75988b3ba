# SPDX-License-Identifier: Apache-2.0
"""Writes the job table to disk after each change.

Each write waits for a flush of the disk, so it has a thread of its own. Changes during a write go
into the next one together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from p4reduce_common.threads import watch_task

log = logging.getLogger(__name__)

SLOW = 5.0  # seconds that a write may take before the log has it
_SLOW_TEXT = "the job table is not on disk after %g s: ranks that join or recover wait for the disk"

RETRY = 1.0  # seconds after a write that failed
LAST_WRITE = 2.0  # seconds for it


class JobTableWriter:
    """Writes the table when it has changed. Create and use it in the event loop.

    `snapshot` returns the contents, and `write` writes them and may raise OSError.
    """

    def __init__(self, snapshot: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        self._snapshot = snapshot
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="job-table")
        self._version = 0  # of what is in memory
        self._kept = 0  # of what is on disk
        self._wake = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failed = False
        self._task = self._loop.create_task(self._keep(), name="job-table")
        watch_task(self._task)

    def on_changed(self) -> None:
        """Note that the version on disk is out of date."""
        self._version += 1
        self._wake.set()

    async def kept(self) -> None:
        """Wait until all changes so far are on disk. Raises OSError if that fails."""
        if self._kept >= self._version:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._version, future))
        await future

    async def close(self) -> None:
        """Write pending changes if the disk answers soon, and stop."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.kept(), LAST_WRITE)
        self.abandon()

    def abandon(self) -> None:
        """Stop without writing."""
        self._task.cancel()
        self._thread.shutdown(wait=False)

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            version = self._version
            slow = self._loop.call_later(SLOW, log.warning, _SLOW_TEXT, SLOW)
            try:
                await self._loop.run_in_executor(self._thread, self._write, self._snapshot())
            except Exception as error:
                if not self._failed:
                    # What is no OSError is our own fault; those who wait are not to suffer by it.
                    exc_info = None if isinstance(error, OSError) else error
                    log.error("the job table cannot be written: %s", error, exc_info=exc_info)
                self._failed = True
                self._answer(self._version, OSError(str(error)))
                await asyncio.sleep(RETRY)
                self._wake.set()
                continue
            finally:
                slow.cancel()
            if self._failed:
                log.info("the job table can be written again")
            self._failed = False
            self._kept = version
            self._answer(version, None)

    def _answer(self, version: int, error: OSError | None) -> None:
        """Wake the calls that wait for that version or an earlier one."""
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > version:
                self._waiting.append((wanted, future))
            elif future.done():
                pass  # its caller went away
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
