# SPDX-License-Identifier: Apache-2.0
"""The ranks of a process group, or of torchrun, exchange texts by torch's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from p4reduce_common.polling import Backoff, attempts

from p4reduce.errors import LaunchError, P4ReduceTimeoutError
from p4reduce.meeting import ROUND_TIMEOUT, Exchange
from p4reduce.torch.presence import arrive, meet
from p4reduce.torch.store import ask

_INTERVALS = Backoff(0.001, 0.01)  # between two looks whether rank 0 has said it


def exchange_by(
    store: Any, rank: int, size: int, timeout: float, check: Callable[[], None] | None = None
) -> Exchange:
    """Return an exchange of texts by a store of torch.

    Args:
        store: for this alone.
        rank: of this process in the group.
        size: number of ranks.
        timeout: seconds for all ranks to come.
        check: called repeatedly while it waits; raises if some ranks will not come.
    """
    rounds = 0

    def exchange(text: str) -> Sequence[str]:
        nonlocal rounds
        rounds += 1
        within = timeout if rounds == 1 else ROUND_TIMEOUT
        own = dist.PrefixStore(f"{rounds}", store)
        ask(own, lambda own: own.set(f"text/{rank}", text), within, check)
        meet(own, rank, size, "", within, check)
        if rank == 0:  # so that the store is asked for each text once
            return ask(own, lambda own: _collected(own, size), ROUND_TIMEOUT, check)
        everything: list[str] = json.loads(_from_rank_0(own, size, check))
        return everything

    return exchange


def _collected(store: Any, size: int) -> list[str]:
    """Return the texts of all ranks, which are there, and tell the others."""
    texts = [store.get(f"text/{rank}").decode() for rank in range(size)]
    store.set("all", json.dumps(texts))
    return texts


def _from_rank_0(store: Any, size: int, check: Callable[[], None] | None) -> bytes:
    """Wait for what rank 0 says. It may have ended since it came."""
    for left in attempts(ROUND_TIMEOUT, _INTERVALS):
        said = ask(
            store,
            lambda store: bytes(store.get("all")) if store.check(["all"]) else None,
            left,
            check,
        )
        if said is not None:
            return said
        if check is not None:
            check()
    raise dist.DistNetworkError(
        f"p4reduce: rank 0 of {size} did not come to the process group within {ROUND_TIMEOUT:g} s"
    )


def of_environment(timeout: float) -> Exchange:
    """Return an exchange of all ranks by the store that torchrun's variables name."""
    store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    prefixed = dist.PrefixStore("p4reduce/init", store)
    own = dist.PrefixStore(f"{arrive(prefixed, rank, timeout)}", prefixed)
    by_store = exchange_by(own, rank, size, timeout)

    def exchange(text: str) -> Sequence[str]:
        try:
            return by_store(text)
        except dist.DistError as error:
            kind = P4ReduceTimeoutError if "did not come" in str(error) else LaunchError
            raise kind(str(error)) from error

    return exchange
