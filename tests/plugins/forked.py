# SPDX-License-Identifier: Apache-2.0
"""Processes that tests start by the hundred, forked from one that has the imports behind it.

To import what a switch, a controller or a worker needs takes half a second of a core, and most of
them live for less. In `fast_start`, `subprocess.Popen` has such a process forked by a
`fork_server`: with the arguments, environment, directory, session and files of the command, and as
a child of this process. What is no plain start of Python is started as ever. So is everything in
tests that are marked `own_start`, for which tests/conftest.py does not use `fast_start`: they are
about how a command starts, or what it imports. And so is what forked processes start themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fork_server
from p4reduce_lab.processes import tether

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_COMMANDS = ("-m", "-c")
# What tests/conftest.py takes away and p4reduce sets, be it before this is read or later.
_USUAL = {
    "PYTHONDONTWRITEBYTECODE": "",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "GRPC_VERBOSITY": "NONE",
}
_STARTED_WITH = os.environ | _USUAL
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def fast_start() -> Iterator[None]:
    """Have processes forked, all over this one."""
    real = subprocess.Popen
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = real  # type: ignore[misc]


class ForkedPopen(subprocess.Popen[Any]):
    """As its base, but for who forks."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        """Where the base starts the process; its arguments are the same from Python 3.10 on."""
        preexec, _, pass_fds, cwd, env, _, _, shell, *pipes = rest[:14]
        stdin, _, _, stdout, _, stderr = pipes
        words = None if shell or isinstance(args, str | bytes) else _words(list(map(str, args)))
        environment = _environment() if env is None else dict(env)
        if words is None or preexec or pass_fds or _matters_to_python(environment):
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        tethered, words = words
        request = {
            "words": words,
            "tethered": tethered,
            "parent": os.getpid(),
            "session": rest[19],
            "directory": os.fspath(cwd or Path.cwd()),
            "environment": environment,
        }
        files = [given if given >= 0 else own for own, given in enumerate((stdin, stdout, stderr))]
        self.pid = _forked(request, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    """A copy of this process's, while pytest notes there which test runs."""
    while True:
        with contextlib.suppress(KeyError, RuntimeError):
            return dict(os.environ)


def _words(command: list[str]) -> tuple[bool, list[str]] | None:
    """What follows `python` in a command, and whether it is to end with this process."""
    prefix = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
    tethered = command[: len(prefix)] == prefix
    if tethered:
        command = command[len(prefix) :]
    if len(command) < 3 or command[0] != sys.executable or command[1] not in _COMMANDS:
        return None
    return tethered, command[1:]


def _matters_to_python(environment: dict[str, str]) -> bool:
    """Whether it has what Python or gRPC read at their start, unlike the fork server's own."""
    return any(
        environment.get(name, _USUAL.get(name)) != _STARTED_WITH.get(name)
        for name in {*environment, *_STARTED_WITH}
        if name.startswith(("PYTHON", "GRPC", "LD_"))
    )


@functools.cache
def _server() -> socket.socket:
    """The connection to this process's fork server, which ends with it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, fork_server.__file__, str(there.fileno())]
    subprocess.Popen(command, pass_fds=[there.fileno()], env=_STARTED_WITH)
    there.close()
    return here


def _forked(request: dict[str, Any], files: list[int]) -> int:
    """Return the pid of a new process, which is a child of this one."""
    libc = ctypes.CDLL(None)
    with _one_at_a_time:
        server = _server()
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(server, [json.dumps(request).encode()], files)
            return int(server.recv(20))
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
