# SPDX-License-Identifier: Apache-2.0
"""Clone sessions: where the copies of `clone` go."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_switch.state.multicast import Replica

__all__ = [
    "MAX_SESSION_ID",
    "UNLIMITED",
    "CloneSession",
    "CloneSessions",
    "NoSuchSession",
    "SessionExists",
]

MAX_SESSION_ID = (1 << 15) - 1  # simple_switch keeps 15 bits of what a program gives
UNLIMITED = (1 << 63) - 1  # bytes


class SessionExists(Exception):  # noqa: N818
    """The clone session to insert is already there."""


class NoSuchSession(Exception):  # noqa: N818
    """The clone session to change or delete is not there."""


@dataclass(frozen=True, slots=True)
class CloneSession:
    """One clone session.

    Attributes:
        replicas: where the copies go.
        class_of_service: kept to be read back. simple_switch queues clones by `priority`.
        packet_length_bytes: copies are cut to this many bytes as they leave; 0: not cut.
    """

    replicas: tuple[Replica, ...]
    class_of_service: int = 0
    packet_length_bytes: int = 0


class CloneSessions:
    """The sessions by id (0..32767).

    The packet path only calls `destinations.get(session)`. A value is an immutable tuple that is
    replaced as a whole, so a packet sees a session either before or after a change.
    """

    __slots__ = ("_sessions", "destinations")

    def __init__(self) -> None:
        self._sessions: dict[int, CloneSession] = {}
        self.destinations: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        """Session id -> ((port, instance) of each copy, most bytes of a copy)."""

    def insert(self, session_id: int, session: CloneSession) -> None:
        """Add a session. Raises SessionExists, or ValueError for something out of range."""
        if session_id in self._sessions:
            raise SessionExists(f"clone session {session_id} is already there")
        self._set(session_id, session)

    def modify(self, session_id: int, session: CloneSession) -> None:
        """Replace a session. Raises NoSuchSession or ValueError."""
        self._check_present(session_id)
        self._set(session_id, session)

    def delete(self, session_id: int) -> None:
        """Remove a session; `clone` to it does nothing from then on. Raises NoSuchSession."""
        self._check_present(session_id)
        del self.destinations[session_id]
        del self._sessions[session_id]

    def get(self, session_id: int) -> CloneSession:
        """A session. Raises NoSuchSession."""
        self._check_present(session_id)
        return self._sessions[session_id]

    def sessions(self) -> dict[int, CloneSession]:
        """A copy of all sessions."""
        return dict(self._sessions)

    def _check_present(self, session_id: int) -> None:
        if session_id not in self._sessions:
            raise NoSuchSession(f"there is no clone session {session_id}")

    def _set(self, session_id: int, session: CloneSession) -> None:
        if not 0 <= session_id <= MAX_SESSION_ID:
            raise ValueError(f"a clone session id is 0..{MAX_SESSION_ID}, not {session_id}")
        if session.packet_length_bytes < 0:
            raise ValueError(
                f"a clone's length is 0 (not cut) or more, not {session.packet_length_bytes}"
            )
        for replica in session.replicas:
            if not 0 <= replica.instance <= 0xFFFF:
                raise ValueError(f"a replica's instance is 0..65535, not {replica.instance}")
        self._sessions[session_id] = session
        self.destinations[session_id] = (
            tuple((r.port, r.instance) for r in session.replicas),
            session.packet_length_bytes or UNLIMITED,
        )
