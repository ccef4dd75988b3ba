# SPDX-License-Identifier: Apache-2.0
"""Writes generated code to files for people to read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce_switch.pipeline import Pipeline

log = logging.getLogger(__name__)


def source_writer(path: Path | None) -> Callable[[Pipeline, bytes], None] | None:
    """Return a function that writes the C of each loaded program, if requested. Its second
    argument is the program's JSON."""
    if path is None:
        return None

    def write(running: Pipeline, program: bytes) -> None:
        if running.source:
            try:
                path.write_text(running.source)
            except OSError as error:
                log.error("--dump-c %s: %s", path, error.strerror)

    return write
