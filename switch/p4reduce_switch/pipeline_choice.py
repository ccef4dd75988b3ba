# SPDX-License-Identifier: Apache-2.0
"""Loads a program as machine code if possible, else interprets it."""

from __future__ import annotations

import logging
from typing import Literal

from p4reduce_native.errors import NativeUnavailableError

from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.debug.debugger import Debugger
from p4reduce_switch.debug.pipeline import DebugPipeline
from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.queue_settings import QueueSettings

log = logging.getLogger(__name__)

Engine = Literal["auto", "native", "python"]


def load_pipeline(
    config: bytes | str,
    *,
    engine: Engine = "auto",
    cpu_port: int | None = None,
    drop_port: int = 511,
    queues: QueueSettings | None = None,
    debugger: Debugger | None = None,
) -> Pipeline:
    """Load p4c's JSON.

    Args:
        engine: "auto" interprets a program that cannot become machine code, and logs why; "python"
            always interprets it.
        cpu_port, drop_port, queues: as for `Pipeline`.
        debugger: called at each point of the program, which is then interpreted.

    Raises:
        LoadError: the program cannot be loaded, with construct and source line.
        NotNativeError: the engine is "native", and a construct of the program cannot become
            machine code; the message names it.
        NativeUnavailableError: the engine is "native", and there is no compiler or cache.
    """
    if debugger is not None:
        return DebugPipeline(
            config, debugger, cpu_port=cpu_port, drop_port=drop_port, queues=queues
        )
    if engine != "python":
        try:
            return NativePipeline(config, cpu_port=cpu_port, drop_port=drop_port, queues=queues)
        except (NotNativeError, NativeUnavailableError) as error:
            if engine == "native":
                raise
            log.warning("the program is interpreted, many times slower: %s", error)
    return Pipeline(config, cpu_port=cpu_port, drop_port=drop_port, queues=queues)
