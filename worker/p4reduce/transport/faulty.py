# SPDX-License-Identifier: Apache-2.0
"""Deliberate loss, duplication, reordering and delay, for tests and demonstrations.

Faults are drawn from a generator with a seed, so that a run can be had again. Each direction has a
generator of its own: what happens to the frames one way does not depend on those the other way.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum

import numpy as np
import numpy.typing as npt

from p4reduce.errors import ConfigurationError
from p4reduce.transport.base import RECEIVE_BATCH, Indices, Transport
from p4reduce.wire.frames import FrameBuffer

FAULTS_ENVIRONMENT = "P4REDUCE_FAULTS"
_SECONDS = ("burst", "reorder_seconds", "delay_seconds", "outage_after", "outage_seconds")


class Fault(Enum):
    """A fault of a frame on its way. Test matrices use all of them."""

    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    DELAY = "delay"


@dataclass(frozen=True)
class FaultPlan:
    """The rates of faults.

    Attributes:
        drop: probability that a frame is lost.
        duplicate: probability that it comes twice.
        reorder: probability that it is held back behind the frames of up to `reorder_seconds`.
        delay: probability that it is held back for `delay_seconds`.
        reorder_seconds: at most, chosen evenly.
        delay_seconds: long enough to outlast several rounds.
        seed: of the generators.
        up: whether frames to the switch are meant.
        down: whether frames from the switch are meant.
        burst: mean length of a burst in seconds. All frames of a burst are lost, and bursts take
            the share `drop` of the time (a Gilbert channel). 0: each frame is lost by itself.
        outage_after: when nothing comes through any more, in seconds since the transport was made.
        outage_seconds: for how long.
        only: the rank that has the faults; negative: all ranks.
        rank: of this process. It makes the generators of ranks with one seed differ.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    reorder_seconds: float = 0.002
    delay_seconds: float = 0.02
    seed: int = 0
    up: bool = True
    down: bool = True
    burst: float = 0.0
    outage_after: float = 0.0
    outage_seconds: float = 0.0
    only: int = -1
    rank: int = 0

    def __post_init__(self) -> None:
        for name in _SECONDS:
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(
                    f"{name}={getattr(self, name):g}: a number of seconds is needed"
                )
        if self.seed < 0:
            raise ConfigurationError(f"seed={self.seed}: 0 or more is needed")
        for fault in Fault:
            probability = getattr(self, fault.value)
            if not 0.0 <= probability < 1.0:
                raise ConfigurationError(
                    f"{fault.value}={probability:g}: a probability from 0 to below 1 is needed"
                )

    @classmethod
    def parse(cls, text: str, *, rank: int = 0) -> FaultPlan:
        """Parse "drop=0.01,duplicate=0.01,seed=7".

        Raises:
            ConfigurationError: a name is unknown, a value is no number, or it is out of range.
        """
        known = {item.name: item.type for item in fields(cls) if item.name != "rank"}
        values: dict[str, float | int | bool] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            if name not in known:
                raise ConfigurationError(
                    f"{FAULTS_ENVIRONMENT}: {part!r}: expected one of {', '.join(known)}, "
                    "each with =number"
                )
            try:
                if known[name] == "float":
                    values[name] = float(value)
                elif known[name] == "bool":
                    values[name] = bool(int(value))
                else:
                    values[name] = int(value)
            except ValueError:
                raise ConfigurationError(
                    f"{FAULTS_ENVIRONMENT}: {part!r}: {value!r} is not a number"
                ) from None
        return cls(**values, rank=rank)  # type: ignore[arg-type]  # checked above


