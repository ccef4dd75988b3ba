# SPDX-License-Identifier: Apache-2.0
"""How ranks of a communicator become groups: what each rank does for `split` and `dup`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from p4reduce.errors import AdmissionError, P4ReduceError
from p4reduce.latch import Latch
from p4reduce.options import CommunicatorOptions
from p4reduce.session.solo import Solo
from p4reduce.session.splitting import SplitRequest, agree, first_trouble, trouble_row
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.switches.joining import Newcomers
from p4reduce.switches.side_by_side import AnySession

Tell = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def group_of(
    parent: AnySession,
    wish: SplitRequest,
    options: CommunicatorOptions,
    *,
    tell: Tell,
    deadline: float,
    cancelled: Latch,
    undo: contextlib.ExitStack,
) -> Callable[[], AnySession] | None:
    """Agree on the groups, and let the first rank of each make its job.

    Args:
        parent: of the ranks that call this, all of them.
        wish: of this rank.
        options: of its group.
        tell: gives all ranks each rank's row, in order.
        deadline: of all of it, as `time.monotonic`.
        cancelled: set when the caller is gone.
        undo: the caller closes it in any case; it gives up what no session has taken over.

    Returns:
        What joins this rank's group; None for no group.

    Raises:
        ConfigurationError: as `session.splitting.agree`.
        AdmissionError: a group cannot be made.
        P4ReduceError: as `tell`.
    """
    rank = parent.rank
    groups = agree(parent.job, tell(wish.row()))
    mine = next((group for group in groups if rank in group.ranks), None)
    if isinstance(parent, Solo) or all(len(group.ranks) == 1 for group in groups):
        return None if mine is None else lambda: Solo(mine.name)
    newcomer, trouble = None, ""
    if mine is not None and len(mine.ranks) > 1:
        newcomer = Newcomers.of_group(parent, mine, options, deadline, cancelled)
        undo.callback(newcomer.give_up)
        if rank == mine.ranks[0]:
            try:
                ThreadedCall(newcomer.join_job, cancel=cancelled.set)()
            except P4ReduceError as error:
                trouble = str(error)
    if trouble := first_trouble(tell(trouble_row(trouble)), groups):
        raise AdmissionError(f"job {parent.job!r} was not split, for {trouble}")
    if mine is None:
        return None
    if newcomer is None:
        return lambda: Solo(mine.name)

    def join() -> AnySession:
        if rank != mine.ranks[0]:
            newcomer.join_job()
        return newcomer.begin()

    return join
