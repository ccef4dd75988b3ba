# SPDX-License-Identifier: Apache-2.0
"""The signals that end a command in order."""

from __future__ import annotations

import signal
from contextlib import suppress
from queue import Empty, SimpleQueue

_WAKE_SECONDS = 0.5


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return SIGINT, SIGTERM, and SIGHUP of a terminal that closes.

    SIGHUP is not among them if this process was started to ignore it, as by `nohup`.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


class EndRequest:
    """A signal handler's request to end this process, for which the main thread waits.

    Python runs a handler between two steps of the main thread. So `threading.Event.set` may wait
    for a lock that the main thread holds in `Event.wait`: both would wait without end.
    `SimpleQueue.put` may interrupt `get`, says Python's documentation.
    """

    def __init__(self) -> None:
        self._requests: SimpleQueue[None] = SimpleQueue()

    def make(self) -> None:
        """Ask to end; for signal handlers."""
        self._requests.put(None)

    def wait(self) -> None:
        """Return when it is asked for."""
        # In short waits: the kernel may give the signal to another thread, and Python calls the
        # handler only once the main thread runs again.
        while True:
            with suppress(Empty):
                return self._requests.get(timeout=_WAKE_SECONDS)
