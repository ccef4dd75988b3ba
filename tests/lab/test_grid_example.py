# SPDX-License-Identifier: Apache-2.0
"""The grid of rows and columns that `split` makes, as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "grid.py"


def run(ranks: int, width: int) -> subprocess.CompletedProcess[str]:
    """Start the example on a switch of its own."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "p4reduce_lab",
            "exec",
            "-n",
            str(ranks),
            "--switch",
            "embedded",
            "--",
            sys.executable,
            str(EXAMPLE),
            "--tensor",
            str(width),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.long
def test_the_weights_are_those_of_one_process() -> None:
    done = run(8, 4)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"row of 4, column of 2; loss ([0-9.]+), ([0-9.e-]+) from one", done.stdout)
    assert len(found) == 8
    assert len({loss for loss, _ in found}) == 2  # one for each half of the samples
    assert max(float(apart) for _, apart in found) < 1e-5


@pytest.mark.long
def test_a_grid_that_does_not_fit() -> None:
    done = run(2, 3)
    assert done.returncode == 1
    assert "--tensor 3 does not divide 2 ranks evenly" in done.stdout + done.stderr
