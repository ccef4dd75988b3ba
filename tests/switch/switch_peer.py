# SPDX-License-Identifier: Apache-2.0
"""What hangs off a switch port in the tests: a peer on a Unix socket, and frames to send."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

DEADLINE_S = 120.0  # a test fails by it, and passes long before
QUEUE_FRAMES = 1024  # wait at most for room at a port (csrc/loop/queue.h)


class Peer:
    """The far end of a Unix-socket port."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def receive(self) -> bytes:
        """The next frame; b"" when the switch closed the port."""
        return self.socket.recv(65536)

    def expect_nothing(self, within: float = 0.1) -> None:
        self.socket.settimeout(within)
        try:
            got = self.socket.recv(65536)
        except TimeoutError:
            return
        finally:
            self.socket.settimeout(DEADLINE_S)
        raise AssertionError(f"unexpected frame of {len(got)} bytes: {got[:64].hex()}")

    def close(self) -> None:
        self.socket.close()


def ethernet(
    payload: bytes = b"",
    *,
    dst: str = "02:00:00:00:00:02",
    src: str = "02:00:00:00:00:01",
    ethertype: int = 0x88B5,
) -> bytes:
    """A frame; 0x88B5 is the ethertype for local experiments."""
    return mac(dst) + mac(src) + ethertype.to_bytes(2, "big") + payload


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def eventually(get: Callable[[], _T], what: str, within: float = DEADLINE_S) -> _T:
    """The first true value of `get`, or a failure that says what was waited for."""
    deadline = time.monotonic() + within
    while True:
        value = get()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {within} s")
        time.sleep(0.005)
