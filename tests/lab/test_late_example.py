# SPDX-License-Identifier: Apache-2.0
"""examples/late.py as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "late.py"


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--deadline", "0.02"]], ids=["coded", "deadline"])
def test_all_ranks_train_to_the_same_distance(options: list[str]) -> None:
    command = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "4", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(EXAMPLE), "--steps", "8", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank (\d): .* of 8 sums, distance ([\d.]+)", done.stdout)
    assert sorted(rank for rank, _ in said) == ["0", "1", "2", "3"], done.stdout
    # The weights start at a mean distance of 499.5. All ranks apply the same sums, late or not.
    assert len({distance for _, distance in said}) == 1, done.stdout
    assert float(said[0][1]) < 300
