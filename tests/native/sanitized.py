# SPDX-License-Identifier: Apache-2.0
"""C programs that feed the library random input, built and run under sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from fuzzing import Fuzz
from p4reduce_native.library import CSRC

_COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
_FLAGS = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-pthread",
    "-fno-strict-aliasing",
)
_DEADLINE_S = 300


class SanitizedProgram:
    """A program with a `main(seed, rounds)`, under AddressSanitizer and UndefinedBehaviorSanitizer.

    Skips the test where there is no compiler that has them.

    Args:
        directory: for the program.
        main: the file, beside this one.
        sources: of the library.
        flags: more of them; its headers are found from `CSRC` and its folders.
    """

    def __init__(
        self, directory: Path, main: str, sources: Sequence[Path], flags: Sequence[str] = ()
    ) -> None:
        if _COMPILER is None:
            pytest.skip("needs a C compiler with sanitizers")
        self._program = directory / Path(main).stem
        command = [_COMPILER, *_FLAGS, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        command += [*flags, f"-I{CSRC}", "-o", str(self._program)]
        command += [str(Path(__file__).with_name(main)), *map(str, sorted(sources)), "-lm"]
        built = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
        if "libasan" in built.stderr or "libubsan" in built.stderr:
            pytest.skip("needs the libraries of AddressSanitizer and UndefinedBehaviorSanitizer")
        assert built.returncode == 0, built.stderr
        assert "warning" not in built.stderr, built.stderr

    def run(self, fuzz: Fuzz, rounds: int) -> None:
        """Run it three times, or as long as there is time, each with a seed of its own."""
        for _ in fuzz.rounds(3):
            seed = fuzz.random.randrange(1 << 32)
            done = subprocess.run(
                [str(self._program), str(seed), str(rounds)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_DEADLINE_S,
            )
            print(seed, done.stdout, done.stderr)
            assert done.returncode == 0
