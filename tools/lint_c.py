# SPDX-License-Identifier: Apache-2.0
"""Checks all C of this repository: as clang-format writes it, and without a warning.

    python tools/lint_c.py [--fix]

Every compiler that is here compiles every file: gcc, clang, and the clang in the `ziglang` wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4reduce_native.compile import BASE_FLAGS
from p4reduce_native.library import CSRC

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("native/p4reduce_native/csrc", "bench", "tests/native")
FORMATTED = (*FOLDERS, "worker/p4reduce/mpi", "tests/engines")  # what mpicc compiles as well
INCLUDES = (CSRC, CSRC / "p4", CSRC / "link")


def main() -> int:
    files = _files(FOLDERS)
    how = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "--Werror"]
    clang_format = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    if clang_format is None:
        print("clang-format is not installed: pip install clang-format", file=sys.stderr)
        return 1
    failed = (
        subprocess.run([clang_format, *how, *map(str, _files(FORMATTED))], check=False).returncode
        != 0
    )
    with tempfile.TemporaryDirectory() as zig_cache:
        environment = dict(os.environ)
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            environment.setdefault(name, zig_cache)
        for compiler in _compilers():
            for path in files:
                if path.suffix == ".c":
                    failed |= not _compiles(compiler, path, environment)
    return int(failed)


def _files(folders: tuple[str, ...]) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.[ch]")
        if "__pycache__" not in path.parts
    )


def _compilers() -> Iterator[list[str]]:
    for name in ("gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            yield [found]
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc"]


def _compiles(compiler: list[str], path: Path, environment: dict[str, str]) -> bool:
    flags = [flag for flag in BASE_FLAGS if not flag.startswith(("-shared", "-Wl", "-fno-sem"))]
    includes = [f"-I{directory}" for directory in INCLUDES]
    # Not to os.devnull: zig writes beside its sources' names in the current directory then.
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder) / "object.o")
        command = [*compiler, *flags, "-Werror", *includes, "-c", str(path), "-o", result]
        return subprocess.run(command, check=False, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
