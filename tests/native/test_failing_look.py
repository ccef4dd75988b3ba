# SPDX-License-Identifier: Apache-2.0
"""What epoll says is wrong is what the loop reports, whatever other calls fail after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from link_ends import NO_LINKS
from sanitized import faults

SCRIPT = r"""
import ctypes, errno, os, socket, sys, time
from p4reduce_native.loop import Loop, PortKind, Reason

faults = ctypes.CDLL(sys.argv[1])
loop = Loop(os.eventfd(0, os.EFD_NONBLOCK), None)
port = loop.add_port(PortKind.UNIX, 1)
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
port.attach(here.detach())
for code in (errno.EBADF, errno.EINVAL, errno.EINTR):
    loop.emit(1, bytes(60))  # it is sent behind the look, and that fails as well
    faults.faults_wait(code, 0)
    faults.faults_send(socket.AF_UNIX, errno.EAGAIN, 1)
    reasons = loop.run(time.monotonic_ns() + 10_000_000)
    print(errno.errorcode[code], bool(reasons & Reason.ERROR), loop.error.errno == code)
loop.close()
"""


@pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))
def test_the_error_of_a_look_is_its_own(tmp_path: Path) -> None:
    library = faults(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, library],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "LD_PRELOAD": library},
    )
    assert done.returncode == 0, done.stderr
    # A look that a signal interrupts is no error.
    assert done.stdout.split("\n")[:3] == [
        "EBADF True True",
        "EINVAL True True",
        "EINTR False False",
    ]
