# SPDX-License-Identifier: Apache-2.0
"""Collectives by the ring, from the loss of the switch until all ranks are back on one.

All ranks take the same steps in the same order, so each step needs no more agreement than that
all are in it:

1. They form the ring and exchange how far each has come. All begin at the first collective that
   one of them lacks.
2. Before each collective they exchange its number and tag, and the incarnation by which they could
   return to the switch. All ranks see the same answers. If all name the same incarnation, this
   collective and those after it go by the switch. If tags differ, that is a mismatch on all ranks.
   Otherwise the ring reduces it.

A rank sends the number of a collective when it has the result of the one before. So once all have
sent it, no rank needs those before it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from p4reduce_common.host_port import format_host_port, parse_host_port

from p4reduce.errors import (
    ConfigurationError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
)
from p4reduce.ring import rounds
from p4reduce.ring.links import FALL_BACK, TRY, RingLinks, RingNeighbours, form
from p4reduce.ring.rank_address import FORM, RING_ENVIRONMENT, RingListener
from p4reduce.ring.sums import Adder
from p4reduce.tensors.replay_log import ReplayLog
from p4reduce.tensors.stream import Collective
from p4reduce.wire.rank_sets import describe_ranks

T = TypeVar("T")

_HEADER = struct.Struct(">QII")  # number, tag, incarnation
_COMPLETED = struct.Struct(">Q")
_LONGEST_WAIT = 0.5  # seconds between two looks at whether it is all over


@dataclass(frozen=True)
class RingSettings:
    """The options of `init(fallback="ring")`.

    Attributes:
        after: seconds without a switch until the ring takes over.
        address: see `RingListener`; None: the environment's or the default.
    """

    after: float
    address: str | None

    def for_another(self) -> RingSettings:
        """Return the settings for a further job of this process: the same host, any free port.

        An address from the environment is used without its port, which is in use.
        """
        given = self.address or os.environ.get(RING_ENVIRONMENT)
        if not given:
            return self
        host, _ = parse_host_port(given, FORM, default=0)
        return RingSettings(self.after, format_host_port(host, 0))


@dataclass(frozen=True)
class Fallback:
    """The fall-back to a ring on this rank.

    Attributes:
        listener: accepts the connection of the previous rank.
        after: seconds without a switch until the ring takes over.
    """

    listener: RingListener
    after: float


def try_ring(who: RingNeighbours, listener: RingListener, timeout: float) -> None:
    """Form the ring once and close it, so that obstacles show when the job starts.

    Raises:
        ConfigurationError: a rank has no ring.
        P4ReduceTimeoutError: it was not formed within that many seconds.
    """
    without = tuple(rank for rank, address in enumerate(who.addresses) if not address)
    if without:
        raise ConfigurationError(
            f"rank {who.rank} was started with fallback='ring' and {describe_ranks(without)} "
            "without; all ranks need the same setting"
        )

    async def once() -> None:
        links = await form(who, listener, TRY)
        try:
            await rounds.gather(links, b"")
        finally:
            await links.close()

    start = time.monotonic()
    try:
        asyncio.run(asyncio.wait_for(once(), timeout))
    except asyncio.TimeoutError:
        seconds = time.monotonic() - start
        raise P4ReduceTimeoutError(
            f"the ring that this job would fall back to was not ready within {seconds:.3g} s: "
            f"rank {who.rank} cannot reach rank {who.after} at {who.addresses[who.after]}, or is "
            f"not reached by rank {who.before} at {who.addresses[who.rank]} (ring_address=)",
            seconds=seconds,
        ) from None


class RingRun:
    """One fall-back. `run` is for a thread of its own, `wake` for any.

    Args:
        replay_log: of the collectives to reduce.
        reduced: called with each one that is over.
        who: the ranks.
        listener: of this one.
        back: the incarnation by which this rank could use the switch; 0: none yet.
        left: seconds that may be waited at most; raises what the waiting ends with. Gets what is
            waited for, and the rank that is.
    """

    def __init__(
        self,
        replay_log: ReplayLog,
        reduced: Callable[[Collective], object],
        who: RingNeighbours,
        listener: RingListener,
        back: Callable[[], int],
        left: Callable[[str, int | None], float],
    ) -> None:
        self._replay_log = replay_log
        self._reduced = reduced
        self._who = who
        self._listener = listener
        self._back = back
        self._left = left
        self._adder = Adder(len(who.addresses))
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None

    def run(self) -> int:
        """Reduce until all ranks can return to a switch; return its first collective.

        Raises:
            P4ReduceError: raised by `left`, or by another rank.
        """
        return asyncio.run(self._run())

    def wake(self) -> None:
        """Tell that the replay log, or what `left` looks at, is no longer as it was."""
        with self._lock:
            if self._loop is not None and self._changed is not None:
                self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> int:
        with self._lock:
            self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        try:
            return await self._in_ring()
        finally:
            with self._lock:
                self._loop = None

    async def _in_ring(self) -> int:
        forming = form(self._who, self._listener, FALL_BACK)
        links = await self._within(forming, "all ranks to form a ring", None)
        try:
            return await self._reduce_all(links)
        except P4ReduceError as error:
            await links.abort(error)
            raise
        finally:
            await links.close()

    async def _reduce_all(self, links: RingLinks) -> int:
        mine = _COMPLETED.pack(self._replay_log.completed)
        all_completed = await self._step(links, rounds.gather(links, mine))
        number = min(int(_COMPLETED.unpack(one)[0]) for one in all_completed)
        self._replay_log.replay(number)
        links.gone_reason.add_done_callback(lambda _: self.wake())
        while True:
            collective = await self._called(number, links)
            header = _HEADER.pack(number, collective.tag, self._back())
            headers = await self._step(links, rounds.gather(links, header))
            self._replay_log.forget(number)
            if self._agreed([_HEADER.unpack(one) for one in headers], collective):
                return number
            await self._step(links, self._adder.reduce(links, collective))
            self._reduced(collective)
            number += 1

    def _agreed(self, headers: list[tuple[int, int, int]], collective: Collective) -> bool:
        """Return whether all ranks can go back to the switch. Raises MismatchError."""
        mine = headers[self._who.rank]
        others = tuple(rank for rank, one in enumerate(headers) if one[:2] != mine[:2])
        if others:
            raise MismatchError(
                f"{collective.description}: the ranks do not agree on what they reduce. This is "
                f"what rank {self._who.rank} called; {describe_ranks(others)} called something "
                "else, or in another order"
            )
        return mine[2] != 0 and all(one[2] == mine[2] for one in headers)

    async def _called(self, number: int, links: RingLinks) -> Collective:
        """Wait until this rank calls the collective, or learns that another rank has ended."""
        changed = self._changed
        assert changed is not None
        while (collective := self._replay_log.running(number)) is None:
            if links.gone_reason.done():
                raise links.gone_reason.result()
            changed.clear()
            await self._within(changed.wait(), "this rank's own next call", None)
        return collective

    async def _step(self, links: RingLinks, work: Awaitable[T]) -> T:
        return await self._within(work, "", links)

    async def _within(self, work: Awaitable[T], what: str, links: RingLinks | None) -> T:
        """Return what `work` does, unless the time is up."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                rank = None if links is None else links.awaited
                text = what if rank is None else f"rank {rank} to continue with the ring"
                left = self._left(text, rank)
                done, _ = await asyncio.wait({task}, timeout=min(left, _LONGEST_WAIT))
                if done:
                    return task.result()
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
