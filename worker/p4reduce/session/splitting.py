# SPDX-License-Identifier: Apache-2.0
"""The data that the ranks of a communicator exchange to split, and the groups that result.

As MPI's `MPI_Comm_split` (MPI 4.1, section 7.4.2). The ranks of one colour make a group. They are
numbered by their keys, and those of equal keys by their old numbers.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.checks import number_within, whole_number
from p4reduce.control.names import MAX_NAME, ROOM_FOR_PARTS
from p4reduce.errors import ConfigurationError
from p4reduce.wire.rank_sets import describe_ranks

_WRONG, _IN_GROUP, _IN_NONE = 0, 1, 2  # what a rank asks for; 0 is also what is never sent
_LAST = int(np.iinfo(np.int64).max)
_FIRST = int(np.iinfo(np.int64).min)
_MARK = "/split-"
_TOKEN_BYTES = 6
_TROUBLE_BYTES = 512


@dataclass(frozen=True)
class SplitRequest:
    """The request of one rank for a split.

    Attributes:
        kind: whether its arguments are wrong, or it is in a group, or in none.
        color, key: see `Communicator.split`.
        options: a fingerprint of what must be equal in a group.
        token: random; the groups' names contain rank 0's.
    """

    kind: int
    color: int = 0
    key: int = 0
    options: int = 0
    token: int = 0

    @classmethod
    def of(cls, color: Any, key: Any, options: object) -> SplitRequest:
        """Check a rank's arguments. Raises TypeError, ValueError."""
        key = number_within("key", key, _FIRST, _LAST)
        if color is None:
            return cls(_IN_NONE, token=_token())
        needed = "an integer from 0 on is needed, or None for no group"
        color = whole_number("color", color, needed)
        if not 0 <= color <= _LAST:
            raise ValueError(f"color={color}: {needed}")
        digest = hashlib.sha256(repr(options).encode()).digest()
        return cls(_IN_GROUP, color, key, int.from_bytes(digest[:6], "big"), _token())

    @classmethod
    def wrong(cls) -> SplitRequest:
        """Return the request of a rank with wrong arguments, so the others need not wait for it."""
        return cls(_WRONG, token=_token())

    def row(self) -> npt.NDArray[np.int64]:
        """Return the message to the other ranks."""
        return np.array([[self.kind, self.color, self.key, self.options, self.token]], np.int64)


@dataclass(frozen=True)
class SplitGroup:
    """Ranks that get a communicator of their own.

    Attributes:
        name: of its job.
        ranks: their numbers in the parent, in the order of the group.
    """

    name: str
    ranks: tuple[int, ...]


def agree(job: str, table: npt.NDArray[np.int64]) -> list[SplitGroup]:
    """Return the groups of a parent job, which are equal on all ranks.

    `table` has the requests of all ranks in order; shape (ranks, 5).

    Raises:
        ConfigurationError: a rank's arguments are wrong, or options differ within a group.
    """
    wishes = [SplitRequest(*row) for row in table.tolist()]
    wrong = tuple(rank for rank, wish in enumerate(wishes) if wish.kind == _WRONG)
    if wrong:
        raise ConfigurationError(
            f"job {job!r} was not split: the arguments of {describe_ranks(wrong)} are wrong, and "
            "the error there says how"
        )
    ranks_of: dict[int, list[int]] = {}  # by color
    for rank, wish in enumerate(wishes):
        if wish.kind == _IN_GROUP:
            ranks_of.setdefault(wish.color, []).append(rank)
    groups = []
    for color, members in sorted(ranks_of.items()):
        members.sort(key=lambda rank: wishes[rank].key)
        first = wishes[members[0]]
        others = tuple(rank for rank in sorted(members) if wishes[rank].options != first.options)
        if others:
            raise ConfigurationError(
                f"job {job!r} was not split: within the group of color {color} the number of slots "
                f"has to be the same, and {describe_ranks(others)} asked for another one than "
                f"rank {members[0]}"
            )
        name = group_name(job, f"{wishes[0].token:x}", members[0])
        groups.append(SplitGroup(name, tuple(members)))
    return groups


def group_name(job: str, token: str, leader: int) -> str:
    """Return a unique name of a job, from a call's token and a group's leader."""
    mine = f"{_MARK}{token}-{leader}"
    return f"{job.partition(_MARK)[0][: MAX_NAME - ROOM_FOR_PARTS - len(mine)]}{mine}"


def trouble_row(text: str) -> npt.NDArray[np.uint8]:
    """Return a row that tells all ranks why a group cannot be made; `text` is "" if it can."""
    row = np.zeros((1, _TROUBLE_BYTES), np.uint8)
    cut = text.encode()[:_TROUBLE_BYTES]
    row[0, : len(cut)] = np.frombuffer(cut, np.uint8)
    return row


def first_trouble(rows: npt.NDArray[np.uint8], groups: Sequence[SplitGroup]) -> str:
    """Return why a group cannot be made, and which one; "" if all can."""
    for group in groups:
        row = rows[group.ranks[0]]
        if row.any():
            text = row.tobytes().rstrip(b"\0").decode(errors="ignore")
            return f"the group of {describe_ranks(group.ranks)}: {text}"
    return ""


def _token() -> int:
    return int.from_bytes(secrets.token_bytes(_TOKEN_BYTES), "big")
