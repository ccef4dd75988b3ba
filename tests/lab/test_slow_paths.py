# SPDX-License-Identifier: Apache-2.0
"""Slow ways that were taken are said on the console of whoever started the run."""

from __future__ import annotations

import re
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
def test_exec_says_that_ranks_have_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link that was asked for cannot be had: the switch has Python ports."""
    monkeypatch.setitem(ENVIRONMENT, "P4REDUCE_NATIVE", "0")
    example = str(ROOT / "examples" / "allreduce.py")
    run = Launched(tmp_path, "exec", "-n", "1", "--", sys.executable, example)
    assert run.wait() in (0, 1), run.output
    assert re.search("slower|machine code", run.output), run.output
