# SPDX-License-Identifier: Apache-2.0
"""Which sums of an MPI program go through the switch, and how."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from p4reduce.checks import check_timeout, listed
from p4reduce.communicator import Communicator
from p4reduce.errors import ConfigurationError

TYPES_ENVIRONMENT = "P4REDUCE_MPI_TYPES"
TIMEOUT_ENVIRONMENT = "P4REDUCE_MPI_TIMEOUT"
TYPES = {"float": "float32", "double": "float64", "int": "int32"}
"""What the switch sums, by MPI's words, and as numpy has it."""
ENGINE = "mpi"
"""Begins the names of jobs."""
_COLLECTIVE_TIMEOUT = "1800"  # seconds: MPI itself waits without end


def summed_types(given: Sequence[str] | None = None) -> frozenset[str]:
    """Return numpy's names of the types that go through the switch.

    Args:
        given: MPI's names; None: the comma-separated list in `$P4REDUCE_MPI_TYPES`, or all.

    Raises:
        TypeError: `given` is not a sequence.
        ConfigurationError: another name.
    """
    needed = f"some of {', '.join(TYPES)} are needed"
    if given is not None:
        source, words = "types", listed("types", given, needed)
    else:
        source, text = TYPES_ENVIRONMENT, os.environ.get(TYPES_ENVIRONMENT)
        words = text.split(",") if text else list(TYPES)
    if unknown := [word for word in words if not (isinstance(word, str) and word in TYPES)]:
        raise ConfigurationError(f"{source}: {unknown[0]!r} is not one of {', '.join(TYPES)}")
    return frozenset(TYPES[word] for word in words)


def collective_timeout() -> float:
    """Return the seconds that a sum of a preloaded program waits for ranks.

    Raises:
        ConfigurationError: $P4REDUCE_MPI_TIMEOUT is no number of seconds above 0.
    """
    text = os.environ.get(TIMEOUT_ENVIRONMENT) or _COLLECTIVE_TIMEOUT
    try:
        seconds = float(text)
        check_timeout(seconds)
    except ValueError:
        raise ConfigurationError(
            f"{TIMEOUT_ENVIRONMENT}={text!r} is not a number of seconds above 0"
        ) from None
    return seconds


def sum_in_place(comm: Communicator, array: Any, timeout: float | None = None) -> None:
    """Replace an array by its sum over all ranks, as `MPI_SUM` does: int32 modulo 2^32.

    Args:
        comm: the ranks.
        array: float32, float64 or int32.
        timeout: seconds; None: the communicator's.
    """
    precision = "wrap32" if array.dtype.name == "int32" else None
    comm.allreduce(array, out=array, precision=precision, timeout=timeout)
