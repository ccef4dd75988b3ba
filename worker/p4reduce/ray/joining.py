# SPDX-License-Identifier: Apache-2.0
"""Connects a group of actors to a job, on a network that they start on their hosts.

They exchange texts by a named actor that belongs to rank 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from p4reduce.communicator import Communicator
from p4reduce.errors import ConfigurationError, LaunchError, P4ReduceTimeoutError
from p4reduce.job_network import JobNetwork
from p4reduce.meeting import ROUND_TIMEOUT
from p4reduce.started_job import join_all
from p4reduce.wire.rank_sets import list_ranks

_PAUSE = 0.05  # seconds between two looks for rank 0, or for the others
_TELL_TIMEOUT = 5.0  # seconds for the others to hear; one of them may have ended
_ENGINE = "ray"


@dataclass
class RayMember:
    """A rank that has joined a group.

    Attributes:
        name: of the group, with a unique suffix.
        comm: the group's communicator.
        network: that the ranks have started, if any.
        meeting: of the ranks.
    """

    name: str
    comm: Communicator
    network: JobNetwork | None
    meeting: Meeting

    def leave(self) -> None:
        """Leave the job when the others have all results too, and let go of the network."""
        try:
            self.comm.close()
        finally:
            if self.network is not None:
                self.network.close()
            self.meeting.close()


class Mailbox:
    """What the ranks of a group say, in turns. Runs in an actor.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: dict[int, dict[int, str]] = {}
        self._know: dict[int, int] = {}  # rank: the turn of which it knows all
        self._missing: list[int] = []

    def say(self, turn: int, rank: int, text: str) -> bool:
        """Keep a text. Return False if this is the mailbox of an earlier group, which is full."""
        texts = self._said.setdefault(turn, {})
        return texts.setdefault(rank, text) == text

    def heard(self, turn: int, rank: int) -> tuple[list[str | None], list[int]]:
        """Return what each rank has said, None: nothing yet; and who did not come in time."""
        texts = self._said.get(turn, {})
        if self._missing or len(texts) == self._size:
            self._know[rank] = turn
        return [texts.get(one) for one in range(self._size)], self._missing

    def give_up(self, missing: list[int]) -> None:
        """Say who did not come in time. The first call counts."""
        self._missing = self._missing or missing

    def all_know(self) -> bool:
        """Whether each rank that has said something knows what came of it."""
        return all(
            turn <= self._know.get(rank, 0) for turn, texts in self._said.items() for rank in texts
        )


def join(group: str, rank: int, size: int, timeout: float, lease: float) -> RayMember:
    """Join the job of a group, on a network that rank 0's environment names or the ranks start.

    Raises:
        ConfigurationError: the group's name is in use.
        LaunchError: the network does not start; on all ranks.
        P4ReduceTimeoutError: ranks did not come; names them.
        P4ReduceError: as `p4reduce.init`.
    """
    meeting = Meeting(f"p4reduce: {group}", rank, size, timeout)
    here = ray.util.get_node_ip_address()
    nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    try:
        comm, network = join_all(
            rank,
            meeting.exchange,
            _ENGINE,
            timeout=timeout,
            lease=lease,
            towards=sorted(nodes - {here}),
        )
    except BaseException:
        meeting.close()
        raise
    return RayMember(comm.job, comm, network, meeting)


class Meeting:
    """Exchanges texts by the mailbox.

    Args:
        name: of the mailbox's actor.
        timeout: seconds for all ranks to come.
    """

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None:
        self._own: Any = None
        self._name = name
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._turn = 0
        self._said = False
        self._mailbox: Any = None
        if rank == 0:
            try:
                actor = ray.remote(Mailbox).options(name=name, num_cpus=0)
                self._own = self._mailbox = actor.remote(size)
            except ValueError:
                raise ConfigurationError(
                    f"{name!r} is a live actor: another group has this name, or did not end with "
                    "destroy_collective_group on rank 0"
                ) from None

    def exchange(self, text: str) -> Sequence[str]:
        """Say a text, and return those of all ranks, as `p4reduce.meeting.Exchange`."""
        self._turn += 1
        timeout = self._timeout if self._turn == 1 else ROUND_TIMEOUT
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._exchange(text, deadline, timeout)
            except (RayActorError, ValueError):  # not yet, or that of an earlier group
                if self._said or self._rank == 0:
                    raise LaunchError("rank 0 has ended before the network was there") from None
            if time.monotonic() > deadline:
                raise _missing(self._name, [0], self._size, timeout)
            time.sleep(_PAUSE)

    def _exchange(self, text: str, deadline: float, timeout: float) -> Sequence[str]:
        if self._rank != 0 and self._turn == 1:
            self._mailbox = ray.get_actor(self._name)
        if not ray.get(self._mailbox.say.remote(self._turn, self._rank, text)):
            raise ValueError("it is full")
        self._said = True
        while True:
            texts, gone = ray.get(self._mailbox.heard.remote(self._turn, self._rank))
            if gone:
                raise _missing(self._name, gone, self._size, timeout)
            missing = [rank for rank, one in enumerate(texts) if one is None]
            if not missing:
                return [one for one in texts if one is not None]
            if time.monotonic() > deadline:
                ray.get(self._mailbox.give_up.remote(missing))
            else:
                time.sleep(_PAUSE)

    def close(self) -> None:
        """End the mailbox, on rank 0, when the others know what was said last."""
        own, self._own = self._own, None
        if own is not None:
            deadline = time.monotonic() + _TELL_TIMEOUT
            while not ray.get(own.all_know.remote()) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            ray.kill(own)


def _missing(name: str, ranks: list[int], size: int, timeout: float) -> P4ReduceTimeoutError:
    return P4ReduceTimeoutError(
        f"{list_ranks(ranks)} of {size} did not come to {name!r} within {timeout:g} s",
        missing=ranks,
        seconds=timeout,
    )
