# SPDX-License-Identifier: Apache-2.0
"""Compiles the P4 program of a checkout again if its sources have changed."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from p4reduce_controller.fabric.compiled_program import compiled_files

from p4reduce_lab.errors import LabError
from p4reduce_lab.progress import waiting


@functools.cache
def refresh_program() -> None:
    """Compile p4src/ if p4src/compiled/ was made from other sources.

    Without p4c the old program runs, and standard error says so.

    Raises:
        LabError: the sources do not compile; p4c has said why.
    """
    compiled = compiled_files()[0].parent
    tool = compiled.parents[1] / "tools" / "compile_p4.py"
    if not tool.is_file():
        return  # installed, without sources
    compiler = _load(tool)
    made_from, now = compiler.recorded(compiled), compiler.fingerprint()
    if made_from == now:
        return
    if not compiler.available():
        _say(
            f"WARNING: the sources in p4src/ have changed ({now[:12]}), and without p4c "
            f"(docs/bmv2.md) they cannot be compiled: the OLD program runs, compiled from "
            f"{made_from[:12]}"
        )
        return
    try:
        with waiting("p4reduce-lab: the sources in p4src/ have changed: compiling them"):
            compiler.compile_program(compiled)
    except subprocess.CalledProcessError:
        raise LabError(
            "the sources in p4src/ have changed and do not compile; p4c's messages are above. "
            f"p4src/compiled/ still has what did not compile, of {made_from[:12]}"
        ) from None


def _say(text: str) -> None:
    print(f"p4reduce-lab: {text}", file=sys.stderr, flush=True)


def _load(tool: Path) -> Any:
    spec = importlib.util.spec_from_file_location("compile_p4", tool)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
