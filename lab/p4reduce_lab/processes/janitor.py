# SPDX-License-Identifier: Apache-2.0
"""Removes the remains of a run when it ends, however it ends.

Used as a script: ``python -I -S janitor.py REMAINS…`` with standard input a pipe whose other end
only the run holds. When the run closes the pipe, or the kernel does so because the run was killed,
the remains are removed: directories by absolute paths, and network interfaces by names. So there is
one way of cleaning up, and SIGKILL takes it too.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ATTEMPTS = 20
PAUSE = 0.1  # seconds


def main() -> None:
    """Waits for the end of standard input, then removes what is named."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for name in sys.argv[1:]:
        if name.startswith("/"):
            remove(Path(name))
        else:
            # Of a veth pair one end takes the other with it. Some may never have been made.
            command = ["ip", "link", "delete", name]
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


def remove(directory: Path) -> None:
    """Remove a directory, with repeated attempts for a while."""
    # Tethered processes are dying at the same moment and may still be writing.
    for _ in range(ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
