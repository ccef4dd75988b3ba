# SPDX-License-Identifier: Apache-2.0
"""Generate the control API's Python modules from control.proto; `--check`: say if they are stale.

The modules are committed. ``control.sha256`` beside them is the fingerprint of the file that they
were made from, and of themselves: comparing it needs no compiler.

They must fit protobuf 3.20, which p4runtime-shell pins, so an old protoc makes them, in an
environment of its own: Python 3.11, and protobuf itself newer there than grpcio-tools asks, hence
``--no-deps``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "worker" / "p4reduce" / "control" / "control.proto"
FINGERPRINT = SOURCE.with_suffix(".sha256")
MODULES = tuple(
    SOURCE.with_name(name)
    for name in ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py", "control_pb2_grpc.pyi")
)
ENVIRONMENT = ROOT / "build" / "proto"
PYTHON = "python3.11"
PINS = (
    ("setuptools<70", "grpcio", "mypy-protobuf==3.6.0"),
    ("--no-deps", "grpcio-tools==1.49.1"),
)
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def fingerprint() -> str:
    """Return the SHA-256 over control.proto and the modules."""
    digest = hashlib.sha256()
    for path in (SOURCE, *MODULES):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def recorded() -> str:
    """Return the fingerprint of when the modules were made; empty: there is none."""
    try:
        return FINGERPRINT.read_text().strip()
    except OSError:
        return ""


def generate() -> None:
    """Make the modules. Raises CalledProcessError: pip or protoc failed."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "bin" / "protoc-gen-mypy").exists() or not _has_protoc(python):
        if shutil.which(PYTHON) is None:
            sys.exit(f"{PYTHON} is not on PATH: the protoc that protobuf 3.20 needs is made for it")
        subprocess.run([PYTHON, "-m", "venv", str(ENVIRONMENT)], check=True)
        for pins in PINS:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pins], check=True)
    folder = SOURCE.parents[2]
    kinds = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")
    subprocess.run(
        [
            str(python),
            "-m",
            "grpc_tools.protoc",
            "-I",
            str(folder),
            *(f"--{kind}={folder}" for kind in kinds),
            str(SOURCE.relative_to(folder)),
        ],
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        cwd=folder,
        check=True,
    )
    for module in MODULES:
        module.write_text(LICENCE + module.read_text())
    FINGERPRINT.write_text(fingerprint() + "\n")


def _has_protoc(python: Path) -> bool:
    done = subprocess.run(
        [str(python), "-c", "import grpc_tools"], capture_output=True, check=False
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if they are stale"
    )
    if parser.parse_args().check:
        if fingerprint() != recorded():
            print(f"{SOURCE.relative_to(ROOT)} or its modules have changed: run `make proto`")
            return 1
        return 0
    try:
        generate()
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(f"{SOURCE.parent}: generated from {SOURCE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
