# SPDX-License-Identifier: Apache-2.0
"""The scripts of docs/frameworks.md, each on two ranks with the real package."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "frameworks.md"
SCRIPT = re.compile(r"## (\w+)\n.*?```python\n(.*?)```", re.DOTALL)
SCRIPTS = dict(SCRIPT.findall(PAGE.read_text()))
NEEDED = {"Lightning": "lightning", "Accelerate": "accelerate", "Trainer": "transformers"}
SECONDS = 250


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(script)
    command = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "2", "--"]
    return subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def needs(name: str) -> None:
    for module in ("torch", NEEDED[name]):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: make test-frameworks")


def test_the_page_has_a_script_for_each() -> None:
    assert SCRIPTS.keys() == NEEDED.keys()


@pytest.mark.timeout(SECONDS + 50)
@pytest.mark.parametrize("name", NEEDED)
def test_a_script_of_the_page_trains_by_the_switch(name: str, tmp_path: Path) -> None:
    needs(name)
    done = run(SCRIPTS[name], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"^\[[01]\] .*?loss ([\d.]+) (Statistics.*)$", done.stdout, re.MULTILINE)
    assert len(ends) == 2, done.stdout + done.stderr
    for loss, statistics in ends:
        assert float(loss) < 8  # 10 at first; Trainer gives the mean over all steps
        assert re.search(r"switch=\{.*'int8_hook': Tally\(calls=\d\d", statistics)


@pytest.mark.timeout(SECONDS + 50)
@pytest.mark.parametrize("name", ["Lightning", "Trainer"])
def test_a_hook_that_there_is_not(name: str, tmp_path: Path) -> None:
    needs(name)
    done = run(SCRIPTS[name].replace('"int8"', '"int9"'), tmp_path)
    assert done.returncode != 0
    assert "ValueError: hook 'int9' is not one of allreduce, cat, " in done.stdout + done.stderr
