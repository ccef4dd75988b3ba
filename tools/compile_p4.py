# SPDX-License-Identifier: Apache-2.0
"""Compile p4src/ into p4src/compiled/, or tell whether that is up to date.

``compiled/`` is committed, so users need no p4c. ``sources.sha256`` there is the
fingerprint of the sources that it was made from. Comparing it needs no compiler,
so a stale ``compiled/`` is found everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from p4reduce_lab.progress import waiting

ROOT = Path(__file__).resolve().parent.parent
SOURCE_DIR = ROOT / "p4src"
COMPILED_DIR = SOURCE_DIR / "compiled"
FINGERPRINT_FILE = "sources.sha256"
COMPILER = "p4c-bm2-ss"
MAIN = SOURCE_DIR / "v1model.p4"
# For frames of 256 lanes, and of 64 as hardware has them.
PROGRAMS = {"p4reduce": (), "p4reduce64": ("-DLANES=64",)}


def fingerprint() -> str:
    """Return the SHA-256 over the names and the contents of all P4 sources of v1model's program."""
    digest = hashlib.sha256()
    parts = (SOURCE_DIR / part for part in ("common", "v1model"))
    for path in sorted(
        [SOURCE_DIR / MAIN.name, *(path for part in parts for path in part.iterdir())]
    ):
        digest.update(path.relative_to(SOURCE_DIR).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def recorded(target: Path = COMPILED_DIR) -> str:
    """Return the fingerprint of the sources that `target` was made from; empty: none says so."""
    try:
        return (target / FINGERPRINT_FILE).read_text().strip()
    except OSError:
        return ""


def available() -> bool:
    """Whether p4c is on PATH."""
    return shutil.which(COMPILER) is not None


def compiler_version(compiler: str) -> str:
    """Return the version that p4c gives of itself, such as "1.2.5.15"."""
    answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Version\s+([0-9.]+)", answer.stdout + answer.stderr)
    return found.group(1) if found else "unknown"


def compile_program(
    target: Path, sources: Path | None = None, names: Sequence[str] = tuple(PROGRAMS)
) -> None:
    """Run p4c on the main program and leave JSON, p4info and fingerprint in `target`.

    `sources`: a copy of p4src/ in place of it; the fingerprint is that of p4src/ nevertheless.
    `names`: which of `PROGRAMS`.
    """
    compiler = shutil.which(COMPILER)
    if compiler is None:
        sys.exit(
            f"{COMPILER} is not on PATH. Install p4lang's package p4lang-p4c (docs/bmv2.md); "
            "only a changed P4 program needs it."
        )
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        _compile(compiler, PROGRAMS[name], sources or SOURCE_DIR, target / name)
    _put(target / "p4c.version", compiler_version(compiler))
    _put(target / FINGERPRINT_FILE, fingerprint())


def _compile(compiler: str, options: Sequence[str], sources: Path, target: Path) -> None:
    """Make the files `target` with .json and .p4info.txtpb behind it."""
    with tempfile.TemporaryDirectory() as scratch:
        json_path = Path(scratch) / "p4reduce.json"
        p4info_path = Path(scratch) / "p4reduce.p4info.txtpb"
        # From the sources' folder, so that no path of this machine gets into the JSON.
        subprocess.run(
            [
                compiler,
                "--std=p4-16",
                "--arch=v1model",
                "-Werror",
                # Some numbers of the wire format are for the workers only.
                "--Wdisable=unused",
                # The pass puts a local variable's expression wherever it is read. For a
                # CPU's back end that is free; BMv2 would compute each lane sum three times.
                "--excludeMidendPasses",
                "P4::LocalCopyPropagation",
                *options,
                "-o",
                str(json_path),
                "--p4runtime-files",
                str(p4info_path),
                MAIN.name,
            ],
            cwd=sources,
            check=True,
        )
        program = json.loads(json_path.read_text())
        program["program"] = f"./{MAIN.name}"
        _put(target.with_name(f"{target.name}.json"), json.dumps(program, indent=1))
        _put(
            target.with_name(f"{target.name}.p4info.txtpb"),
            p4info_path.read_text().removesuffix("\n"),
        )


def _put(path: Path, text: str) -> None:
    """Write a file such that whoever reads it meanwhile has the old one or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text + "\n")
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=COMPILED_DIR, help="where to put the files")
    arguments = parser.parse_args()
    try:
        with waiting(f"p4c compiles {MAIN.name}"):
            compile_program(arguments.output)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # what was compiled before is still there
    print(f"{arguments.output}: compiled from {fingerprint()[:12]}")


if __name__ == "__main__":
    main()
