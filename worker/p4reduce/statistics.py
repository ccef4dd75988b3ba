# SPDX-License-Identifier: Apache-2.0
"""A communicator's statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SAMPLES = 4096


class RoundTrips:
    """The latest 4,096 times from a contribution to its result, without retransmitted ones.

    Attributes:
        seconds: the n-th sample is at n modulo 4,096.
        count: the number of samples so far.
    """

    def __init__(self) -> None:
        self.seconds = np.zeros(_SAMPLES)
        self.count = 0

    def add(self, seconds: npt.NDArray[np.float64]) -> None:
        """Add samples, at most 4,096 at a time."""
        at = self.count % _SAMPLES
        first = seconds[: _SAMPLES - at]
        self.seconds[at : at + len(first)] = first
        rest = seconds[len(first) :]
        self.seconds[: len(rest)] = rest
        self.count += len(seconds)

    def go_on_from(self, other: RoundTrips) -> None:
        """Start with earlier measurements."""
        self.seconds[:] = other.seconds
        self.count = other.count

    def typical(self, number: int) -> float:
        """Return the median of that many of the latest samples, in seconds; 0 if there are none.

        For an even number it is the larger of the two in the middle.
        """
        number = min(number, self.count, _SAMPLES)
        if not number:
            return 0.0
        end = self.count % _SAMPLES
        latest = self.seconds[max(end - number, 0) : end]
        if len(latest) < number:
            latest = np.concatenate((latest, self.seconds[len(latest) - number :]))
        return float(np.partition(latest, number // 2)[number // 2])  # a tenth of np.median's time

    def shortest(self) -> float:
        """Return the smallest kept sample in seconds; 0 if there are none."""
        kept = self.seconds[: min(self.count, _SAMPLES)]
        return float(kept.min()) if len(kept) else 0.0

    def percentiles(self, *which: float) -> tuple[float, ...]:
        """Return percentiles in seconds; NaN without samples."""
        kept = self.seconds[: min(self.count, _SAMPLES)].copy()
        if not len(kept):
            return (float("nan"),) * len(which)
        return tuple(float(value) for value in np.percentile(kept, which))


@dataclass(slots=True)
class Counts:
    """Counts of the engine.

    Each block that some rank has takes one round. In it each rank contributes its block or an empty
    frame. One more empty contribution opens each stripe. So if nothing is under way,
    blocks_sent + empty_sent = blocks_announced + stripes opened.

    Attributes:
        frames_sent, bytes_sent: contributions, with retransmissions: what goes up. Bytes are those
            of whole Ethernet frames, here and below.
        frames_received, bytes_received: all that came down.
        retransmissions: contributions sent again by a timer.
        spurious: those of them that the switch's answers show to have been needless. It had the
            contribution, and either waited for other ranks or had sent the result already. In a
            tree the answers do not say so: 0.
        padded: contributions sent again at once, with room for the sums, as a switch of a tree has
            asked for.
        duplicates: results that came twice.
        stale: results of rounds that were over.
        statuses: answers that say who is missing, or that ask for room.
        invalid: frames that are no answer to this rank: truncated, of another job, garbage.
        collectives: finished without error.
        blocks: of the collectives that were started, zero or not: as many as the dense tensors
            have.
        blocks_announced: those that some rank announced as not zero, the union of all ranks'. The
            difference is skipped: it is on no wire.
        blocks_sent: contributions with payload, this rank's own blocks; without retransmissions.
        empty_sent: contributions without, about other ranks' blocks or to open a stripe.
        blocks_received: sums with payload. As many as blocks_announced, but for blocks that
            are not finite.
        overflows: collectives that ended with LaneOverflowError.
    """

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    retransmissions: int = 0
    spurious: int = 0
    padded: int = 0
    duplicates: int = 0
    stale: int = 0
    statuses: int = 0
    invalid: int = 0
    collectives: int = 0
    blocks: int = 0
    blocks_announced: int = 0
    blocks_sent: int = 0
    empty_sent: int = 0
    blocks_received: int = 0
    overflows: int = 0

    @property
    def blocks_skipped(self) -> int:
        """The blocks that were zero on all ranks; too high while collectives are in flight."""
        return self.blocks - self.blocks_announced

    @property
    def union_density(self) -> float:
        """The share of blocks that were not skipped; NaN without blocks."""
        return self.blocks_announced / self.blocks if self.blocks else float("nan")


@dataclass(slots=True)
class Statistics(Counts):
    """A communicator's figures at one moment: `Counts` and those below.

    Attributes:
        dropped: frames that the kernel dropped on this host because nobody read them in time.
        round_trip_p50, round_trip_p90, round_trip_p99: seconds from a contribution to its result,
            of the latest 4,096 rounds; this includes waiting for the slowest rank. NaN at first.
        retransmission_timeout: seconds after which a contribution is sent again at present.
        window: how many slots may have a contribution in flight at once at present.
        recoveries: how often the job was formed again after the loss of a switch.
        by_ring: collectives that the ranks reduced by the ring, without a switch.
        on_ring: whether the next one would use the ring.
    """

    dropped: int = 0
    round_trip_p50: float = float("nan")
    round_trip_p90: float = float("nan")
    round_trip_p99: float = float("nan")
    retransmission_timeout: float = 0.0
    window: int = 0
    recoveries: int = 0
    by_ring: int = 0
    on_ring: bool = False


@dataclass(frozen=True, slots=True)
class SwitchShare:
    """One switch's share of a communicator's work.

    Attributes:
        share: of the blocks of each further call that is cut; all shares add up to 1.
        statistics: so far. `collectives` counts a call that was cut at the first switch only.
    """

    share: float
    statistics: Statistics
