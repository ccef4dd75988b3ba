# SPDX-License-Identifier: Apache-2.0
"""Messages at a limited rate, for causes that others control, with the number of suppressed
ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_INTERVAL_S = 10.0

log = logging.getLogger(__name__)


class RateLimitedLog:
    """Logs at most one message per `interval` seconds, whichever it is.

    Threads may share it. At worst a message more is logged, or the count is a little off.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = logger
        self._interval = interval
        self._clock = clock
        self._next = float("-inf")
        self._kept_back = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log as `logging.Logger.warning` does, or nothing."""
        self._say(self._log.warning, text, arguments)

    def exception(self, text: str, *arguments: object) -> None:
        """Log as `logging.Logger.exception` does, or nothing."""
        self._say(self._log.exception, text, arguments)

    def _say(self, say: Callable[..., None], text: str, arguments: tuple[object, ...]) -> None:
        now = self._clock()
        if now < self._next:
            self._kept_back += 1
            return
        more = f" ({self._kept_back} more since the last report)" if self._kept_back else ""
        say(text + more, *arguments)
        self._next = now + self._interval
        self._kept_back = 0


class _Undecodable(logging.Filter):
    """Replaces gRPC's traceback about a request that cannot be decoded by a line."""

    def __init__(self) -> None:
        super().__init__()
        self._warnings = RateLimitedLog(log)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `logging` writes the record."""
        if record.exc_info is None or record.exc_info[1] is None:
            return True
        why = str(record.exc_info[1]) or type(record.exc_info[1]).__name__
        self._warnings.warning("refused a gRPC request that cannot be decoded: %s", why)
        return False


def calm_grpc() -> None:
    """Replace gRPC's traceback for each malformed request by a rate-limited warning."""
    logger = logging.getLogger("grpc._common")
    if not any(isinstance(one, _Undecodable) for one in logger.filters):
        logger.addFilter(_Undecodable())
