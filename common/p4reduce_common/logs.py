# SPDX-License-Identifier: Apache-2.0
"""The logs of daemons: lines for people, or JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

__all__ = ["FORMATS", "LogFormat", "configure"]

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time in seconds since the epoch, level, logger, message, error.

    Args:
        process: of several that log to one place, or "".
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            entry["process"] = self._process
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, log_format: LogFormat, process: str = "") -> None:
    """Log to standard error from this level on ("debug" to "error").

    Args:
        level: of what is logged.
        log_format: of each line.
        process: stands in each line, where several processes log to one place.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(_TEXT.replace("%(name)s", f"{process} %(name)s") if process else _TEXT)
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
