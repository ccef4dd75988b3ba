# SPDX-License-Identifier: Apache-2.0
"""An exception that nobody expects, in a thread of ours, where a function of ours is called.

Python's trace function of new threads raises it. So no code of ours knows of the fault.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from p4reduce_common import threads

PACKAGES = ("/common/p4reduce_common/", "/worker/", "/controller/", "/switch/", "/lab/")


class InjectedError(Exception):
    """What the threads do not expect."""


class ThreadFault:
    """Raises an exception at one call in a thread that begins from now on.

    Args:
        thread: the beginning of the thread's name.
        function: the called function's name in its class, such as "Seeker.take".
        error: instead of `InjectedError`.

    Attributes:
        error: what is raised.
        raised: whether it was. It is, once, after `arm`.
    """

    def __init__(self, thread: str, function: str, error: BaseException | None = None) -> None:
        self.raised = threading.Event()
        self._thread, self._function = thread, function
        self.error = error or InjectedError(f"in {thread}: {function}")
        self._armed = False

    def arm(self) -> None:
        """From now on."""
        self._armed = True

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not any(package in code.co_filename for package in PACKAGES):
            return None
        if not threading.current_thread().name.startswith(self._thread):
            return None
        below = frame.f_back
        if code.co_filename == threads.__file__ or below is None:
            return None
        if below.f_code.co_filename == threads.__file__:
            return None  # the target itself: what follows it is its own
        wanted, name = self._function, code.co_name
        if sys.version_info >= (3, 11):
            name = code.co_qualname
        else:
            wanted = wanted.rpartition(".")[2]
        if not self._armed or self.raised.is_set() or wanted != name:
            return None
        self.raised.set()
        raise self.error


@contextlib.contextmanager
def fault_in_threads(fault: Callable[..., Any]) -> Iterator[None]:
    """Threads that start within the block have the fault."""
    before = threading.gettrace()
    threading.settrace(fault)
    try:
        yield
    finally:
        threading.settrace(before)  # type: ignore[arg-type]  # None takes it away
