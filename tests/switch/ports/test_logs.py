# SPDX-License-Identifier: Apache-2.0
"""Logs as JSON: one object a line, whatever the message holds."""

from __future__ import annotations

import json
import logging
import sys

from p4reduce_common.logs import JsonFormatter


def test_a_message_with_lines_and_an_exception_is_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("a.b", logging.WARNING, "file", 1, "rank %d\nlost", (3,), error)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "a.b", "rank 3\nlost")
    assert entry["time"] == round(record.created, 6)
    assert "ValueError: two\nlines" in entry["error"]
