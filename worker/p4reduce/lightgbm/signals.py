# SPDX-License-Identifier: Apache-2.0
"""Handlers of signals wait until a callback from C can catch what they raise.

A signal that arrives while C code computes is handled at the first instruction of the callback,
before any `try` of it. What the handler raises there, such as KeyboardInterrupt, ctypes drops.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any


class WaitingSignals:
    """Within this context, which may be entered again, handlers wait while a callback runs.

    They run where the callback says so, and at the end. Handlers run in the main thread only: in
    another thread this does nothing.

    Args:
        callbacks: the code of the functions that C code calls.
    """

    def __init__(self, callbacks: Collection[CodeType]) -> None:
        self._callbacks = callbacks
        self._depth = 0
        self._at_once = False
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: deque[int] = deque()

    def __enter__(self) -> WaitingSignals:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._on_signal:  # else somebody has set another one
                signal.signal(number, handler)
        self._handle()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Run the handlers that wait, and within this context others at once."""
        self._at_once = True
        try:
            self._handle()
            yield
        finally:
            self._at_once = False

    def _handle(self) -> None:
        while self._waiting:
            number = self._waiting.popleft()
            self._handlers[number](number, inspect.currentframe())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or not self._within_callback(frame):
            self._handlers[number](number, frame)
        else:
            self._waiting.append(number)

    def _within_callback(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code in self._callbacks:
                return True
            frame = frame.f_back
        return False
