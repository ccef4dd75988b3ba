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


def source_writer(
    python_file: Path | None, c_file: Path | None
) -> Callable[[Pipeline, bytes], None] | None:
    """Return a function that writes the code of each loaded program, if requested. The program's
    JSON is its second argument."""
    if python_file is None and c_file is None:
        return None

    def write(running: Pipeline, program: bytes) -> None:
        from p4reduce_switch.native_pipeline import NativePipeline
        from p4reduce_switch.pipeline import Pipeline

        if c_file is not None and isinstance(running, NativePipeline):
            _write("--dump-c", c_file, running.source)
        if python_file is not None:
            if isinstance(running, NativePipeline):
                running = Pipeline(
                    program, drop_port=running.drop_port, queues=running.queue_settings
                )
            _write("--dump-python", python_file, running.source)

    return write


def _write(option: str, path: Path, source: str) -> None:
    try:
        path.write_text(source)
    except OSError as error:
        log.error("%s %s: %s", option, path, error.strerror)
