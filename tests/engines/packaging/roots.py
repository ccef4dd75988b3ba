# SPDX-License-Identifier: Apache-2.0
"""Roots of Debian: a Python of another machine or version, from Debian's packages."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from needed import ROOT

KEPT = ROOT / "build" / "roots"
"""Where roots stay: to fetch one takes minutes."""
SCRIPTS = Path("/usr/share/debootstrap/scripts")
SET_UP = ("trixie", "amd64")
DEADLINE = 1500.0  # seconds
# What debootstrap says of a mirror that does not answer.
_NOT_FETCHED = re.compile(r"E: (Failed getting release|Couldn't download|Invalid Release).*")


def debian_root(suite: str, architecture: str, *packages: str) -> Path:
    """Unpack a suite's minimal system and these packages; no script of a package is run.

    `SET_UP`, the base of containers, is set up as well. Takes debootstrap and root. Skips the test
    if no package can be fetched. Raises AssertionError with its output if it fails otherwise.
    """
    root = KEPT / f"{suite}-{architecture}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{root.name}.lock").open("w") as lock:  # of tests that run at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        _unpack(root, suite, architecture, packages)
    return root


def _unpack(root: Path, suite: str, architecture: str, packages: tuple[str, ...]) -> None:
    done = root / ".unpacked"
    if done.exists() and set(packages) <= set(done.read_text().split()):
        return
    shutil.rmtree(root, ignore_errors=True)  # half of one, or one with other packages
    script = SCRIPTS / (suite if (SCRIPTS / suite).exists() else "sid")
    set_up = (suite, architecture) == SET_UP
    how = ["--variant=minbase"] if set_up else ["--variant=minbase", "--foreign"]
    _run(
        "debootstrap", *how, f"--arch={architecture}",
        f"--include={','.join(packages)}", suite, root, "http://deb.debian.org/debian", script,
    )  # fmt: skip
    packed = () if set_up else (root / "var/cache/apt/archives").glob("*.deb")
    for package in sorted(packed):
        # dpkg -x would put a folder where the root has its link from /lib to /usr/lib.
        unpacked = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
        )
        subprocess.run(
            ["tar", "-x", "--keep-directory-symlink", "-C", root],
            input=unpacked.stdout,
            check=True,
        )
    done.write_text(" ".join(packages))


def inside(root: Path, *command: object) -> list[str]:
    """A command line that runs `command` in a root, which sees the files outside in /outside."""
    mounts = " && ".join(
        f"mkdir -p {root}/{place} && mount --rbind {source} {root}/{place}"
        for place, source in (("dev", "/dev"), ("proc", "/proc"), ("outside", "/"))
    )
    # Mounts go with the namespace, whose only process becomes the command.
    script = f'{mounts} && exec chroot {root} "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]


def _run(*command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "LC_ALL": "C"},
    )
    said = done.stdout[-2000:] + done.stderr[-2000:]
    if done.returncode != 0 and (failed := _NOT_FETCHED.search(said)):
        pytest.skip(f"Debian's packages cannot be fetched here: {failed[0]}")
    assert done.returncode == 0, said
