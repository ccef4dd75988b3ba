# SPDX-License-Identifier: Apache-2.0
"""Captures a port's frames into pcap files: one for both directions, or one each.

Python opens the files; the loop writes and closes them (csrc/loop/capture.c).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce_native.loop import LoopPort


@dataclass(frozen=True, slots=True)
class Captures:
    """The directory and the form of captures.

    Attributes:
        by_direction: as in BMv2, `directory`/INTERFACE_in.pcap and INTERFACE_out.pcap instead
            of portN.pcap.
    """

    directory: Path
    by_direction: bool = False

    def files(self, number: int, description: str) -> list[Path]:
        """Return the files of a port: one for each direction, or one for both."""
        if not self.by_direction:
            return [self.directory / f"port{number}.pcap"]
        interface = description.partition("=")[2]
        name = f"port{number}" if "/" in interface else interface
        return [self.directory / f"{name}_in.pcap", self.directory / f"{name}_out.pcap"]


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


class Capture:
    """The files of a port's capture, empty, until the loop takes them.

    Raises:
        OSError: one cannot be written; with its name.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files: list[int] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            self._files += map(_open, paths)
            undo.pop_all()

    def take(self) -> int:
        """Return the file of incoming frames, or of all frames; -1 if there is none."""
        return self._files.pop(0) if self._files else -1

    def split(self, served: LoopPort) -> None:
        """Hand over the file of outgoing frames, if there is one."""
        if self._files:
            served.capture_out(self._files.pop(0))

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
