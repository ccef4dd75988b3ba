# SPDX-License-Identifier: Apache-2.0
"""Every benchmark can be started, each in a process that has imported nothing else.

What one module imports first can be what another one needs, so they are not imported together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Forked with others' packages there: seconds each would be theirs otherwise.
IMPORT_EACH = """
import contextlib, importlib, os, sys, traceback
for name in (
    "numpy", "google.protobuf", "grpc", "matplotlib.pyplot", "scapy.all", "click", "rich.console",
    "torch",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
failed = 0
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "mpi4py", "pyspark", "ray"):
                traceback.print_exc()
                os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    failed += os.waitpid(pid, 0)[1] != 0
sys.exit(failed)
"""


@pytest.mark.long
def test_each_can_be_imported_first() -> None:
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in sorted((ROOT / "bench").rglob("*.py"))
        if file.stem != "__init__"
    ]
    assert "bench.switch.ports" in names
    found = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, *names],
        cwd=ROOT, capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
