# SPDX-License-Identifier: Apache-2.0
"""Clone sessions: the destinations of `clone`."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_switch.state.multicast import Replica, ReplicaSets, pairs

MAX_SESSION_ID = (1 << 15) - 1  # simple_switch keeps 15 bits of what a program gives
UNLIMITED = (1 << 63) - 1  # bytes


@dataclass(frozen=True, slots=True)
class CloneSession:
    """One clone session.

    Attributes:
        replicas: the destinations of the copies.
        class_of_service: stored for reads only. simple_switch queues clones by `priority`.
        packet_length_bytes: copies are cut to this many bytes as they leave; 0: not cut.
    """

    replicas: tuple[Replica, ...]
    class_of_service: int = 0
    packet_length_bytes: int = 0


class CloneSessions(ReplicaSets[CloneSession]):
    """The sessions by id; destinations are (port, instance) of each copy, and its most bytes."""

    def __init__(self) -> None:
        super().__init__("clone session", range(MAX_SESSION_ID + 1))

    def _set(self, number: int, item: CloneSession) -> None:
        self._check(number, item.replicas)
        most = item.packet_length_bytes
        if most < 0:
            raise ValueError(f"a clone's length is 0 (not cut) or more, not {most}")
        self._items[number] = item
        self.destinations[number] = (pairs(item.replicas), most or UNLIMITED)
