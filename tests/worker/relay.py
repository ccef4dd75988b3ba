# SPDX-License-Identifier: Apache-2.0
"""A way to the controller that can be cut: what is under way waits, as in a network's buffers."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType


class Relay:
    """Listens at `address` and passes everything on to the Unix socket `target`, both ways."""

    def __init__(self, path: Path, target: str) -> None:
        self.address = f"unix:{path}"
        self._target = target.removeprefix("unix:")
        self._whole = threading.Event()
        self._whole.set()
        self._closed = False
        self._sockets = [socket.socket(socket.AF_UNIX)]
        self._sockets[0].bind(str(path))
        self._sockets[0].listen()
        self._begin(self._accept)

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._whole.set()
        for each in self._sockets:
            each.close()

    def cut(self) -> None:
        """Pass on nothing any more."""
        self._whole.clear()

    def mend(self) -> None:
        """Pass on what has come meanwhile, and what comes."""
        self._whole.set()

    def hang_up(self) -> None:
        """End all connections there are, as a ping timeout does; new ones may come at once."""
        for each in self._sockets[1:]:
            with contextlib.suppress(OSError):  # it has ended by itself
                each.shutdown(socket.SHUT_RDWR)

    def _begin(self, work: object, *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while not self._closed:
            try:
                here = self._sockets[0].accept()[0]
            except OSError:
                return
            there = socket.socket(socket.AF_UNIX)
            there.connect(self._target)
            self._sockets += [here, there]
            self._begin(self._pass, here, there)
            self._begin(self._pass, there, here)

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._whole.wait()
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass
