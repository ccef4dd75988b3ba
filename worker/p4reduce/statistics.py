# SPDX-License-Identifier: Apache-2.0
"""What a communicator has done so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SAMPLES = 4096


class RoundTrips:
    """The latest 4,096 times from a contribution to its result, retransmitted ones left out."""

    def __init__(self) -> None:
        self._seconds = np.zeros(_SAMPLES)
        self.count = 0

    def add(self, seconds: npt.NDArray[np.float64]) -> None:
        """Add samples, at most 4,096 at a time."""
        at = self.count % _SAMPLES
        first = seconds[: _SAMPLES - at]
        self._seconds[at : at + len(first)] = first
        rest = seconds[len(first) :]
        self._seconds[: len(rest)] = rest
        self.count += len(seconds)

    def percentiles(self, *which: float) -> tuple[float, ...]:
        """Return percentiles in seconds; NaN where there are no samples yet."""
        kept = self._seconds[: min(self.count, _SAMPLES)].copy()
        if not len(kept):
            return (float("nan"),) * len(which)
        return tuple(float(value) for value in np.percentile(kept, which))


@dataclass(slots=True)
class Counts:
    """Counted by the engine.

    Attributes:
        frames_sent, bytes_sent: contributions, with retransmissions. Bytes are those of whole
            Ethernet frames, here and below.
        frames_received, bytes_received: all that came in.
        retransmissions: contributions sent again by a timer.
        spurious: those of them that the switch's answers show to have been needless. It had the
            contribution, and either waited for other ranks or had sent the result already.
        duplicates: results that came twice.
        stale: results of rounds that were over.
        statuses: answers that say who is missing.
        invalid: frames that are no answer to this rank: truncated, of another job, garbage.
        collectives: finished without error.
        blocks_sent, blocks_received: blocks with data.
    """

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    retransmissions: int = 0
    spurious: int = 0
    duplicates: int = 0
    stale: int = 0
    statuses: int = 0
    invalid: int = 0
    collectives: int = 0
    blocks_sent: int = 0
    blocks_received: int = 0


@dataclass(slots=True)
class Statistics(Counts):
    """A communicator's figures at one moment: `Counts` and those below.

    Attributes:
        dropped: frames that the kernel dropped on this host because nobody read them in time.
        round_trip_p50, round_trip_p90, round_trip_p99: seconds from a contribution to its result,
            of the latest 4,096 rounds; this includes waiting for the slowest rank. NaN at first.
        retransmission_timeout: seconds after which a contribution is sent again, now.
        recoveries: how often a lost switch was found again.
        repeated: collectives run again for that, on this rank's behalf or another's.
    """

    dropped: int = 0
    round_trip_p50: float = float("nan")
    round_trip_p90: float = float("nan")
    round_trip_p99: float = float("nan")
    retransmission_timeout: float = 0.0
    recoveries: int = 0
    repeated: int = 0
