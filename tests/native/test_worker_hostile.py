# SPDX-License-Identifier: Apache-2.0
"""Any frames at any state of the slots: the C keeps to its arrays, and to what C defines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fuzzing import Fuzz
from p4reduce_native.library import CSRC

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.fuzz
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler with sanitizers")
def test_random_frames_under_sanitizers(fuzz: Fuzz, tmp_path: Path) -> None:
    assert COMPILER is not None
    program = tmp_path / "worker_fuzz"
    sources = [path for path in (CSRC / "worker").glob("*.c") if path.name != "turn.c"]
    built = subprocess.run(
        [
            COMPILER,
            *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-fno-strict-aliasing"),
            "-fsanitize=address,undefined,float-cast-overflow",
            *("-fno-sanitize-recover=all", f"-I{CSRC}", "-o", str(program)),
            str(Path(__file__).with_name("worker_fuzz.c")),
            *map(str, sorted(sources)),
            "-lm",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "libasan" in built.stderr or "libubsan" in built.stderr:
        pytest.skip("needs the libraries of AddressSanitizer and UndefinedBehaviorSanitizer")
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr, built.stderr
    for _ in fuzz.rounds(3):
        seed = fuzz.random.randrange(1 << 32)
        done = subprocess.run(
            [str(program), str(seed), "100"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        print(seed, done.stdout, done.stderr)
        assert done.returncode == 0
