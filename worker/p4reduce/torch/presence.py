# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group find each other in torch's store, and learn who is missing.

Gloo waits in silence for ranks that never come. So the ranks first say that they are here, and
those who wait for others name them: in the log after a while, and in the error in the end. Until
then a rank asks the store for one number, however many ranks there are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from p4reduce_common.polling import Backoff

from p4reduce.torch.store import FIRST_WARNING, ask
from p4reduce.wire.rank_sets import list_ranks

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHORTEST, _LONGEST = 0.005, 0.25  # seconds between two looks of a rank
_FACTOR = 1.05  # of an interval: the last rank is noticed a twentieth of the time later
_LOOKS = 5000.0  # per second, of all ranks of a group: more would keep the store's process busy
_BITS = 62  # ranks whose presence is in one number of the store, which has 64 bits and a sign


def arrive(store: Any, rank: int, timeout: float, check: Callable[[], None] | None = None) -> int:
    """Return how often, from 0, this rank has made a group of this name in this store.

    A group that is made again in one store must not find the keys of the earlier one.

    Args:
        store: of torch.
        rank: of this process.
        timeout: seconds.
        check: as for `meet`.

    Raises:
        DistNetworkError: the store broke, or does not answer.
    """
    key = f"p4reduce/arrivals/{rank}"
    return ask(store, lambda store: int(store.add(key, 1)), timeout, check) - 1


def meet(
    store: Any,
    rank: int,
    size: int,
    word: str,
    timeout: float,
    check: Callable[[], None] | None = None,
) -> str:
    """Wait for all ranks, and learn what rank 0 says.

    Args:
        store: of torch, for this group and this time alone.
        rank: of this process.
        size: number of ranks.
        word: what this rank says, if it is rank 0.
        timeout: seconds.
        check: called repeatedly meanwhile; raises if some ranks will not come.

    Returns:
        What rank 0 said.

    Raises:
        DistNetworkError: not all came in time; names the missing ones. Or the store broke, or does
            not answer.
    """
    start = time.monotonic()

    def asked(question: Callable[[Any], T]) -> T:
        return ask(store, question, timeout - (time.monotonic() - start), check)

    def come(store: Any) -> int:
        if rank == 0:
            store.set("word", word)
        store.add(f"here/{rank // _BITS}", 1 << rank % _BITS)  # who
        return int(store.add("here", 1))  # how many

    def not_here(store: Any) -> list[int]:
        """The missing ranks, by a number of the store for every 62."""
        words = [store.add(f"here/{number}", 0) for number in range(-(-size // _BITS))]
        return [rank for rank in range(size) if not words[rank // _BITS] >> rank % _BITS & 1]

    came = asked(come)
    warn_at = FIRST_WARNING
    first = min(max(_SHORTEST, size / _LOOKS), _LONGEST)
    intervals = iter(Backoff(first, _LONGEST, _FACTOR))
    while came < size:
        if check is not None:
            check()
        waited = time.monotonic() - start
        if waited >= timeout:
            if missing := asked(not_here):
                raise dist.DistNetworkError(
                    f"p4reduce: {list_ranks(missing)} of {size} did not come to the process group "
                    f"within {timeout:g} s"
                )
            break  # the last one has just come
        if waited >= warn_at:
            if missing := asked(not_here):
                log.warning(
                    "rank %d of %d: still waiting for %s after %.0f of %g s",
                    rank,
                    size,
                    list_ranks(missing),
                    waited,
                    timeout,
                )
            warn_at *= 2
        time.sleep(min(next(intervals), max(timeout - waited, 0.0)))
        came = asked(lambda store: int(store.add("here", 0)))
    return asked(lambda store: str(store.get("word").decode()))
