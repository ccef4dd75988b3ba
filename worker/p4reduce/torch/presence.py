# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group find each other in torch's store, and learn who is missing.

Gloo waits in silence for ranks that never come. So the ranks first say that they are here, and
those who wait for others name them: in the log after a while, and in the error in the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

log = logging.getLogger(__name__)

_INTERVALS = (0.005, 0.25)  # seconds between two looks, first and longest: doubled each time
_FIRST_WARNING = 10.0  # seconds; the next ones come after twice the time


def arrive(store: Any, rank: int) -> int:
    """Return how often, from 0, this rank has made a group of this name in this store.

    A group that is made again in one store must not find the keys of the earlier one.
    """
    with _store_answers():
        return int(store.add(f"p4reduce/arrivals/{rank}", 1)) - 1


def meet(
    store: Any,
    rank: int,
    size: int,
    word: str,
    timeout: float,
    check: Callable[[], None] | None = None,
) -> list[str]:
    """Exchange a word among all ranks.

    Args:
        store: of torch, for this group and this time alone.
        rank: of this process.
        size: number of ranks.
        word: what this rank says.
        timeout: seconds.
        check: called repeatedly meanwhile; raises if some ranks will not come.

    Returns:
        What each rank said, in their order.

    Raises:
        DistNetworkError: not all came in time; names the missing ones. Or the store broke.
    """
    with _store_answers():
        store.set(f"here/{rank}", word)
    start = time.monotonic()
    warn_at, (interval, longest) = _FIRST_WARNING, _INTERVALS
    missing = list(range(size))
    while missing := _not_here(store, missing):
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
    with _store_answers():
        return [store.get(f"here/{other}").decode() for other in range(size)]


def _not_here(store: Any, ranks: list[int]) -> list[int]:
    with _store_answers():
        return [rank for rank in ranks if not store.check([f"here/{rank}"])]


@contextmanager
def _store_answers() -> Iterator[None]:
    """Say what it means when torch's store does not: its own words name no rank."""
    try:
        yield
    except RuntimeError as error:
        raise dist.DistNetworkError(
            "p4reduce: torch's store is gone: rank 0 has ended, or torchrun, in whose process it "
            f"was. Look for that process's own error, which came before this one: {error}"
        ) from error


def _those(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
