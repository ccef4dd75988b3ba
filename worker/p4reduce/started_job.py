# SPDX-License-Identifier: Apache-2.0
"""A job on a network that one of its own ranks starts, which all engines share.

Rank 0 calls `begin`, the engine sends the variables to the others, and all call `join`. `as_text`
and `from_text` are for engines that send text.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence

from p4reduce import errors
from p4reduce.communicator import Communicator, init
from p4reduce.errors import P4ReduceError
from p4reduce.hosts import address_towards
from p4reduce.launch import Network, start
from p4reduce.session.session import fail_all
from p4reduce.variables import ALL, CONTROLLER, INTERFACE

JOB = "P4REDUCE_JOB"


def begin(
    ranks: int, hosts: Sequence[str], engine: str, lease: float = 0.0
) -> tuple[dict[str, str], Network | None]:
    """On rank 0: start a network unless the environment names one; return what ranks need.

    If the network ends by itself, all calls of this process end with LaunchError at once. The
    engine then ends the others, who would look for a switch until their deadlines.

    Args:
        ranks: their number.
        hosts: names of all ranks' hosts, this one's first.
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


def join(rank: int, size: int, variables: Mapping[str, str], timeout: float) -> Communicator:
    """Join the job that rank 0 has started. The environment then names the network.

    Raises:
        P4ReduceError: as `p4reduce.init`.
    """
    os.environ.update(variables)
    return init(rank, size, job=variables[JOB], timeout=timeout)


def as_text(said: Mapping[str, str] | P4ReduceError) -> str:
    """Return variables or an error as text, for an engine that sends text."""
    if isinstance(said, P4ReduceError):
        return json.dumps({"error": type(said).__name__, "text": str(said)})
    return json.dumps({"variables": dict(said)})


def from_text(text: str) -> dict[str, str]:
    """Return the variables in a text.

    Raises:
        P4ReduceError: the error that `as_text` was given.
    """
    said = json.loads(text)
    if "error" in said:
        kind = getattr(errors, said["error"], P4ReduceError)
        raise kind(said["text"])
    variables: dict[str, str] = said["variables"]
    return variables
