# SPDX-License-Identifier: Apache-2.0
"""A commit subject of over 72 characters is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "lint_commits.py"


@pytest.mark.parametrize(("characters", "code"), [(72, 0), (73, 1)])
def test_only_the_subject_counts(tmp_path: Path, characters: int, code: int) -> None:
    message = tmp_path / "message"
    message.write_text("x" * characters + "\n\n" + "y" * 100 + "\n")
    done = subprocess.run(
        [sys.executable, str(TOOL), str(message)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert (f"of {characters} characters" in done.stdout) == bool(code)
