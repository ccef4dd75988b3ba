# SPDX-License-Identifier: Apache-2.0
"""Which bound sockets processes have had, and which of these are still there.

A process that has given up its environment is in no list of processes by a mark, but the kernel
still has its sockets. Each is known by its inode, which no other socket has meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PAUSE = 0.3  # seconds between two looks
_LISTENS = "0A"  # a TCP socket's state
_OWN = "-m p4reduce"  # of a command; its socket files are ours to remove


@dataclass(frozen=True)
class Socket:
    """A bound socket of this host.

    Attributes:
        where: its protocol, and its address or path.
        path: its file; None: it has none.
    """

    where: str
    path: Path | None


class BoundSockets:
    """Gathers the bound sockets of processes, in a thread, from `start` to `stop`.

    Args:
        processes: returns the processes by their pids, with their commands.
    """

    def __init__(self, processes: Callable[[], Mapping[int, str]]) -> None:
        self._processes = processes
        self._seen: dict[int, tuple[Socket, str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def seen(self, words: tuple[str, ...] = ("",)) -> list[str]:
        """What was bound by processes with one of these words in their commands."""
        return [f"{one.where} of {of}" for one, of in self._of(words).values()]

    def left(self, words: tuple[str, ...] = ("",)) -> list[str]:
        """What is still bound of them, and socket files of p4reduce's processes."""
        bound = bound_sockets()
        return [
            f"{one.where} of {command}"
            for inode, (one, command) in self._of(words).items()
            if inode in bound or (_OWN in command and one.path is not None and one.path.exists())
        ]

    def _of(self, words: tuple[str, ...]) -> dict[int, tuple[Socket, str]]:
        seen = dict(self._seen)
        return {
            inode: (one, command)
            for inode, (one, command) in seen.items()
            if any(word in command for word in words)
        }

    def _watch(self) -> None:
        while not self._stop.is_set():
            bound = bound_sockets()
            for pid, command in self._processes().items():
                for inode in _inodes(pid) & bound.keys():
                    self._seen[inode] = (bound[inode], command)
            self._stop.wait(_PAUSE)


def bound_sockets() -> dict[int, Socket]:
    """Listening TCP sockets, UDP sockets and named Unix sockets of this namespace, by inode."""
    found = {}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(protocol):
            if protocol.startswith("udp") or fields[3] == _LISTENS:
                host, _, port = fields[1].partition(":")
                found[int(fields[9])] = Socket(f"{protocol} {host}:{int(port, 16)}", None)
    for fields in _rows("unix"):
        if len(fields) > 7:
            path = None if fields[7].startswith("@") else Path(fields[7])
            found[int(fields[6])] = Socket(f"unix {fields[7]}", path)
    return found


def _rows(table: str) -> list[list[str]]:
    file = _PROC / "self/net" / table
    return [line.split() for line in file.read_text().splitlines()[1:]] if file.exists() else []


def _inodes(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended, or it is another user's
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found
