# SPDX-License-Identifier: Apache-2.0
"""Where ranks continue after the loss of a switch: docs/protocol.md, "Continuing".

Each rank says how many results it has had in each slot. No two ranks differ by more than one, so
two bits for each slot say it. For each slot in which they differ, the first rank that has the
newest result hands it to the others. Then all ranks send their contributions to the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.tensors.blocks import Indices
from p4reduce.wire.format import AGG_OFFSET, PAYLOAD_FRAME_BYTES

MESSAGE_BYTES = PAYLOAD_FRAME_BYTES - AGG_OFFSET
"""Bytes of a result that is handed over: the aggregation header and the lanes."""

Rounds = npt.NDArray[np.uint32]
Words = npt.NDArray[np.int32]
Messages = npt.NDArray[np.uint8]
"""A header and lanes in each row; shape (slots, MESSAGE_BYTES)."""

_SLOTS_PER_WORD = 16  # slots in 32 bits
_SHIFTS = np.arange(0, 2 * _SLOTS_PER_WORD, 2).astype(np.uint32)


def words_of(finished: Rounds) -> Words:
    """Return what a rank says: two bits for each slot, 16 slots in a word."""
    places = np.zeros(-len(finished) % _SLOTS_PER_WORD + len(finished), np.uint32)
    places[: len(finished)] = finished & 3
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(
        places.reshape(-1, _SLOTS_PER_WORD) << _SHIFTS, 1
    )
    return words.view(np.int32)


@dataclass(frozen=True)
class Continuation:
    """From which round on each slot continues, and who hands over what before.

    Attributes:
        newest: how many results the rank that is furthest has had, for each slot.
        slots: those in which a rank lacks the newest result, ascending.
        givers: for each of these the rank that hands it over.
        lacking: whether this rank lacks it, for each of these.
    """

    newest: Rounds
    slots: Indices
    givers: Indices
    lacking: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, finished: Rounds, words: Sequence[Words]) -> Continuation:
        """Compare what all ranks have said.

        Args:
            finished: by this rank, for each slot.
            words: of all ranks, in order.

        Raises:
            P4ReduceError: two ranks are more than one result apart, which the protocol rules out.
        """
        said = (np.asarray(words).view(np.uint32)[..., None] >> _SHIFTS & 3).reshape(len(words), -1)
        ahead = (said[:, : len(finished)] - finished + 1 & 3).astype(np.int64) - 1
        most = ahead.max(axis=0)
        if (apart := most - ahead.min(axis=0)).max(initial=0) > 1:
            slot = int(apart.argmax())
            raise P4ReduceError(
                f"slot {slot}: two ranks are {apart[slot]} results apart, and can be one apart"
            )
        slots = np.flatnonzero(apart)
        return cls(
            finished + most.astype(np.uint32),
            slots,
            np.argmax(ahead[:, slots] == most[slots], axis=0),
            most[slots] > 0,
        )

    def given_by(self, rank: int, results: Messages) -> Messages:
        """Return what a rank hands over: `results` of `slots`, zeros for those of other givers."""
        given: Messages = results.copy()
        given[self.givers != rank] = 0
        return given

    def lacked(self, results: Messages) -> tuple[Indices, Messages]:
        """Return the slots in which this rank lacks a result, and what it gets of `results`."""
        return self.slots[self.lacking], results[self.lacking]
