# SPDX-License-Identifier: Apache-2.0
"""Checks the input of all ranks together, so bad input of one rank ends the call on all.

If only one rank raised an error, the others would wait for it. So one collective tells all ranks
whose input is unusable, and compares the numbers that must be equal.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._checks import real
from p4reduce.methods._communicator import Comm
from p4reduce.methods.gathering import gather

_TEXT_BYTES = 512  # of a problem's description; with the facts it fits into a block

LABELS = {
    "b": "booleans",
    "i": "integers",
    "u": "integers",
    "f": "floats",
    "U": "strings",
    "O": "strings",
}
"""Kinds of labels, by the kind of their dtype."""

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
    settings = settings or {}
    numbers = np.array(list(settings.values()), np.float64)
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
    for name, bits in zip(settings, rows[:, len(facts) : count].T, strict=True):
        of_all = np.ascontiguousarray(bits)
        _same(method, name, of_all, of_all.view(np.float64))
    return gathered


def _same(method: str, name: str, bits: Facts, shown: npt.NDArray[Any]) -> None:
    if (bits != bits[0]).any():
        other = int(np.flatnonzero(bits != bits[0])[0])
        # With all their digits: numbers that differ in the last one have to look different.
        first, its = (repr(shown[rank].item()).removesuffix(".0") for rank in (0, other))
        raise ValueError(
            f"{method}: rank 0 has {name} = {first}, rank {other} has {its}; "
            "all ranks need the same"
        )


def checksum(thing: bytes | str) -> int:
    """Return the CRC-32 of bytes, or of a text, by which ranks compare what is long."""
    return zlib.crc32(thing if isinstance(thing, bytes) else thing.encode())


def problem_of_samples(samples: Any) -> tuple[npt.NDArray[np.float64], str | None]:
    """Return samples as float64 of shape (samples, features), and what is wrong with them."""
    nothing = np.zeros((0, 0))
    if hasattr(samples, "toarray"):
        return nothing, "X is a sparse array; X.toarray() is a dense one, which is needed"
    try:
        array = np.ascontiguousarray(real(samples))
    except (TypeError, ValueError) as error:
        return nothing, f"X is not an array of numbers: {error}"
    if array.ndim != 2:
        return (
            nothing,
            f"X has shape {array.shape}; (samples, features) is needed: Reshape your data",
        )
    if not len(array):
        return array, "X has no samples; every rank needs at least one"
    if not array.shape[1]:
        return array, f"X has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required."
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        return array, f"X[{row}, {column}] is {array[row, column]}; NaN and infinity cannot be used"
    return array, None


def problem_of_targets(targets: Any, samples: int) -> tuple[Facts, str | None]:
    """Return classes as integers, shape (samples,), and what is wrong with them.

    Args:
        targets: integers.
        samples: the number that there must be.
    """
    array = np.asarray(targets)
    if array.dtype.kind not in "biu":
        return np.zeros(0, np.int64), f"y has dtype {array.dtype}; integers are needed"
    if array.shape != (samples,):
        problem = f"y has shape {array.shape}; {(samples,)} is needed, as X has samples"
        return np.zeros(0, np.int64), problem
    return array.astype(np.int64), None


def all_classes(comm: Comm, mine: npt.NDArray[Any], method: str) -> npt.NDArray[Any]:
    """Return the labels that any rank has, in ascending order.

    Args:
        comm: the ranks.
        mine: this rank's labels, of a dtype of `LABELS`; objects are strings.
        method: its name, for the messages.

    Returns:
        Shape (classes,), of a dtype that holds the labels of all ranks.

    Raises:
        ValueError: on all ranks, if they have labels of different kinds.
    """
    text = json.dumps([mine.dtype.str, np.unique(mine).tolist()]).encode()
    words = np.frombuffer(text + b" " * (-len(text) % 4), np.int32)
    counts = gather(comm, np.array([len(words)]), f"{method}: lengths of classes").tolist()
    texts = np.split(gather(comm, words, f"{method}: classes", counts), np.cumsum(counts)[:-1])
    dtypes, labels = zip(*(json.loads(text.tobytes()) for text in texts), strict=True)
    kinds = [LABELS[np.dtype(dtype).kind] for dtype in dtypes]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"{method}: rank 0 has {kinds[0]} as labels, rank {rank} has {kind}; "
                "all ranks need the same kind"
            )
    return np.unique(np.array(list(chain(*labels)), np.result_type(*dtypes)))
