# SPDX-License-Identifier: Apache-2.0
"""Compile the library to preload, by the MPI compiler of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from p4reduce.errors import LaunchError

NAME = "libp4reduce_pmpi.so"
SOURCE = Path(__file__).parent / "csrc" / "pmpi.c"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
_TIMEOUT = 120.0  # seconds


def build(directory: Path) -> Path:
    """Compile `libp4reduce_pmpi.so` into a directory, for this Python; return its path.

    Raises:
        LaunchError: mpicc is missing or fails; the message has its output.
    """
    compiler = os.environ.get("MPICC") or "mpicc"
    if shutil.which(compiler) is None:
        raise LaunchError(
            f"there is no {compiler}: apt-get install libopenmpi-dev, or set MPICC to your MPI's "
            "compiler"
        )
    target = directory / NAME
    python = f'-DP4R_PYTHON="{sys.executable}"'
    try:
        directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [compiler, *FLAGS, python, "-o", str(target), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"cannot compile {target}: {error}") from None
    if done.returncode != 0:
        raise LaunchError(f"{compiler} did not compile {SOURCE.name}: {done.stderr.strip()}")
    return target