@dataclass
class _Direction:
    """Frames of one direction on their way: what comes out when, in which order."""

    plan: FaultPlan
    generator: np.random.Generator
    clock: Callable[[], float]
    counts: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    _began: float = field(init=False)
    _switches_at: float = field(init=False)  # when a burst begins or ends
    _in_burst: bool = True  # the first look flips it: it begins outside of a burst
    _held: list[tuple[float, int, bytes]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._began = self._switches_at = self.clock()

    def _is_out(self, now: float) -> bool:
        """Whether nothing comes through at this time."""
        plan = self.plan
        if 0.0 <= now - self._began - plan.outage_after < plan.outage_seconds:
            return True
        if not plan.burst or not plan.drop:
            return False
        while now >= self._switches_at:
            self._in_burst = not self._in_burst
            mean = plan.burst * (1.0 if self._in_burst else (1.0 - plan.drop) / plan.drop)
            self._switches_at += self.generator.exponential(mean)
        return self._in_burst

    def put(self, frames: list[bytes]) -> None:
        """Let frames start, in order."""
        now = self.clock()
        plan = self.plan
        out, drop = self._is_out(now), 0.0 if plan.burst else plan.drop
        draws = self.generator.random((len(frames), 5))
        for frame, (lost, twice, overtaken, late, share) in zip(frames, draws, strict=True):
            if out or lost < drop:
                self.counts[Fault.DROP] += 1
                continue
            due = now
            if overtaken < plan.reorder:
                self.counts[Fault.REORDER] += 1
                due = now + share * plan.reorder_seconds
            elif late < plan.delay:
                self.counts[Fault.DELAY] += 1
                due = now + plan.delay_seconds
            heapq.heappush(self._held, (due, next(self._order), frame))
            if twice < plan.duplicate:
                self.counts[Fault.DUPLICATE] += 1
                heapq.heappush(
                    self._held, (due + share * plan.reorder_seconds, next(self._order), frame)
                )

    def take(self, limit: int) -> list[bytes]:
        """Return frames that have arrived."""
        now = self.clock()
        arrived: list[bytes] = []
        while self._held and self._held[0][0] <= now and len(arrived) < limit:
            arrived.append(heapq.heappop(self._held)[2])
        return arrived

    @property
    def due(self) -> float:
        """When the next frame arrives; infinite if none is on its way."""
        return self._held[0][0] if self._held else float("inf")


class FaultyTransport:
    """Adds faults to another transport. C calls its methods.

    Args:
        inner: does the work.
        plan: what goes wrong.
        clock: seconds, monotonic.
    """

    link = None
    lossless = False

    def __init__(
        self, inner: Transport, plan: FaultPlan, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self.endpoint, self.wake_fd = inner.endpoint, inner.wake_fd
        self.shares_link = inner.shares_link
        self._clock = clock
        up, down = np.random.SeedSequence((plan.seed, plan.rank)).spawn(2)
        none = FaultPlan()
        if plan.only >= 0 and plan.only != plan.rank:
            plan = none
        self._up = _Direction(plan if plan.up else none, np.random.default_rng(up), clock)
        self._down = _Direction(plan if plan.down else none, np.random.default_rng(down), clock)
        self.received = FrameBuffer(RECEIVE_BATCH)
        self._late = FrameBuffer(RECEIVE_BATCH)
        self._late_rows: Indices = np.arange(0)

    @property
    def dropped(self) -> int:
        return self._inner.dropped

    @property
    def counts(self) -> dict[Fault, int]:
        """How often each fault has happened so far, both directions together."""
        return {fault: self._up.counts[fault] + self._down.counts[fault] for fault in Fault}

    def receive(self) -> int:
        self._send_due()
        count = self._inner.receive()
        self._down.put([self._inner.received.get(row) for row in range(count)])
        arrived = self._down.take(RECEIVE_BATCH)
        for row, frame in enumerate(arrived):
            self.received.put(row, frame)
        return len(arrived)

    def send(self, buffer: FrameBuffer, rows: npt.NDArray[np.int64]) -> int:
        self._up.put([buffer.get(row) for row in rows])
        self._send_due()
        return len(rows)

    def wait(self, timeout: float, *, writable: bool = False) -> bool:
        # What is due upwards waits for room, if something before it does.
        due = self._down.due if len(self._late_rows) else min(self._up.due, self._down.due)
        woken = self._inner.wait(
            min(timeout, max(due - self._clock(), 0.0)),
            writable=writable or bool(len(self._late_rows)),
        )
        self._send_due()
        return woken

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()

    def _send_due(self) -> None:
        """Hand on what has arrived at the inner transport, as far as that takes it."""
        while True:
            if not len(self._late_rows):
                frames = self._up.take(RECEIVE_BATCH)
                if not frames:
                    return
                for row, frame in enumerate(frames):
                    self._late.put(row, frame)
                self._late_rows = np.arange(len(frames))
            sent = self._inner.send(self._late, self._late_rows)
            self._late_rows = self._late_rows[sent:]
            if len(self._late_rows):
                return
