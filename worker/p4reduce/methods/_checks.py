# SPDX-License-Identifier: Apache-2.0
"""Bad input ends in an error on every rank, which names the rank that has it."""

from __future__ import annotations

import math

import numpy as np

from p4reduce.methods._communicator import Comm

_TEXT = 120  # bytes of a rank's own words that others see


def agree(comm: Comm, method: str, trouble: str, features: int) -> None:
    """Let all ranks raise if one has trouble, or if they differ in the number of features.

    One all-reduce of 128 bytes of integers per rank, of which each rank fills its own.

    Args:
        comm: all ranks call this.
        method: what is about to begin, for the message.
        trouble: this rank's; empty if there is none.
        features: that this rank has; negative: they may differ.

    Raises:
        ValueError: names the first rank in trouble, and what its trouble is.
    """
    table = np.zeros((comm.size, _TEXT + 1), np.int32)
    words = trouble.encode()[:_TEXT]
    table[comm.rank, : len(words)] = np.frombuffer(words, np.uint8)
    table[comm.rank, _TEXT] = features + 1 if features >= 0 else 0
    table = np.asarray(comm.allreduce(table, name="methods/input"))
    for rank, row in enumerate(table):
        if row[:_TEXT].any():
            text = bytes(row[:_TEXT].astype(np.uint8)).rstrip(b"\0").decode(errors="ignore")
            raise ValueError(f"{method}: rank {rank}: {text}")
    counts = table[:, _TEXT]
    if (counts != counts[0]).any():
        other = int(np.argmax(counts != counts[0]))
        raise ValueError(
            f"{method}: rank 0 has {counts[0] - 1} features, but rank {other} has "
            f"{counts[other] - 1}: all ranks need the same ones"
        )


def positive(name: str, value: float) -> str:
    """The trouble with a number that has to be finite and positive."""
    if not (math.isfinite(value) and value > 0):
        return f"{name}={value:g}: a positive number is needed"
    return ""


def at_least(name: str, value: int, least: int) -> str:
    """The trouble with a count that has to be at least so much."""
    return "" if value >= least else f"{name}={value}: at least {least} is needed"


def first_of(*troubles: str) -> str:
    """The first that is not empty."""
    return next((trouble for trouble in troubles if trouble), "")
