# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group find each other in torch's store, and learn who is missing.

Gloo waits in silence for ranks that never come. So the ranks first say that they are here, and
those who wait for others name them: in the log after a while, and in the error in the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

log = logging.getLogger(__name__)

_INTERVALS = (0.005, 0.25)  # seconds between two looks, first and longest: doubled each time
_FIRST_WARNING = 10.0  # seconds; the next ones come after twice the time


def arrive(store: Any, rank: int) -> int:
    """Return which time it is, from 0, that this rank makes a group of this name in this store.

    Whoever destroys a group and makes it again in one store must not find the keys of before.
    """
    return int(store.add(f"p4reduce/arrivals/{rank}", 1)) - 1


def meet(
    store: Any,
    rank: int,
    size: int,
    word: str,
    timeout: float,
    check: Callable[[], None] | None = None,
) -> list[str]:
    """Wait until all ranks have said something.

    Args:
        store: of torch, for this group and this time alone.
        rank: of this process.
        size: number of ranks.
        word: what this rank says.
        timeout: seconds.
        check: called time and again meanwhile; raises where it is known that some will not come.

    Returns:
        What each rank said, in their order.

    Raises:
        DistNetworkError: not all came in time; names the missing ones. Or the store broke.
    """
    store.set(f"here/{rank}", word)
    start = time.monotonic()
    warn_at, (interval, longest) = _FIRST_WARNING, _INTERVALS
    missing = list(range(size))
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if check is not None:
            check()
        waited = time.monotonic() - start
        if waited >= timeout:
            raise dist.DistNetworkError(
                f"p4reduce: {_those(missing)} of {size} did not come to the process group within "
                f"{timeout:g} s"
            )
        if waited >= warn_at:
            log.warning(
                "rank %d of %d: still waiting for %s after %.0f s",
                *(rank, size, _those(missing), waited),
            )
            warn_at *= 2
        time.sleep(min(interval, max(timeout - waited, 0.0)))
        interval = min(2 * interval, longest)
    return [store.get(f"here/{other}").decode() for other in range(size)]


def _those(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
