# SPDX-License-Identifier: Apache-2.0
"""Runs a notebook of docs/notebooks from top to bottom, by nbmake in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
_SECONDS = 280


def run_notebook(name: str) -> None:
    """Fail with nbmake's report if a cell of the notebook fails."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbmake"]
    command += [f"--nbmake-timeout={_SECONDS}", f"--timeout={_SECONDS}", str(NOTEBOOKS / name)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_SECONDS + 10,
        check=False,
        env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
