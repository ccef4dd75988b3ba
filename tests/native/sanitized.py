# SPDX-License-Identifier: Apache-2.0
"""Programs that feed the library random input, built and run under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
_NO_SANITIZERS = "needs the libraries of gcc's or clang's sanitizers"


class SanitizedProgram:
    """A program with a `main(seed, rounds)`, under AddressSanitizer and UndefinedBehaviorSanitizer.

    Skips the test where there is no compiler that has them.

    Args:
        directory: for the program.
        main: the file, beside this one.
        sources: of the library.
        flags: more of them; its headers are found from `CSRC` and its folders.
        sanitizers: others than those, as -fsanitize takes them.
    """

    def __init__(
        self,
        directory: Path,
        main: str,
        sources: Sequence[Path],
        flags: Sequence[str] = (),
        *,
        sanitizers: str = "address,undefined",
    ) -> None:
        if _COMPILER is None:
            pytest.skip("needs a C compiler with sanitizers")
        self._program = directory / Path(main).stem
        command = [_COMPILER, *_FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
        command += [*flags, f"-I{CSRC}", "-o", str(self._program)]
        command += [str(Path(__file__).with_name(main)), *map(str, sorted(sources)), "-lm"]
        built = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
        if any(name in built.stderr for name in ("libasan", "libubsan", "libtsan")):
            pytest.skip(_NO_SANITIZERS)
        assert built.returncode == 0, built.stderr
        assert "warning" not in built.stderr, built.stderr

    def run(self, fuzz: Fuzz, rounds: int) -> None:
        """Run it three times, or as long as there is time, each with a seed of its own."""
        _run(fuzz, [str(self._program)], rounds, os.environ)


class SanitizedPython:
    """A script with a `main(seed, rounds, faults)`, whose C library is under the same sanitizers.

    `faults` is the library of syscall_faults.c, which is preloaded as well. Skips the test where
    there is no gcc that has them.

    Args:
        directory: for that library.
        script: the file, beside this one.
    """

    def __init__(self, directory: Path, script: str) -> None:
        gcc = shutil.which("gcc")
        if gcc is None:
            pytest.skip("needs gcc with sanitizers")
        sanitizers = [_library(gcc, name) for name in ("libasan.so", "libubsan.so")]
        self._faults = faults(directory)
        self._script = str(Path(__file__).with_name(script))
        environment = {
            **os.environ,
            "CC": gcc,
            "P4REDUCE_CFLAGS": "-O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined",
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself is not made for it
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        environment.pop("LD_PRELOAD", None)
        # Nothing is compiled with the sanitizer's library inside the compiler.
        _call([sys.executable, self._script, "compile"], environment)
        preloaded = " ".join([*sanitizers, self._faults])
        self._environment = {**environment, "LD_PRELOAD": preloaded}

    def run(self, fuzz: Fuzz, rounds: int) -> None:
        """As of `SanitizedProgram`."""
        command = [sys.executable, self._script]
        _run(fuzz, command, rounds, self._environment, self._faults)


def faults(directory: Path) -> str:
    """Build syscall_faults.c; return the path of the library. Skips without a compiler."""
    if _COMPILER is None:
        pytest.skip("needs a C compiler")
    library = directory / "faults.so"
    source = Path(__file__).with_name("syscall_faults.c")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra")
    _call([_COMPILER, *flags, str(source), "-o", str(library), "-ldl"], os.environ)
    return str(library)


def run_with_faults(
    directory: Path, script: str, *arguments: str, under: Sequence[str] = (), timeout: float
) -> None:
    """Run a script beside this one with the library of syscall_faults.c, its first argument.

    Args:
        directory: for that library.
        script: the file.
        arguments: the others.
        under: a command that runs it, such as unshare's.
        timeout: seconds.
    """
    library = faults(directory)
    path = str(Path(__file__).with_name(script))
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    _call([*under, sys.executable, path, library, *arguments], environment, timeout)


def _library(gcc: str, name: str) -> str:
    path = subprocess.check_output([gcc, f"-print-file-name={name}"], text=True).strip()
    if not Path(path).is_absolute():
        pytest.skip(_NO_SANITIZERS)
    return path


def _run(
    fuzz: Fuzz, command: Sequence[str], rounds: int, environment: Mapping[str, str], *more: str
) -> None:
    for _ in fuzz.rounds(3):
        _call([*command, str(fuzz.random.randrange(1 << 32)), str(rounds), *more], environment)


def _call(
    command: Sequence[str], environment: Mapping[str, str], timeout: float = _DEADLINE_S
) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=environment,
    )
    print(*command, done.stdout, done.stderr)
    assert done.returncode == 0
