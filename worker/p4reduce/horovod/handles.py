# SPDX-License-Identifier: Apache-2.0
"""The handles of asynchronous calls, and the two functions that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from p4reduce.horovod.errors import internal
from p4reduce.torch.work import OutcomeWork


class CollectiveHandles:
    """Collectives in flight.

    Args:
        works: of the collectives.
        finish: makes the result when they are complete; called once.
    """

    def __init__(self, works: Sequence[OutcomeWork], finish: Callable[[], Any]) -> None:
        self._works = works
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    @classmethod
    def of_all(cls, handles: Sequence[CollectiveHandles]) -> CollectiveHandles:
        """Return the handle of several, whose result is the list of their results."""
        works = [work for handle in handles for work in handle._works]
        return cls(works, lambda: [handle.wait() for handle in handles])

    def is_over(self) -> bool:
        """Whether `wait` would return at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Return the result. Raises HorovodInternalError."""
        with internal():
            for work in self._works:
                work.wait()
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


def poll(handle: CollectiveHandles) -> bool:
    """Return whether a collective is complete, so that `synchronize` would not wait."""
    return handle.is_over()


def synchronize(handle: CollectiveHandles) -> Any:
    """Wait for a collective, and return its result.

    Raises:
        HorovodInternalError: it failed; the message names a lost rank.
    """
    return handle.wait()
