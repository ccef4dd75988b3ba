# SPDX-License-Identifier: Apache-2.0
"""Captures a port's frames into pcap files: one for both directions, or one each.

Python opens the files; the loop writes and closes them (csrc/loop/capture.c).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_switch.ports.port import Port, PortError

if TYPE_CHECKING:
    from p4reduce_native.loop import LoopPort

__all__ = ["Capture", "Captures"]


@dataclass(frozen=True, slots=True)
class Captures:
    """The directory and the form of captures.

    Attributes:
        by_direction: as in BMv2, `directory`/INTERFACE_in.pcap and INTERFACE_out.pcap instead
            of portN.pcap.
    """

    directory: Path
    by_direction: bool = False

    def open(self, port: Port) -> list[int]:
        """Make the empty files of a port: one for each direction, or one for both.

        Raises:
            PortError: a file cannot be written.
        """
        with ExitStack() as undo:
            files = [self._open(port, name, undo) for name in self._names(port)]
            undo.pop_all()
            return files

    def _names(self, port: Port) -> list[str]:
        if not self.by_direction:
            return [f"port{port.number}.pcap"]
        interface = port.description.partition("=")[2]
        name = f"port{port.number}" if "/" in interface else interface
        return [f"{name}_in.pcap", f"{name}_out.pcap"]

    def _open(self, port: Port, name: str, undo: ExitStack) -> int:
        path = self.directory / name
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise PortError(f"port {port.description}: {path}: {error.strerror}") from None
        undo.callback(os.close, file)
        return file


class Capture:
    """The files of a port's capture, until the loop takes them over.

    Raises:
        PortError: a file cannot be written; the port is closed then.
    """

    def __init__(self, port: Port, captures: Captures | None) -> None:
        self._files: list[int] = []
        if captures is not None:
            try:
                self._files = captures.open(port)
            except PortError:
                port.close()
                raise

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
