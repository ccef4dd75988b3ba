# SPDX-License-Identifier: Apache-2.0
"""Slow ways that were taken are said on the console of whoever started the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launched import ENVIRONMENT, ROOT, Launched
from p4reduce_lab import slow_paths


def test_a_log_line_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "switch.log"
    log.write_text(
        "2026-01-01 12:00:00,000 INFO x: nothing slower than usual is in here? no: INFO\n"
        f"2026-01-01 12:00:00,000 WARNING y: {tmp_path.name} runs in Python, many times slower\n"
        "2026-01-01 12:00:01,000 INFO z: port 1 is up\n"
    )
    slow_paths.tell([log, log, tmp_path / "none.log"])
    slow_paths.tell([log])
    said = capsys.readouterr().err.splitlines()
    assert f"p4reduce-lab: switch: {tmp_path.name} runs in Python, many times slower" in said
    assert sum(tmp_path.name in line for line in said) == 1


@pytest.mark.usefixtures("nothing_left")
def test_exec_says_that_there_is_no_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "CC", "no-such-compiler")
    monkeypatch.setitem(ENVIRONMENT, "P4REDUCE_CACHE_DIR", str(tmp_path / "empty"))
    example = str(ROOT / "examples" / "allreduce.py")
    run = Launched(tmp_path, "exec", "-n", "1", "--", sys.executable, example)
    assert run.wait() == 1, run.output
    assert "CC=no-such-compiler names no program" in run.output
