# SPDX-License-Identifier: Apache-2.0
"""From the name of a group of actors to a job on a network that rank 0 has started."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from p4reduce.communicator import Communicator, init
from p4reduce.errors import ConfigurationError, LaunchError, P4ReduceError, P4ReduceTimeoutError
from p4reduce.ray.network import RayNetwork, trouble
from p4reduce.variables import CONTROLLER, INTERFACE

_PAUSE = 0.05  # seconds between two looks for rank 0's network
_JOB = "group"  # the network is the group's alone
_members: list[Member] = []
_named: set[str] = set()  # variables of the environment that are ours


@dataclass
class Member:
    """A rank that has joined.

    Attributes:
        name: of the group, with something that no other group of that name has.
        comm: of the group.
        network: on rank 0, what it has started.
    """

    name: str
    comm: Communicator
    network: RayNetwork | None

    def leave(self) -> None:
        """Leave the job, when the others have all results too; rank 0 ends the network then."""
        _members.remove(self)
        try:
            self.comm.close()
        finally:
            _forget()
            if self.network is not None:
                self.network.close()


class _ReplacedError(P4ReduceError):
    """The network that was found was that of an earlier group of the same name."""


def join(group: str, rank: int, size: int, timeout: float) -> Member:
    """Join the job of a group; on rank 0, start its network first.

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
        meet = _lead if rank == 0 else _follow
        try:
            member = meet(f"p4reduce: {group}", rank, size, timeout)
        except BaseException:
            _forget()
            raise
    _members.append(member)
    return member


def _lead(name: str, rank: int, size: int, timeout: float) -> Member:
    here = ray.util.get_node_ip_address()
    others = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} - {here})
    try:
        network = RayNetwork([here, *([*others[:1]] or [here]) * (size - 1)], name=name)
    except ValueError:
        raise ConfigurationError(
            f"{name!r} is an actor that lives: another group has this name, or did not end with "
            "destroy_collective_group on rank 0"
        ) from None
    try:
        return Member(_unique(name, network.wait()), _enter(rank, size, timeout), network)
    except BaseException:
        network.close()
        raise


def _follow(name: str, rank: int, size: int, timeout: float) -> Member:
    deadline = time.monotonic() + timeout
    while True:
        try:
            actor = ray.get_actor(name)
            serving = ray.get(actor.serving.remote(), timeout=timeout)
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
        variables = serving.variables

        def check(mine: Any = actor) -> None:
            try:
                same = ray.get_actor(name)._actor_id == mine._actor_id
            except ValueError:
                same = False
            if not same:
                raise _ReplacedError(f"the actor {name!r} has ended")

        unique = _unique(name, variables)
        try:
            return Member(unique, _enter(rank, size, timeout, check), None)
        except _ReplacedError as error:
            if time.monotonic() > deadline:
                raise LaunchError(f"the network has ended: {error}") from None


def _enter(rank: int, size: int, timeout: float, check: Any = None) -> Communicator:
    return init(rank, size, job=_JOB, timeout=timeout, check=check)


def _unique(name: str, variables: Mapping[str, str]) -> str:
    """Name this network in the environment, for reconnections too; return a name of the group."""
    os.environ.update(variables)
    _named.update(variables)
    return f"{name} at {variables[CONTROLLER]}"


def _forget() -> None:
    for name in _named:
        os.environ.pop(name, None)
    _named.clear()
