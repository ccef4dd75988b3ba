# SPDX-License-Identifier: Apache-2.0
"""Runs a program that the kernel kills when the process that started it ends.

Used as a script: ``python -I -S tether.py PARENT_PID PROGRAM ARGUMENT…``. It replaces itself by
the program (same pid). Being a program of its own rather than a ``preexec_fn`` keeps Python out of
the child of a fork of a process with threads, which gRPC's threads make dangerous.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
NOT_PERMITTED, NOT_FOUND = 126, 127  # as a shell's


def main() -> None:
    """Ties this process to ``sys.argv[1]`` and becomes ``sys.argv[2:]``."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    # The parent may have gone before the call above; then nothing would end this process.
    if os.getppid() != parent:
        sys.exit(f"the process that started {program[0]} (pid {parent}) has gone")
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_PERMITTED if isinstance(error, PermissionError) else NOT_FOUND)


if __name__ == "__main__":
    main()
