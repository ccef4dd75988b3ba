# SPDX-License-Identifier: Apache-2.0
"""How ranks of a communicator become groups: what each rank does for `split` and `dup`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy.typing as npt

from p4reduce.dispatch import Dispatcher
from p4reduce.errors import AdmissionError, ConfigurationError, P4ReduceError
from p4reduce.latch import Latch
from p4reduce.options import CommunicatorOptions, GroupOptions, check_names
from p4reduce.session.solo import Solo
from p4reduce.session.splitting import SplitRequest, agree, first_trouble, trouble_row
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.switches.joining import Newcomers
from p4reduce.switches.side_by_side import AnySession
from p4reduce.time_left import TimeLeft

Comm = TypeVar("Comm")
Rows = npt.NDArray[Any]
Make = Callable[[Callable[[], AnySession], CommunicatorOptions, Latch], Comm]


def dup(
    dispatcher: Dispatcher, allgather: Callable[..., Rows], make: Make[Comm], given: GroupOptions
) -> Comm:
    """Make a communicator of all ranks in their order; otherwise as `split`."""
    rank = dispatcher.session.rank
    new = split(dispatcher, allgather, make, 0, rank, given, routine="dup")
    assert new is not None
    return new


def split(
    dispatcher: Dispatcher,
    allgather: Callable[..., Rows],
    make: Make[Comm],
    color: Any,
    key: Any,
    given: GroupOptions,
    *,
    routine: str = "split",
) -> Comm | None:
    """Make the communicator of this rank's group; None for no group.

    Args:
        dispatcher: of the parent.
        allgather: the parent's.
        make: makes a communicator from what joins its session, in a thread of its own.
        color: as of `Communicator.split`, not checked yet.
        key: as of `Communicator.split`, not checked yet.
        given: the other arguments, not checked yet either.
        routine: the name of the call, in which all ranks have to agree.

    Raises:
        P4ReduceError, TypeError, ValueError: as `Communicator.split`.
    """
    dispatcher.check_process()
    session, options, refused = dispatcher.session, dispatcher.options, None
    try:
        check_names(routine, given, GroupOptions)
        options = options.of_group(**given)
        wish = SplitRequest.of(color, key, (options.slots, options.urgent_slots))
    except (TypeError, ValueError) as error:
        refused, wish = error, SplitRequest.wrong()  # the others must learn of it
    left = TimeLeft(options.timeout)

    def tell(row: Rows) -> Rows:
        return allgather(row, routine, timeout=left(), counts=[1] * session.world_size)

    dispatcher.begin()
    cancelled = Latch()
    try:
        with contextlib.ExitStack() as undo:
            join = _group_of(session, wish, options, tell, left, cancelled, undo)
            new = None if join is None else make(join, options, cancelled)
    except BaseException as error:
        if refused is None or not isinstance(error, ConfigurationError):
            dispatcher.left_by(error)
            raise
    if refused is not None:
        raise refused
    return new


def _group_of(
    parent: AnySession,
    wish: SplitRequest,
    options: CommunicatorOptions,
    tell: Callable[[Rows], Rows],
    left: TimeLeft,
    cancelled: Latch,
    undo: contextlib.ExitStack,
) -> Callable[[], AnySession] | None:
    """Agree on the groups, and let the first rank of each make its job.

    Args:
        parent: of the ranks that call this, all of them.
        wish: of this rank.
        options: of its group.
        tell: gives all ranks each rank's row, in order.
        left: of the time for all of it.
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
        deadline = time.monotonic() + left()
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
