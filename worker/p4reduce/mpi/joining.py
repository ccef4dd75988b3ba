# SPDX-License-Identifier: Apache-2.0
"""From the ranks of an MPI communicator to a job on a network that rank 0's host has started."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from p4reduce.communicator import Communicator, init
from p4reduce.control.controller_address import ENVIRONMENT as CONTROLLER
from p4reduce.errors import ConfigurationError
from p4reduce.hosts import address_towards
from p4reduce.launch import Network, start
from p4reduce.transport.select import INTERFACE_ENVIRONMENT

_JOB = "P4REDUCE_JOB"
TYPES_ENVIRONMENT = "P4REDUCE_MPI_TYPES"
TYPES = {"float": "float32", "double": "float64", "int": "int32"}
"""What the switch sums, by MPI's words, and as numpy has it."""


def summed_types(given: Sequence[str] | None = None) -> frozenset[str]:
    """Return numpy's names of what goes through the switch.

    Args:
        given: MPI's words; None: those of `$P4REDUCE_MPI_TYPES`, with commas between, or all.

    Raises:
        ConfigurationError: another word.
    """
    text = os.environ.get(TYPES_ENVIRONMENT)
    words = list(given) if given is not None else text.split(",") if text else list(TYPES)
    if unknown := [word for word in words if word not in TYPES]:
        raise ConfigurationError(
            f"{TYPES_ENVIRONMENT}: {unknown[0]!r} is none of {', '.join(TYPES)}"
        )
    return frozenset(TYPES[word] for word in words)


def begin(ranks: int, hosts: Sequence[str]) -> tuple[dict[str, str], Network | None]:
    """On rank 0: start a network, unless the environment names one; return what ranks need.

    Args:
        ranks: how many there are.
        hosts: of all ranks, by name, this one's first.

    Raises:
        ConfigurationError: no address for the others to reach.
        LaunchError: it does not start.
    """
    job = {_JOB: f"mpi-{secrets.token_hex(6)}"}
    given = {name: os.environ[name] for name in _NAMES if name in os.environ}
    if CONTROLLER in given and INTERFACE_ENVIRONMENT in given:
        return {**given, **job}, None
    address = address_towards(hosts, hosts[0])
    network = start(ranks, address, unix=not address)
    return {**network.variables, **job}, network


def join(rank: int, size: int, variables: Mapping[str, str], timeout: float) -> Communicator:
    """Join the job that rank 0 has begun; the environment names the network from then on.

    Raises:
        P4ReduceError: as `p4reduce.init`.
    """
    os.environ.update(variables)
    return init(rank, size, job=variables[_JOB], timeout=timeout)


def sum_in_place(comm: Communicator, array: Any) -> None:
    """Replace an array by its sum over all ranks, as `MPI_SUM`: int32 modulo 2^32."""
    precision = "wrap32" if array.dtype.name == "int32" else None
    comm.allreduce(array, out=array, precision=precision)


_NAMES = (
    CONTROLLER,
    INTERFACE_ENVIRONMENT,
    "P4REDUCE_TOKEN",
    "P4REDUCE_UDP_KEY",
    "P4REDUCE_UDP_KEY_FILE",
    "P4REDUCE_TLS_CERT",
    "P4REDUCE_TLS_KEY",
    "P4REDUCE_TLS_CA",
)
