# SPDX-License-Identifier: Apache-2.0
"""Containers by podman, as far as this machine lets them run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from needed import DEADLINE

_HYBRID = Path("/sys/fs/cgroup/unified")
# Limits below those of machines whose root may not raise its own.
_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
[network]
network_config_dir = "{networks}"
"""

needs_podman = pytest.mark.skipif(
    shutil.which("podman") is None or os.geteuid() != 0,
    reason="not installed: podman" if shutil.which("podman") is None else "podman here takes root",
)


@dataclass(frozen=True)
class Podman:
    """podman with images and containers of its own.

    Attributes:
        folder: where they are.
        entry: the words before a command, by which it runs beside the other commands.
    """

    folder: Path
    entry: tuple[str, ...]

    def __call__(self, *command: object, check: bool = True) -> str:
        """Run ``podman command…``; all that it puts out. AssertionError if it fails."""
        done = subprocess.run(
            [*self.entry, "podman", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * DEADLINE,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"podman {command}: {done.stdout[-6000:]}"
        return done.stdout

    @property
    def program(self) -> Path:
        """A program that does the same, for scripts."""
        path = self.folder / "podman"
        words = " ".join(f"'{word}'" for word in (*self.entry, "podman"))
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
        return path


@contextlib.contextmanager
def podman() -> Iterator[Podman]:
    """podman, until all that it started has ended; skips where no container runs.

    Some machines have both versions of cgroups mounted, which crun refuses. There all commands run
    in a mount namespace with one version, which nobody else sees.
    """
    with contextlib.ExitStack() as ends:
        folder = Path(tempfile.mkdtemp(prefix="p4r-podman-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "containers.conf").write_text(_CONF.format(networks=folder / "networks"))
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\n'
            f'runroot = "{folder}/run"\n'
        )
        entry = (
            "env", f"CONTAINERS_CONF={folder}/containers.conf",
            f"CONTAINERS_STORAGE_CONF={folder}/storage.conf",
        )  # fmt: skip
        if _HYBRID.is_dir():
            holder = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", f"umount {_HYBRID}; echo; exec sleep 36000"],
                stdout=subprocess.PIPE,
            )
            ends.callback(holder.wait)
            ends.callback(holder.kill)
            assert holder.stdout is not None
            holder.stdout.readline()
            entry = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", *entry)
        made = Podman(folder, entry)
        # The last one is removed first.
        for kind in ("image", "volume", "container", "pod"):
            ends.callback(made, kind, "rm", "--all", "--force", check=False)
        yield made
