# SPDX-License-Identifier: Apache-2.0
"""Meters: two rates, three colours (RFC 2698, colour-blind), computed as BMv2 does.

BMv2 computes tokens from the meter's creation, in whole microseconds and doubles, and fills each
bucket when it is configured. The peak bucket comes first: without tokens there, a packet is red and
takes none from the committed bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_switch.state.timers import Clock

GREEN, YELLOW, RED = range(3)


@dataclass(frozen=True, slots=True)
class Rates:
    """Committed and peak rate (bytes or packets per second) and burst sizes (bytes or packets)."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(slots=True)
class _TokenBucket:
    per_microsecond: float
    burst: int
    tokens: int
    color: int
    filled: int = 0  # tokens that there have been since the meter was made, taken or not

    def take(self, amount: int, micros: int) -> bool:
        total = int(micros * self.per_microsecond)
        self.tokens = min(self.tokens + total - self.filled, self.burst)
        self.filled = total
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True


class Meter:
    """A meter. Without rates every packet is green."""

    __slots__ = ("_buckets", "_clock", "_in_bytes", "_start_ns", "rates")

    def __init__(self, clock: Clock, *, in_bytes: bool) -> None:
        self.rates: Rates | None = None
        self._clock = clock
        self._in_bytes = in_bytes
        self._start_ns = clock()
        self._buckets: tuple[_TokenBucket, ...] = ()

    def configure(self, rates: Rates | None) -> None:
        """Set the rates with full buckets; with None every packet is green."""
        self.rates = rates
        self._buckets = ()
        if rates is not None:
            self._buckets = (
                _TokenBucket(rates.pir / 1e6, rates.pburst, rates.pburst, RED),
                _TokenBucket(rates.cir / 1e6, rates.cburst, rates.cburst, YELLOW),
            )

    def execute(self, size: int) -> int:
        """Return the colour of a packet of `size` bytes."""
        if not self._buckets:
            return GREEN
        micros = (self._clock() - self._start_ns) // 1000
        amount = size if self._in_bytes else 1
        for bucket in self._buckets:
            if not bucket.take(amount, micros):
                return bucket.color
        return GREEN


class MeterArray:
    """An array of `size` meters, or the factory of a table's direct meters.

    A direct meter has no cells: each entry gets its own (`Entry.meter`) when it is configured.
    """

    def __init__(
        self, name: str, size: int, clock: Clock, *, in_bytes: bool, table: str | None = None
    ) -> None:
        self.name = name
        self.size = size
        self.in_bytes = in_bytes
        self.table = table
        self._clock = clock
        self.cells = [self.make() for _ in range(0 if table is not None else size)]

    def make(self) -> Meter:
        """Return a meter without rates."""
        return Meter(self._clock, in_bytes=self.in_bytes)
