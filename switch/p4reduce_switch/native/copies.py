# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions of a compiled program."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from p4reduce_switch.native.program import NativeProgram
from p4reduce_switch.state.clone_sessions import UNLIMITED, CloneSession, CloneSessions
from p4reduce_switch.state.multicast import MulticastGroups, Replica

_MOST_PORT = (1 << 32) - 1
_UNLIMITED = (1 << 64) - 1


def _copies(replicas: Sequence[Replica]) -> bytes:
    for replica in replicas:
        if not 0 <= replica.port <= _MOST_PORT:
            raise ValueError(f"a replica's port is 0..{_MOST_PORT}, not {replica.port}")
    return struct.pack(
        f"={2 * len(replicas)}I", *(n for r in replicas for n in (r.port, r.instance))
    )


class NativeMulticastGroups(MulticastGroups):
    """The groups. Machine code makes the copies."""

    def __init__(self, program: NativeProgram) -> None:
        super().__init__()
        self._program = program

    def delete(self, number: int) -> None:
        super().delete(number)
        self._program.library.p4r_set_group(self._program.common, number, 0, b"", False)

    def _set(self, number: int, item: Iterable[Replica]) -> None:
        replicas = tuple(item)
        copies = _copies(replicas)
        super()._set(number, replicas)
        library, common = self._program.library, self._program.common
        if not library.p4r_set_group(common, number, len(replicas), copies, True):
            raise MemoryError("no memory for a multicast group")


class NativeCloneSessions(CloneSessions):
    """The sessions. Machine code makes the copies."""

    def __init__(self, program: NativeProgram) -> None:
        super().__init__()
        self._program = program

    def delete(self, number: int) -> None:
        super().delete(number)
        self._program.library.p4r_set_session(self._program.common, number, 0, b"", 0, False)

    def _set(self, number: int, item: CloneSession) -> None:
        copies = _copies(item.replicas)
        super()._set(number, item)
        most = self.destinations[number][1]
        most = _UNLIMITED if most == UNLIMITED else most
        library, common = self._program.library, self._program.common
        if not library.p4r_set_session(common, number, len(item.replicas), copies, most, True):
            raise MemoryError("no memory for a clone session")
