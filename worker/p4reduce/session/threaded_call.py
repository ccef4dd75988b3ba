# SPDX-License-Identifier: Apache-2.0
"""Work that an exception of a signal handler cannot leave half done.

Signal handlers run in the main thread between any two instructions, and their exceptions end
whatever it does. So work with several steps and resources (joining, forming again, leaving) has a
thread of its own, and the caller waits for it.
"""

from __future__ import annotations

import _thread
import atexit
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from p4reduce.latch import Latch

T = TypeVar("T")

_LONG = 3600.0  # seconds; the work has deadlines of its own
_UNDONE_WITHIN = 5.0  # seconds that an exception waits for what it left to be undone
_LAST_WAIT = 15.0  # seconds, at the interpreter's end


class ThreadedCall(Generic[T]):
    """Calls a function in a thread of its own.

    `threading.Thread` is not used, because an exception within its `start` can leave the new thread
    waiting for ever.

    Args:
        work: the function; must end by itself in bounded time.
        cancel: called when the caller is gone; `work` should then end soon.
        undo: called with the result if the caller is gone, perhaps more than once.
    """

    def __init__(
        self,
        work: Callable[[], T],
        *,
        cancel: Callable[[], object] = lambda: None,
        undo: Callable[[T], object] = lambda result: None,
    ) -> None:
        self._work = work
        self._cancel = cancel
        self._undo = undo
        self._begun = False
        self._over = Latch()
        self._unwanted = False
        self._results: list[T] = []
        self._error: BaseException | None = None

    def __call__(self) -> T:
        """Do it; return what it returns, or raise what it raises."""
        try:
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                if not self._begun:
                    self._run()  # there are no new threads at the interpreter's end
            while not self._over.wait(_LONG):
                pass
            if self._error is not None:
                raise self._error
            return self._results[0]
        except BaseException as error:
            if error is not self._error:
                self.abandon()
            raise
        finally:
            self._error = None  # its traceback has this frame

    def abandon(self) -> None:
        """The caller is gone: undo the result, now or when the work has ended."""
        self._unwanted = True
        self._cancel()
        if self._over.is_set():
            self._undo_results()
        elif self._begun:
            self._over.wait(_UNDONE_WITHIN)

    def _run(self) -> None:
        self._begun = True
        _running.add(self)
        try:
            if not self._unwanted:
                self._results.append(self._work())
        except BaseException as error:
            self._error = error
        if self._unwanted:
            self._undo_results()
        self._over.set()
        # Between the two lines above the caller may have gone.
        if self._unwanted:
            self._undo_results()
        _running.discard(self)

    def _undo_results(self) -> None:
        for result in self._results:
            self._undo(result)


_running: set[ThreadedCall[Any]] = set()


@atexit.register
def _wait_for_all() -> None:
    """What has been begun, such as to leave a job, is not cut off by the interpreter's end."""
    for call in list(_running):
        call._over.wait(_LAST_WAIT)
