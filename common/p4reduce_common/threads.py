# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks that report how they end.

Everything else runs in pools of `concurrent.futures` or in `session/threaded_call.py`, which hand
the exception to the caller that asks for the result.

An exception that nobody expects ends a thread. Its owner is then told, with the cause, instead of
waiting for work that nobody does any more. docs/architecture.md lists all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

Failed = Callable[[BaseException], object]


def new_thread(
    target: Callable[..., object],
    name: str,
    failed: Failed | None = None,
    *,
    args: tuple[Any, ...] = (),
    daemon: bool = True,
) -> threading.Thread:
    """Return a thread, not started yet, whose exception is logged and reported.

    Args:
        target: what it runs.
        name: of the thread, for logs and debuggers.
        failed: called in the thread with the exception that ended `target`; None: the log is
            enough, as nobody depends on the thread or `target` itself has told its owner.
        args: of `target`.
        daemon: whether the interpreter ends without waiting for it.
    """

    def run() -> None:
        try:
            target(*args)
        except SystemExit as error:
            # It ends the thread alone, as in any thread, and is no fault to log.
            if failed is not None:
                failed(error)
        except BaseException as error:
            report(f"thread {name}", error, failed)

    return threading.Thread(target=run, name=name, daemon=daemon)


def watch_task(task: asyncio.Task[Any], failed: Failed | None = None) -> None:
    """Log the exception that a task ends with, and call `failed` with it, as `new_thread` does."""

    def over(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            report(f"task {task.get_name()}", error, failed)

    task.add_done_callback(over)


def report(what: str, error: BaseException, failed: Failed | None) -> None:
    """Log that something has ended by an exception, and tell its owner."""
    log.error("%s ended by an exception: %r", what, error, exc_info=error)
    if failed is not None:
        try:
            failed(error)
        except Exception:
            log.exception("%s: its owner could not be told", what)
