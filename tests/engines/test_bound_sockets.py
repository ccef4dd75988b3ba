# SPDX-License-Identifier: Apache-2.0
"""The tests of engines find a socket that a process without their mark has kept."""

from __future__ import annotations

import subprocess
import sys

import pytest
from needed import left_of, mark_of, marked, marked_processes, wait_for_socket

pytestmark = pytest.mark.engines

# Binds a socket, and leaves it to a child that has another environment.
PARENT = """
import os, socket, subprocess, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("127.0.0.1", 0))
os.set_inheritable(own.fileno(), True)
sys.stdin.readline()
child = [sys.executable, "-c", "import sys; sys.stdin.read()"]
subprocess.Popen(child, env={}, close_fds=False)
"""


def test_a_socket_of_a_child_without_the_mark_is_found() -> None:
    with marked() as environment:
        command = [sys.executable, "-c", PARENT]
        # The child reads the same pipe, and ends when this block does.
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as parent:
            wait_for_socket(environment, "SOCK_DGRAM")
            assert parent.stdin is not None
            parent.stdin.write(b"go on\n")
            parent.stdin.flush()
            parent.wait()
            mark = mark_of(environment)
            assert not marked_processes(mark)
            [left] = left_of(mark, ("SOCK_DGRAM",))
            assert left.startswith("udp 0100007F:")
