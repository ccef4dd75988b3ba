# SPDX-License-Identifier: Apache-2.0
"""Loads a program as machine code where that can be, else in Python."""

from __future__ import annotations

import logging
from typing import Literal

from p4reduce_native.errors import NativeUnavailableError

from p4reduce_switch.native_pipeline import NativePipeline, NotNativeError
from p4reduce_switch.pipeline import LoadError, Pipeline

__all__ = ["Engine", "load_pipeline"]

log = logging.getLogger(__name__)

Engine = Literal["auto", "native", "python"]
"""Machine code, Python, or machine code where that can be."""


def load_pipeline(config: bytes | str, *, engine: Engine, cpu_port: int | None) -> Pipeline:
    """Load p4c's JSON.

    Args:
        engine: "auto" takes Python where the program cannot be machine code, and logs the reason.

    Raises:
        LoadError: the program cannot be loaded; or the engine is "native", and it cannot be
            machine code.
    """
    if engine == "python":
        return Pipeline(config, cpu_port=cpu_port)
    try:
        pipeline: Pipeline = NativePipeline(config, cpu_port=cpu_port)
    except (NotNativeError, NativeUnavailableError) as error:
        if engine == "native":
            raise LoadError(
                f"it cannot be machine code: {error}; --engine auto runs it in Python"
            ) from None
        log.warning("the program runs in Python, many times slower: %s", error)
        return Pipeline(config, cpu_port=cpu_port)
    log.info("the program runs as machine code")
    return pipeline
