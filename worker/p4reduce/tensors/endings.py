# SPDX-License-Identifier: Apache-2.0
"""The errors of collectives that cannot be completed, for both engines."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce_common.figures import three_digits

from p4reduce.errors import (
    LaneOverflowError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.tensors.stream import Collective
from p4reduce.wire.rank_sets import Level, describe_ranks

_TRIES_TO_TELL = 3  # repetitions without any answer, after which the switch is not there


def overflow_error(collective: Collective, block: int) -> LaneOverflowError:
    """Return the error of all ranks if a sum in that block overflowed."""
    where = collective.call.locate(block, collective.format.lanes)
    lanes = collective.format.name.lower()
    return LaneOverflowError(
        f"{collective.description}: a sum left the range of {lanes} within {where}",
        block=block,
    )


def left_error(collective: Collective, ranks: tuple[int, ...]) -> WorkerLostError:
    """Return the error if ranks have left that the switch has not heard."""
    return WorkerLostError(
        f"{collective.description} cannot be completed: {describe_ranks(ranks)} left the job "
        "without taking part in it",
        ranks=ranks,
    )


def late_error(
    collective: Collective,
    now: float,
    *,
    heard: Iterable[tuple[int, Level, int]],
    slot: int,
    tries: int,
    answered: bool,
    behind: bool,
) -> P4ReduceError:
    """Return the error of a collective at its deadline.

    Args:
        collective: the one that is late.
        now: the present time.
        heard: of its slots that the switch has spoken of, the number, the switch's level, and whom
            that has heard, as bits.
        slot: its first slot, or the first busy one if it has none yet.
        tries: how often its frame was repeated, or another's.
        answered: whether the switch has answered anything since the call.
        behind: whether it still waits for a slot.
    """
    seconds = now - collective.started
    what = f"{collective.description} is not complete after {three_digits(seconds)} s"
    what += ", still behind earlier ones" if behind else ""
    for number, level, bits in heard:
        if missing := level.missing(bits):
            return P4ReduceTimeoutError(
                f"{what}: slot {number} waits for {level.describe(missing)}, which the switch "
                f"{level.switch + ' ' if level.switch else ''}has not heard",
                missing=level.ranks(missing),
                slot=number,
                seconds=seconds,
            )
    # In a tree all questions of a rank may go up, so that its switch never answers by itself: then
    # what its parent says is above.
    if not answered and tries >= _TRIES_TO_TELL:
        return SwitchUnreachableError(
            f"{what}: the switch has answered nothing, though asked {tries} times again "
            f"(slot {slot})"
        )
    return P4ReduceTimeoutError(
        f"{what}: slot {slot} has no result, and the switch has not said yet who is missing",
        slot=slot,
        seconds=seconds,
    )
