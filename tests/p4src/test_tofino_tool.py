# SPDX-License-Identifier: Apache-2.0
"""`make tofino` with programs in the compiler's place that hang or fail: its errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_scripts import tool_script

tofino = tool_script("tofino")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compiler's file on PATH, still empty, beside an assembler."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (tofino.COMPILER, tofino.ASSEMBLER):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs / tofino.COMPILER


def test_a_compiler_that_hangs_is_ended(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(tofino, "COMPILER_MINUTES", 0.01)
    said = r"p4c-barefoot was ended after 0\.01 minutes, in which it used a processor for \d+ s"
    with pytest.raises(tofino.TofinoError, match=said):
        tofino.compile_program(tmp_path / "made")


def test_what_a_compiler_refuses_is_told(compiler: Path, tmp_path: Path) -> None:
    compiler.write_text("#!/bin/sh\necho $GC_MARKERS marker: too many registers >&2\nexit 3\n")
    said = "p4c-barefoot ended with 3:\n1 marker: too many registers"
    with pytest.raises(tofino.TofinoError, match=said):
        tofino.compile_program(tmp_path / "made")


def test_a_compiler_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tofino.TofinoError, match="p4c-barefoot, bfas not on PATH: build p4c with"):
        tofino.compile_program(tmp_path / "made")
