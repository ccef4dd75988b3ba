# SPDX-License-Identifier: Apache-2.0
"""The two actors of a network: the switch, and its controller."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from p4reduce_common.threads import new_thread

from p4reduce.errors import LaunchError, P4ReduceError
from p4reduce.launch import Network, start

log = logging.getLogger(__name__)

REFUSALS = (P4ReduceError, TypeError, ValueError)
"""What `p4reduce.launch.start` raises."""

_PAUSE = 0.5  # seconds between two looks at the processes


@dataclass(frozen=True)
class Serving:
    """What a part of a network serves.

    Attributes:
        variables: the environment by which workers find it; the controller's is complete.
        pids: its processes, and the actor's own as "actor", by their names.
        text: what was started, for people.
        news: later events, one per line.
    """

    variables: Mapping[str, str]
    pids: Mapping[str, int]
    text: str
    news: tuple[str, ...]


class Part:
    """One part of a network, as an actor. It ends with its processes, so Ray restarts it.

    Args:
        request: the arguments of `p4reduce.launch.start`.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._network: Network | None = None
        self._trouble: Exception | None = None
        self._coming: set[int] = set()
        self._given_up: tuple[int, P4ReduceError] | None = None
        try:
            self._network = start(**request)
        except REFUSALS as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                raise  # nobody asks this one; Ray tries again
            self._trouble = error
        else:
            watched = (self._network,)
            # Ray starts the actor again; without the watch nobody would notice the network's end.
            new_thread(self._watch, "p4reduce-watch", lambda _: os._exit(1), args=watched).start()

    def serving(self, rank: int | None = None) -> Serving:
        """Say what is served. Raises the error with which it did not start.

        Args:
            rank: of a group, which joins by this call; it learns of a rank that gives up.
        """
        if self._trouble is not None:
            raise self._trouble
        if rank is not None:
            self._coming.add(rank)
        assert self._network is not None
        network = self._network
        pids = {**network.pids, "actor": os.getpid()}
        return Serving(dict(network.variables), pids, network.text, network.news)

    def give_up(self, rank: int, error: P4ReduceError) -> tuple[int, P4ReduceError]:
        """Hear that a rank cannot join. Return the rank that was the first to, and its error."""
        self._given_up = self._given_up or (rank, error)
        self._coming.discard(rank)
        return self._given_up

    def given_up(self) -> tuple[int, P4ReduceError] | None:
        """Say which rank was the first that could not join, and its error."""
        return self._given_up

    def coming(self) -> list[int]:
        """Return the ranks that know of the network and have not given up."""
        return sorted(self._coming)

    def close(self) -> None:
        """End the processes, in order."""
        network, self._network = self._network, None
        if network is not None:
            network.close()

    def _watch(self, network: Network) -> None:
        told = 0
        while self._network is network:
            for what in network.news[told:]:
                log.warning("p4reduce: %s", what)
            told = len(network.news)
            try:
                network.check()
            except LaunchError as error:
                if self._network is network:
                    log.error("p4reduce: %s", error)
                    os._exit(1)
            time.sleep(_PAUSE)
