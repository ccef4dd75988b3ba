# SPDX-License-Identifier: Apache-2.0
"""Capture of a port's frames into a pcap file, both directions in one, or one file for each.

The format is the classic one of the tcpdump project with nanosecond time stamps (magic 0xa1b23c4d),
which Wireshark and scapy read.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from p4reduce_switch.ports.port import MAX_FRAME_BYTES, OpenPort, Poller, Port, PortError, PortStats

__all__ = ["CapturedPort", "Captures"]

_MAGIC_NANOSECONDS = 0xA1B23C4D
_LINKTYPE_ETHERNET = 1
_FILE_HEADER = struct.Struct("=IHHiIII")
_RECORD_HEADER = struct.Struct("=IIII")
_BUFFER_BYTES = 1 << 18
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Captures:
    """Where frames are written.

    Attributes:
        by_direction: as BMv2 does it: `directory`/INTERFACE_in.pcap and INTERFACE_out.pcap instead
            of portN.pcap.
    """

    directory: Path
    by_direction: bool = False

    def open(self, port: OpenPort) -> list[BinaryIO]:
        """The empty files of a port, for what comes in and what leaves; or one for both.

        Raises:
            PortError: one cannot be written.
        """
        with ExitStack() as undo:
            files = [undo.enter_context(self._open(port, name)) for name in self._names(port)]
            undo.pop_all()
            return files

    def _names(self, port: OpenPort) -> list[str]:
        if not self.by_direction:
            return [f"port{port.number}.pcap"]
        interface = port.description.partition("=")[2]
        name = f"port{port.number}" if "/" in interface else interface
        return [f"{name}_in.pcap", f"{name}_out.pcap"]

    def _open(self, port: OpenPort, name: str) -> BinaryIO:
        path = self.directory / name
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return path.open("wb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise PortError(f"port {port.description}: {path}: {error.strerror}") from None


class CapturedPort:
    """A port whose frames are also written to files.

    Outgoing frames are written as they are handed to the port, so also those that it then has to
    drop.

    Raises:
        PortError: a file cannot be written; `port` is closed then.
    """

    def __init__(self, port: Port, captures: Captures) -> None:
        self._port = port
        try:
            self._files = captures.open(port)
        except PortError:
            port.close()
            raise
        for file in self._files:
            file.write(
                _FILE_HEADER.pack(
                    _MAGIC_NANOSECONDS, 2, 4, 0, 0, MAX_FRAME_BYTES, _LINKTYPE_ETHERNET
                )
            )

    @property
    def number(self) -> int:
        return self._port.number

    @property
    def description(self) -> str:
        return self._port.description

    @property
    def stats(self) -> PortStats:
        return self._port.stats

    @property
    def is_up(self) -> bool:
        return self._port.is_up

    @property
    def has_carrier(self) -> bool:
        return self._port.has_carrier

    @property
    def has_room(self) -> bool:
        return self._port.has_room

    def limit_backlog(self, limited: bool) -> None:
        self._port.limit_backlog(limited)

    def attach(self, poller: Poller, on_frames: Callable[[], None]) -> None:
        self._port.attach(poller, on_frames)

    def receive(self) -> Sequence[bytes]:
        frames = self._port.receive()
        self._write(self._files[0], frames)
        return frames

    def send(self, frames: Sequence[bytes]) -> None:
        self._write(self._files[-1], frames)
        self._port.send(frames)

    def poll_stats(self) -> None:
        self._port.poll_stats()

    def flush(self) -> None:
        self._port.flush()
        for file in self._files:
            file.flush()

    def close(self) -> None:
        self._port.close()
        for file in self._files:
            file.close()

    def _write(self, file: BinaryIO, frames: Sequence[bytes]) -> None:
        if frames:
            seconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS)
            write, pack = file.write, _RECORD_HEADER.pack
            for frame in frames:
                write(pack(seconds, nanoseconds, len(frame), len(frame)))
                write(frame)
