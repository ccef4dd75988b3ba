# SPDX-License-Identifier: Apache-2.0
"""Errors without the library's own frames in their traceback, because the message is enough."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from p4reduce.errors import P4ReduceError

Call = TypeVar("Call", bound=Callable[..., Any])

log = logging.getLogger(__name__)


def log_own(error: BaseException) -> bool:
    """Log at level DEBUG where this library raised an error on purpose; return whether it did.

    Then its message is enough, and the caller raises it without its traceback. To do that here
    would leave a frame more of the library.
    """
    ours = isinstance(error, (P4ReduceError, TypeError, ValueError))
    if not (ours and _is_ours(error.__traceback__)):
        return False
    log.debug("%s was raised here", type(error).__name__, exc_info=error)
    return True


def short(method: Call) -> Call:
    """Remove a function's inner frames from errors that leave it."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (P4ReduceError, TypeError, ValueError) as error:
            if log_own(error):
                raise error.with_traceback(None) from error.__cause__
            raise

    return cast(Call, call)


def _is_ours(traceback: TracebackType | None) -> bool:
    """Whether an error was raised in this package."""
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = str(traceback.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]
