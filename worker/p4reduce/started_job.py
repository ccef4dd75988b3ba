# SPDX-License-Identifier: Apache-2.0
"""A job on a network that one of its own ranks starts, which all engines share.

`join_all` is for engines whose ranks can exchange texts. `begin` is rank 0's part of it, and
`as_text` and `from_text` carry what it returns, for those that have other ways.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p4reduce import errors
from p4reduce.communicator import Communicator, init
from p4reduce.errors import ConfigurationError, LaunchError, P4ReduceError
from p4reduce.hosts import address_towards
from p4reduce.launch import Network, start
from p4reduce.session.session import fail_all
from p4reduce.variables import ALL, CONTROLLER, INTERFACE

JOB = "P4REDUCE_JOB"

_before: dict[str, str | None] = {}  # what the environment had for a network's variables

Exchange = Callable[[str], Sequence[str]]
"""Gives this rank's text to all ranks, and returns the texts of all in their order."""


def join_all(
    rank: int,
    exchange: Exchange,
    hosts: Sequence[str],
    engine: str,
    *,
    timeout: float,
    lease: float,
) -> tuple[Communicator, Network | None]:
    """Join a job on a network that rank 0 starts: all ranks, or none.

    All ranks call it. After an error on any rank, what has started has ended on all of them.

    Args:
        rank: of this process.
        exchange: of the engine.
        hosts: of all ranks, as for `begin`; only rank 0's list counts.
        engine: the beginning of the job's name.
        timeout: as of `p4reduce.init`.
        lease: as of `begin`.

    Returns:
        The communicator, and on rank 0 the network to close when all have left, if it started one.

    Raises:
        P4ReduceError: as `begin` and `p4reduce.init`; on all ranks.
    """
    network: Network | None = None
    comm: Communicator | None = None

    def start() -> dict[str, str] | None:
        nonlocal network
        if rank != 0:
            return None
        variables, network = begin(len(hosts), hosts, engine, lease)
        return variables

    def enter() -> None:
        nonlocal comm
        comm = join(rank, len(hosts), variables, timeout)

    try:
        variables = agreed(rank, exchange, start)[0]
        agreed(rank, exchange, enter)
        assert comm is not None, "its rank has joined"
    except BaseException as error:
        cause = cause_of(error, network)
        if comm is not None:
            comm.close()
        if network is not None:
            network.close()
        forget_network()
        if cause is not error:
            raise cause from error
        raise
    return comm, network


def agreed(rank: int, exchange: Exchange, work: Callable[[], Any]) -> list[Any]:
    """Do this rank's part of something, and return what the parts of all ranks have returned.

    Args:
        rank: of this process.
        exchange: of the engine.
        work: this rank's part; returns what JSON can hold.

    Raises:
        The error of `work`, or on other ranks that of the first of these, as `from_text`.
    """
    own: BaseException | None = None
    try:
        text = as_text(work())
    except BaseException as error:  # the others wait for this rank's text
        own, text = error, as_text(error, rank)
    texts = exchange(text)
    if own is not None:
        raise own
    return [from_text(one) for one in texts]


def cause_of(error: BaseException, network: Network | None) -> BaseException:
    """Return LaunchError if the network has ended, which is then the cause; else the error."""
    if network is not None and isinstance(error, P4ReduceError):
        try:
            network.check()
        except LaunchError as ended:
            return ended
    return error


def begin(
    ranks: int, hosts: Sequence[str], engine: str, lease: float = 0.0
) -> tuple[dict[str, str], Network | None]:
    """On rank 0: start a network unless the environment names one; return what ranks need.

    If the network ends by itself, all calls of this process end with LaunchError at once. The
    engine then ends the others, who would look for a switch until their deadlines.

    Args:
        ranks: their number.
        hosts: of all ranks, this one's first: names, addresses, or what `hosts.this_host` says.
        engine: the beginning of the job's name.
        lease: of a network that is started, as of `p4reduce.launch.start`.

    Raises:
        ConfigurationError: the others can reach no address of this host; the lease is wrong.
        LaunchError: it does not start.
    """
    job = {JOB: f"{engine}-{secrets.token_hex(6)}"}
    given = {name: os.environ[name] for name in ALL if name in os.environ}
    if CONTROLLER in given and INTERFACE in given:
        return {**given, **job}, None
    address = address_towards(hosts, hosts[0])
    network = start(ranks, address, unix=not address, lease=lease)
    controller = network.variables[CONTROLLER]
    network.when_ended(lambda error: fail_all(controller, error))
    return {**network.variables, **job}, network


def join(rank: int, size: int, variables: dict[str, str], timeout: float) -> Communicator:
    """Join the job that rank 0 has started.

    Then the environment names its network, until `forget_network`.

    Raises:
        P4ReduceError: as `p4reduce.init`.
    """
    name_network(variables)
    return init(rank, size, job=variables[JOB], timeout=timeout)


def name_network(variables: Mapping[str, str]) -> None:
    """Name a network in the environment, for reconnections too."""
    for name in variables:
        _before.setdefault(name, os.environ.get(name))
    os.environ.update(variables)


def forget_network() -> None:
    """Return the environment's variables to what they were before `name_network`."""
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()


def as_text(said: Any, rank: int = 0) -> str:
    """Return what JSON can hold, or an exception of a rank, as text."""
    if not isinstance(said, BaseException):
        return json.dumps({"said": said})
    if isinstance(said, P4ReduceError):
        return json.dumps({"error": type(said).__name__, "text": str(said)})
    kind = ConfigurationError if isinstance(said, (TypeError, ValueError)) else LaunchError
    text = f"rank {rank}: {type(said).__name__}: {said}"
    return json.dumps({"error": kind.__name__, "text": text})


def from_text(text: str) -> Any:
    """Return what a text holds.

    Raises:
        P4ReduceError: the error that `as_text` was given. Another rank's wrong argument is a
            ConfigurationError, and its other exceptions are LaunchError.
    """
    told = json.loads(text)
    if "error" in told:
        raise getattr(errors, told["error"], P4ReduceError)(told["text"])
    return told["said"]
