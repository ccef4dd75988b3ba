# SPDX-License-Identifier: Apache-2.0
"""Every module of the benchmarks can be imported.

All of them are in one process. No order can matter, as nothing imports in a circle: `make lint`
checks that.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, sys, traceback
failed = 0
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "mpi4py", "pyspark", "ray"):
            traceback.print_exc()
            failed += 1
    except BaseException:
        traceback.print_exc()
        failed += 1
sys.exit(failed)
"""


@pytest.mark.own_start
def test_each_can_be_imported() -> None:
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in sorted((ROOT / "bench").rglob("*.py"))
        if file.stem != "__init__"
    ]
    assert "bench.switch.ports" in names
    found = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT, capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
