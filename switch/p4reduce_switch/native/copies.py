# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions of a compiled program."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from p4reduce_switch.state.clone_sessions import UNLIMITED, CloneSession, CloneSessions
from p4reduce_switch.state.multicast import MulticastGroups, Replica

if TYPE_CHECKING:
    from p4reduce_switch.native.program import NativeProgram

__all__ = ["NativeCloneSessions", "NativeMulticastGroups"]

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
    """The groups; machine code makes the copies."""

    __slots__ = ("_program",)

    def __init__(self, program: NativeProgram) -> None:
        super().__init__()
        self._program = program

    def delete(self, group_id: int) -> None:
        super().delete(group_id)
        self._program.library.p4r_set_group(self._program.common, group_id, 0, b"", False)

    def _set(self, group_id: int, replicas: tuple[Replica, ...]) -> None:
        copies = _copies(replicas)
        super()._set(group_id, replicas)
        library, common = self._program.library, self._program.common
        if not library.p4r_set_group(common, group_id, len(replicas), copies, True):
            raise MemoryError("no memory for a multicast group")


class NativeCloneSessions(CloneSessions):
    """The sessions; machine code makes the copies."""

    __slots__ = ("_program",)

    def __init__(self, program: NativeProgram) -> None:
        super().__init__()
        self._program = program

    def delete(self, session_id: int) -> None:
        super().delete(session_id)
        self._program.library.p4r_set_session(self._program.common, session_id, 0, b"", 0, False)

    def _set(self, session_id: int, session: CloneSession) -> None:
        copies = _copies(session.replicas)
        super()._set(session_id, session)
        most = self.destinations[session_id][1]
        done = self._program.library.p4r_set_session(
            self._program.common,
            session_id,
            len(session.replicas),
            copies,
            _UNLIMITED if most == UNLIMITED else most,
            True,
        )
        if not done:
            raise MemoryError("no memory for a clone session")
