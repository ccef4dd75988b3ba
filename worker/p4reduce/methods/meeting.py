# SPDX-License-Identifier: Apache-2.0
"""Checks the input of all ranks together, so bad input of one rank ends the call on all.

If only one rank raised an error, the others would wait for it. So one collective tells all ranks
whose input is unusable, and compares the numbers that must be equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._checks import real
from p4reduce.methods._communicator import Comm
from p4reduce.methods.gathering import gather

_TEXT_BYTES = 512  # of a problem's description; with the facts it fits into a block

Facts = npt.NDArray[np.int64]


def meet(
    comm: Comm,
    method: str,
    problem: str | None,
    facts: Mapping[str, int],
    same: tuple[str, ...] = (),
    settings: Mapping[str, float] | None = None,
) -> dict[str, Facts]:
    """Exchange facts about the ranks' input, and refuse it on all ranks if one refuses it.

    Args:
        comm: the ranks; all call this at the same place.
        method: the name of the method, for the messages.
        problem: why this rank's input cannot be used, or None.
        facts: integers about this rank's input, under the same names on all ranks; those of a rank
            with a problem may be anything.
        same: the names of those that must be equal on all ranks.
        settings: numbers that must be equal too, under the same names on all ranks. With other
            settings ranks would call different collectives, and wait for each other until the
            deadline.

    Returns:
        Each fact of all ranks, by rank: shape (ranks,).

    Raises:
        ValueError: on all ranks with the same text, which names the ranks and what is wrong.
    """
    text = (problem or "").encode()[:_TEXT_BYTES]
    numbers = np.array(list((settings or {}).values()), np.float64)
    count = len(facts) + len(numbers)
    row = np.zeros(count + _TEXT_BYTES // 8, np.int64)
    row[: len(facts)] = list(facts.values())
    row[len(facts) : count] = numbers.view(np.int64)
    row[count:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
    rows = gather(comm, row[None], f"{method}: meeting")
    texts = [row[count:].tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
    if wrong:
        raise ValueError(f"{method}: {'; '.join(wrong)}")
    gathered = dict(zip(facts, rows[:, : len(facts)].T, strict=True))
    for fact in same:
        _same(method, fact, gathered[fact], gathered[fact])
    for name, bits in zip(settings or {}, rows[:, len(facts) : count].T, strict=True):
        of_all = np.ascontiguousarray(bits)
        _same(method, name, of_all, of_all.view(np.float64))
    return gathered


def _same(method: str, name: str, bits: Facts, shown: npt.NDArray[Any]) -> None:
    if (bits != bits[0]).any():
        other = int(np.flatnonzero(bits != bits[0])[0])
        raise ValueError(
            f"{method}: rank 0 has {name} = {shown[0]:.10g}, rank {other} has "
            f"{shown[other]:.10g}; all ranks need the same"
        )


def checksum(thing: bytes | str) -> int:
    """Return an integer for any object. It differs if the object differs."""
    return zlib.crc32(thing if isinstance(thing, bytes) else thing.encode())


def problem_of_samples(samples: Any) -> tuple[npt.NDArray[np.float64], str | None]:
    """Return samples as float64 of shape (samples, features), and what is wrong with them."""
    nothing = np.zeros((0, 0))
    try:
        array = np.ascontiguousarray(real(samples))
    except (TypeError, ValueError) as error:
        return nothing, f"X is not an array of numbers: {error}"
    if array.ndim != 2:
        return nothing, f"X has shape {array.shape}; (samples, features) is needed"
    if not len(array):
        return array, "X has no samples; every rank needs at least one"
    if not array.shape[1]:
        return array, "X has no features"
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        return array, f"X[{row}, {column}] is {array[row, column]}; finite numbers are needed"
    return array, None


def problem_of_targets(
    targets: Any, samples: int, *, classes: bool
) -> tuple[npt.NDArray[Any], str | None]:
    """Return targets, shape (samples,), and what is wrong with them.

    Args:
        targets: integers for classes, else numbers.
        samples: the number that there must be.
        classes: whether the targets are classes.
    """
    array = np.asarray(targets)
    wanted = "integers" if classes else "numbers"
    if array.dtype.kind not in ("biu" if classes else "biuf"):
        return np.zeros(0), f"y has dtype {array.dtype}; {wanted} are needed"
    if array.shape != (samples,):
        return np.zeros(0), f"y has shape {array.shape}; {(samples,)} is needed, as X has samples"
    array = array.astype(np.int64 if classes else np.float64)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        return array, f"y[{row}] is {array[row]}; finite numbers are needed"
    return array, None


def all_classes(comm: Comm, mine: npt.NDArray[np.int64], name: str) -> Facts:
    """Return the classes that any rank has, in ascending order."""
    own = np.unique(mine)
    counts = gather(comm, np.array([len(own)]), f"{name}: numbers of classes").tolist()
    return np.unique(gather(comm, own, f"{name}: classes", counts))
