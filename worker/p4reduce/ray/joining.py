# SPDX-License-Identifier: Apache-2.0
"""Connects a group of actors to a job, by its name, on a network that rank 0 starts."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from p4reduce.communicator import Communicator, init
from p4reduce.errors import ConfigurationError, LaunchError, P4ReduceError, P4ReduceTimeoutError
from p4reduce.ray.network import CONTROLLER as CONTROLLER_PART
from p4reduce.ray.network import RayNetwork, trouble
from p4reduce.started_job import forget_network, name_network
from p4reduce.variables import CONTROLLER, INTERFACE

_PAUSE = 0.05  # seconds between two looks for rank 0's network
_ASK_PAUSE = 0.25  # seconds between two questions whether another rank has given up
_ANSWER_TIMEOUT = 5.0  # seconds, of an actor
_TELL_TIMEOUT = 10.0  # seconds that rank 0 keeps the network for others to hear why it ends
_JOB = "group"  # the network is the group's alone
_members: list[Member] = []


@dataclass
class Member:
    """A rank that has joined a group.

    Attributes:
        name: of the group, with a unique suffix.
        comm: the group's communicator.
        network: the network that rank 0 has started; None on others.
    """

    name: str
    comm: Communicator
    network: RayNetwork | None

    def leave(self) -> None:
        """Leave the job when the others have all results too. Rank 0 then ends the network."""
        _members.remove(self)
        try:
            self.comm.close()
        finally:
            forget_network()
            if self.network is not None:
                self.network.close()


class _ReplacedError(P4ReduceError):
    """The network that was found was that of an earlier group of the same name."""


def join(group: str, rank: int, size: int, timeout: float, lease: float) -> Member:
    """Join the job of a group. Rank 0 starts its network first.

    If the environment names a network, that one is used.

    Raises:
        ConfigurationError: this process is in another group, or the name is in use.
        LaunchError: the network does not start; on all ranks.
        P4ReduceTimeoutError: ranks did not come; names them.
        P4ReduceError: as `p4reduce.init`.
    """
    if CONTROLLER in os.environ and INTERFACE in os.environ and not _members:
        job = f"ray-{ray.get_runtime_context().get_job_id()}-{group}"
        member = Member(job, init(rank, size, job=job, timeout=timeout), None)
    elif _members:
        raise ConfigurationError(
            f"this actor is in the group {_members[0].name!r} on its network already: call "
            "destroy_collective_group first, or take another actor"
        )
    else:
        name = f"p4reduce: {group}"
        try:
            if rank == 0:
                member = _lead(name, rank, size, timeout, lease)
            else:
                member = _follow(name, rank, size, timeout)
        except BaseException:
            forget_network()
            raise
    _members.append(member)
    return member


def _lead(name: str, rank: int, size: int, timeout: float, lease: float) -> Member:
    here = ray.util.get_node_ip_address()
    others = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} - {here})
    try:
        hosts = [here, *([*others[:1]] or [here]) * (size - 1)]
        network = RayNetwork(hosts, name=name, lease=lease)
    except ValueError:
        raise ConfigurationError(
            f"{name!r} is a live actor: another group has this name, or did not end with "
            "destroy_collective_group on rank 0"
        ) from None
    meeting = _Meeting(network.actors[CONTROLLER_PART], name, rank)
    try:
        unique = _unique(name, network.wait())
        return Member(unique, meeting.join(size, timeout), network)
    except P4ReduceError:
        meeting.wait_until_all_know()
        network.close()
        raise
    except BaseException:
        network.close()
        raise


def _follow(name: str, rank: int, size: int, timeout: float) -> Member:
    deadline = time.monotonic() + timeout
    while True:
        try:
            actor = ray.get_actor(name)
            serving = ray.get(actor.serving.remote(rank), timeout=timeout)
        except (ValueError, RayActorError):  # not yet, or that of an earlier group
            if time.monotonic() > deadline:
                raise P4ReduceTimeoutError(
                    f"rank 0 of {size} did not come to {name!r} within {timeout:g} s",
                    missing=[0],
                    seconds=timeout,
                ) from None
            time.sleep(_PAUSE)
            continue
        except RayError as error:
            raise trouble(error, timeout) from None
        unique = _unique(name, serving.variables)
        try:
            return Member(unique, _Meeting(actor, name, rank).join(size, timeout), None)
        except _ReplacedError as error:
            if time.monotonic() > deadline:
                raise LaunchError(f"the network has ended: {error}") from None


class _Meeting:
    """All ranks of a group join, or none does. The others learn why a rank cannot.

    They hear by the controller's actor, so that rank 0, which ends the network, ends it when all
    know why.

    Args:
        actor: the controller's.
        name: the actor's.
        rank: this one.
    """

    def __init__(self, actor: Any, name: str, rank: int) -> None:
        self._actor = actor
        self._name = name
        self._rank = rank
        self._next_question = 0.0

    def join(self, size: int, timeout: float) -> Communicator:
        """Join the job.

        Raises:
            _ReplacedError: the network was that of an earlier group.
            P4ReduceError: as `p4reduce.init`; of the first rank that raises one, on all ranks.
        """
        try:
            return init(self._rank, size, job=_JOB, timeout=timeout, check=self._check)
        except _ReplacedError:
            raise
        except P4ReduceError as error:
            first = self._ask("give_up", self._rank, error)
            raise self._as_told(*first) if first is not None else error from None

    def wait_until_all_know(self) -> None:
        """Wait until no rank is on its way into the job; not for long."""
        deadline = time.monotonic() + _TELL_TIMEOUT
        while self._ask("coming") and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def _check(self) -> None:
        now = time.monotonic()
        if now < self._next_question:
            return
        self._next_question = now + _ASK_PAUSE
        first = self._ask("given_up")
        if first is not None:
            raise self._as_told(*first)
        try:
            same = ray.get_actor(self._name)._actor_id == self._actor._actor_id
        except ValueError:
            same = False
        if not same:
            raise _ReplacedError(f"the actor {self._name!r} has ended")

    def _as_told(self, rank: int, error: P4ReduceError) -> P4ReduceError:
        """An error as this rank raises it: with its type, and who said it."""
        if rank == self._rank:
            return error
        told = copy.copy(error)
        told.args = (f"rank {rank} has given up: {error}",)
        return told

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Ask the actor; None if it does not answer, as while Ray starts it again."""
        try:
            return ray.get(getattr(self._actor, what).remote(*arguments), timeout=_ANSWER_TIMEOUT)
        except RayError:
            return None


def _unique(name: str, variables: Mapping[str, str]) -> str:
    """Name this network in the environment, for reconnections too; return a name of the group."""
    name_network(variables)
    return f"{name} at {variables[CONTROLLER]}"
