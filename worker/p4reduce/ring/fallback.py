# SPDX-License-Identifier: Apache-2.0
"""Collectives by the ring, from the loss of the switch until all ranks are back on one.

The ranks do the switch's work for their own slots, so a collective may begin on a switch and end
here, or the other way round. All ranks take the same steps in the same order:

1. They form the ring, agree on where each slot continues, and hand over what ranks lack
   (`tensors.continuing`).
2. Then again and again they say which of their slots wait for a result, and the incarnation by
   which they could return to the switch. All see the same answers. If all name the same
   incarnation, they continue by the switch. Otherwise the ring completes one round in all slots
   that wait on all ranks. If there is none, a rank that others wait for waits for its own next
   call.
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
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from p4reduce_common.figures import three_digits
from p4reduce_common.host_port import format_host_port, parse_host_port

from p4reduce.errors import ConfigurationError, P4ReduceError, P4ReduceTimeoutError
from p4reduce.protocol.slots import SlotMachine
from p4reduce.ring import rounds
from p4reduce.ring.links import FALL_BACK, TRY, RingLinks, RingNeighbours, form
from p4reduce.ring.rank_address import FORM, RING_ENVIRONMENT, RingListener
from p4reduce.ring.sums import hand_over, sum_up
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.call_log import CallLog
from p4reduce.tensors.continuing import Continuation, Messages, words_of
from p4reduce.tensors.dispute import Dispute
from p4reduce.wire.rank_sets import describe_ranks

if TYPE_CHECKING:
    from p4reduce.reference.machine import ReferenceMachine  # imports scapy's layers

T = TypeVar("T")

_INCARNATION = struct.Struct(">I")
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
            "the ring that this job would fall back to was not ready within "
            f"{three_digits(seconds)} s: rank {who.rank} cannot reach rank {who.after} at "
            f"{who.addresses[who.after]}, or is not reached by rank {who.before} at "
            f"{who.addresses[who.rank]} (ring_address=)",
            seconds=seconds,
        ) from None


@dataclass(eq=False)
class RingRun:
    """One fall-back. `run` is for a thread of its own, `wake` for any.

    Attributes:
        machine: has what is under way, and no thread uses it.
        call_log: of the collectives to reduce.
        reduced: called with the number of collectives that a round has ended.
        who: the ranks.
        listener: of this one.
        back: the incarnation by which this rank could use the switch; 0: none yet.
        left: seconds that may be waited at most; raises what the waiting ends with. Gets what is
            waited for, and the rank that is.
    """

    machine: SlotMachine | ReferenceMachine
    call_log: CallLog
    reduced: Callable[[int], object]
    who: RingNeighbours
    listener: RingListener
    back: Callable[[], int]
    left: Callable[[str, int | None], float]

    def __post_init__(self) -> None:
        self._disputes: list[Dispute] = []
        self.machine.disputed = self._disputes.append
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def run(self) -> None:
        """Reduce until all ranks can return to a switch. Raises as `left` or another rank."""
        asyncio.run(self._run())

    def wake(self) -> None:
        """Tell that the call log, or what `left` looks at, is no longer as it was."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            forming = form(self.who, self.listener, FALL_BACK)
            links = await self._within(forming, "all ranks to form a ring")
            try:
                await self._reduce_all(links)
            except P4ReduceError as error:
                await links.abort(error)
                raise
            finally:
                await links.close()
        finally:
            with self._lock:
                self._loop = None

    async def _reduce_all(self, links: RingLinks) -> None:
        await self._continue(links)
        links.gone_reason.add_done_callback(lambda _: self.wake())
        while True:
            self._submit()
            awaiting = self.machine.awaiting
            mine = _INCARNATION.pack(self.back()) + np.packbits(awaiting).tobytes()
            said = await self._within(rounds.gather(links, mine), links)
            backs = {_INCARNATION.unpack_from(one)[0] for one in said}
            if len(backs) == 1 and 0 not in backs:
                return
            bits = [np.frombuffer(one, np.uint8, offset=_INCARNATION.size) for one in said]
            waiting = np.unpackbits(np.stack(bits), axis=1)[:, : len(awaiting)].astype(np.bool_)
            if len(slots := np.flatnonzero(waiting.all(axis=0))):
                await self._round(links, slots)
            elif not awaiting.any() or (waiting.any(axis=0) & ~awaiting).any():
                await self._call(links)

    async def _continue(self, links: RingLinks) -> None:
        """Let all ranks have the newest result of each slot."""
        machine, rank = self.machine, self.who.rank
        mine = words_of(machine.finished).tobytes()
        said = await self._within(rounds.gather(links, mine), links)
        words = [np.frombuffer(one, np.int32) for one in said]
        found = Continuation.of(machine.finished, words)
        given = found.given_by(rank, machine.results(found.slots))
        results = await self._within(hand_over(links, given), links)
        self._take(*found.lacked(results))

    async def _round(self, links: RingLinks, slots: Indices) -> None:
        """Complete the rounds under way in some slots. Raises MismatchError."""
        results = await self._within(sum_up(links, self.machine.contributions(slots)), links)
        self._take(slots, results)
        if self._disputes:
            raise self._disputes[-1].error

    def _take(self, slots: Indices, results: Messages) -> None:
        counts = self.machine.counts
        before = counts.collectives + counts.overflows
        self.machine.take_results(slots, results, time.monotonic())
        counts = self.machine.counts
        self.reduced(counts.collectives + counts.overflows - before)

    def _submit(self) -> bool:
        """Start what this rank has called since; return whether there was anything."""
        calls = self.call_log.since(self.machine.next_sequence)
        for one in calls:
            self.machine.submit(one)
        return bool(calls)

    async def _call(self, links: RingLinks) -> None:
        """Wait until this rank calls a collective, or learns that another rank has ended."""
        while True:
            self._changed.clear()
            if self._submit():
                return
            if links.gone_reason.done():
                raise links.gone_reason.result()
            await self._within(self._changed.wait(), "this rank's own next call")

    async def _within(self, work: Awaitable[T], awaited: str | RingLinks) -> T:
        """Return what `work` does, unless the time is up."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                if isinstance(awaited, str):
                    left = self.left(awaited, None)
                else:
                    rank = awaited.awaited
                    left = self.left(f"rank {rank} to continue with the ring", rank)
                done, _ = await asyncio.wait({task}, timeout=min(left, _LONGEST_WAIT))
                if done:
                    return task.result()
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
