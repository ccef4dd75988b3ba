# SPDX-License-Identifier: Apache-2.0
"""What a release has, built once for all tests of it, and installing it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from needed import ROOT

DEADLINE = 1500.0  # seconds; for what fetches or compiles


@dataclass(frozen=True)
class Distributions:
    """The files of a release."""

    folder: Path

    def the(self, pattern: str) -> Path:
        """The only file that matches."""
        [found] = self.folder.glob(pattern)
        return found

    def wheel(self, machine: str) -> Path:
        """p4reduce's wheel for x86_64 or aarch64."""
        return self.the(f"p4reduce-*_{machine}.whl")


def run(*command: object, variables: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command to its end; its output. AssertionError if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=variables,
        cwd=cwd,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def build(folder: Path, root: Path = ROOT) -> Distributions:
    """Build the release of a copy of the repository into `folder`."""
    run(sys.executable, root / "tools" / "build_dist.py", "--offline", "--out", folder, cwd=root)
    return Distributions(folder)


def install_for(target: Path, version: str, platform: str, *what: object) -> Path:
    """Unpack distributions and what they need for another Python into a folder of modules."""
    run(
        sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", target,
        "--python-version", version, "--python-platform", platform, "--only-binary", ":all:",
        "--link-mode", "copy", *what,
    )  # fmt: skip
    return target


def wheelhouse(folder: Path, version: str, *what: object) -> Path:
    """Fetch the wheels of distributions and of what they need, for a Python on x86-64."""
    platforms = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder,
        "--python-version", version, "--only-binary", ":all:",
        *(f"--platform={platform}" for platform in platforms), *what,
    )  # fmt: skip
    return folder
