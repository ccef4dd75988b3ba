# SPDX-License-Identifier: Apache-2.0
"""Network namespaces that end with this process, however it ends.

Each belongs to a process that does nothing but hold it, and dies with this one; with the namespace
go its interfaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_common.polling import attempts

from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_HOLDING = 10.0  # seconds until a namespace is there
_COMMAND = 20.0  # seconds


def unavailable(tools: Mapping[str, str], need: str = "network namespaces need") -> str | None:
    """Return why something is impossible here, and what to do; None if it is possible.

    Args:
        tools: which are needed, and the package of each.
        need: what needs root, with its verb.
    """
    if os.geteuid() != 0:
        return f"{need} root: run it with sudo"
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install {' '.join(missing)})"
    return None


class Namespace:
    """A network namespace with a host name of its own, which MPI tells hosts apart by.

    Args:
        processes: with which it goes.
        name: the host name.
        mounts: a shell command that mounts what only this host is to see; "": nothing.

    Raises:
        LabError: it could not be made.
    """

    def __init__(self, processes: Processes, name: str, mounts: str = "") -> None:
        self._kinds = ["--net", "--uts", *(["--mount"] if mounts else [])]
        ready = f"ip link set dev lo up && {mounts or 'true'} && exec sleep infinity"
        script = f"hostname {name} 2>/dev/null; {ready}"
        command = ["unshare", *self._kinds, "sh", "-c", script]
        self._holder: ChildProcess = processes.start(f"namespace of {name}", command)
        for _ in attempts(_HOLDING, POLL):
            if _is_ready(self.pid):
                return
            processes.check()
        raise LabError(f"the namespace of {name} was not ready within {_HOLDING:g} s")

    @property
    def pid(self) -> int:
        """The process that holds it, for `ip link … netns`."""
        return self._holder.process.pid

    @property
    def prefix(self) -> list[str]:
        """Return the prefix that runs a command inside."""
        return ["nsenter", "--target", str(self.pid), *self._kinds, f"--wd={Path.cwd()}", "--"]

    def run(self, *command: str) -> str:
        """Run a command inside and return what it printed. Raises LabError if it fails."""
        return run([*self.prefix, *command])


def run(command: Sequence[str]) -> str:
    """Run a command and return what it printed. Raises LabError if it fails."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"`{' '.join(command)}`: {error}") from None
    if answer.returncode != 0:
        said = answer.stderr.strip() or answer.stdout.strip()
        raise LabError(f"`{' '.join(command)}` failed: {said}")
    return answer.stdout


def _is_ready(pid: int) -> bool:
    """Whether a holder has its namespaces and has done what it has to: it sleeps by then."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return command.split(b"\0")[0].endswith(b"sleep")
