# SPDX-License-Identifier: Apache-2.0
"""How long to wait for a result before asking again: RFC 6298, and a timer for each slot.

50 ms at first, then between 10 (100 where nothing is lost) and 250 ms by the round trips, twice as
long after each time. Which slots then ask is for slots.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.statistics import RoundTrips

Indices = npt.NDArray[np.int64]

_ALL = slice(None)
_ALPHA = 1 / 8
_BETA = 1 / 4
_VARIATIONS = 4.0
_PATIENCE = 0.1  # seconds; longer than a process waits for a core on a busy machine


class RetransmissionTimeout:
    """An estimate of the round trip, and the timeout that follows from it, in seconds.

    All slots of a job share one path and one estimate. Samples must be unambiguous (RFC 6298,
    section 3), which the caller sees to. The gains of the RFC are meant for one measurement a
    round trip. With many slots there are many, so the longest of each round trip's time counts
    (RFC 7323, appendix G, has the same concern).

    Args:
        initial: until there is a sample. The network is a single switch, so much less than the
            second that the RFC asks of TCP.
        floor: at least; pauses by the scheduler of some milliseconds are no losses.
        ceiling: at most, after backing off, unless round trips typically take half of that.
    """

    def __init__(self, initial: float = 0.05, floor: float = 0.01, ceiling: float = 0.25) -> None:
        self.floor = floor
        self.ceiling = self._least_ceiling = ceiling
        self.seconds = initial
        self._smoothed = 0.0
        self._variation = 0.0
        self._longest = 0.0
        self._window_ends = -np.inf

    @property
    def figures(self) -> Sequence[float]:
        """All that it keeps, for machine code: see `protocol.native_slots`."""
        return (
            *(self.seconds, self.floor, self._least_ceiling, self.ceiling),
            *(self._smoothed, self._variation, self._longest, self._window_ends),
        )

    @figures.setter
    def figures(self, figures: Sequence[float]) -> None:
        self.seconds, self.floor, self._least_ceiling, self.ceiling = figures[:4]
        self._smoothed, self._variation, self._longest, self._window_ends = figures[4:]

    def measured(self, round_trip: float, now: float) -> None:
        """Take a measurement into account, at the time `now`."""
        self._longest = max(self._longest, round_trip)
        if now >= self._window_ends:
            self._sample(self._longest)
            self._longest = 0.0
            self._window_ends = now + self._smoothed

    def be_patient(self) -> None:
        """Nothing is lost on the way: what does not come is late."""
        self.floor = _PATIENCE
        self.seconds = max(self.seconds, _PATIENCE)

    def typical(self, round_trip: float) -> None:
        """Take into account how long the greater part of round trips takes at least."""
        self.ceiling = max(self._least_ceiling, 2 * round_trip)

    def _sample(self, round_trip: float) -> None:
        """See RFC 6298, 2.2 and 2.3."""
        if self._smoothed == 0.0:
            self._smoothed = round_trip
            self._variation = round_trip / 2
        else:
            self._variation += _BETA * (abs(self._smoothed - round_trip) - self._variation)
            self._smoothed += _ALPHA * (round_trip - self._smoothed)
        timeout = self._smoothed + _VARIATIONS * self._variation
        self.seconds = min(max(timeout, self.floor), self.ceiling)

    def after(self, retransmissions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the timeouts after so many retransmissions of a packet: doubled by each."""
        return np.minimum(self.seconds * np.exp2(np.minimum(retransmissions, 30)), self.ceiling)

    def after_one(self, retransmissions: int) -> float:
        """The same for one packet."""
        return float(min(self.seconds * 2.0 ** min(retransmissions, 30), self.ceiling))


def timers_of(slots: int, place: int | None, *, in_tree: bool) -> SlotTimers:
    """Return the timers of a rank; docs/protocol.md, "Who asks", has the reasons.

    Args:
        slots: how many there are.
        place: which one it is of the many ranks at its switch, from 0 on. None: these are few.
        in_tree: whether that switch has a parent.
    """
    if not place:
        return SlotTimers(slots, tries_a_doubling=4 if place == 0 and in_tree else 1)
    return SlotTimers(slots, 1, stretch=1.0 if not in_tree else 1.5 if place == 1 else 2.0)


class SlotTimers:
    """When each slot's contribution was sent, and when it is to be sent again.

    Attributes:
        timeout: the estimate behind the timers.
        opening_timeout: the same for rounds that open a stripe, which take as long as the slowest
            rank needs to get there: no measure of the network, but of when to become impatient.
        round_trips: what was measured.
        tries: how often each slot's contribution was repeated, or another rank's in its place.
        backed_off: whether any was.
        turn: 0: this rank asks as soon as a timer runs out. 1: another one asks for it first, so
            it waits twice as long; see docs/protocol.md, "Who asks".
        tries_a_doubling: a contribution's timeout is doubled each time that it was repeated so
            often.
        stretch: how many times as long all of this is.

    Args:
        slots: how many there are.
        turn, tries_a_doubling, stretch: see there.
    """

    def __init__(
        self, slots: int, turn: int = 0, tries_a_doubling: int = 1, stretch: float = 1.0
    ) -> None:
        self.turn = turn
        self.tries_a_doubling = tries_a_doubling
        self.stretch = stretch
        self.timeout = RetransmissionTimeout()
        self.opening_timeout = RetransmissionTimeout()
        self.round_trips = RoundTrips()
        self.tries = np.zeros(slots, np.int64)
        self.backed_off = False
        self._sent_at = np.zeros(slots)  # for the first time
        self._due = np.full(slots, np.inf)
        self._opening = np.zeros(slots, np.bool_)
        self._some_open = False

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What machine code works on as well, by the names that it has there."""
        return {
            "tries": self.tries,
            "sent_at": self._sent_at,
            "due": self._due,
            "opening": self._opening,
            "round_trips": self.round_trips.seconds,
        }

    @property
    def constants(self) -> dict[str, float]:
        """What machine code has to know besides, likewise."""
        return {
            "turn": self.turn,
            "tries_a_doubling": self.tries_a_doubling,
            "stretch": self.stretch,
        }

    @property
    def flags(self) -> tuple[bool, bool]:
        """`backed_off`, and whether some slots' contributions open a stripe."""
        return self.backed_off, self._some_open

    @flags.setter
    def flags(self, flags: tuple[bool, bool]) -> None:
        self.backed_off, self._some_open = flags

    @property
    def next_due(self) -> float:
        """When the first one runs out; infinite if there is none."""
        return float(np.minimum.reduce(self._due))

    def opening(self, slots: Indices) -> None:
        """The next contributions of these slots open a stripe."""
        self._opening[slots] = True
        self.some_open()

    def some_open(self) -> None:
        """Machine code has done `opening`."""
        self._some_open = True

    def sent(self, slots: Indices, now: float) -> None:
        """Start timers."""
        if not self.backed_off and not self._some_open:
            self._sent_at[slots] = now
            self._due[slots] = now + self._usual
            return
        tries = self.tries[slots]
        self._sent_at[slots[tries == 0]] = now
        doublings = tries // self.tries_a_doubling + self.turn
        usual = self.timeout.after(doublings)
        # A frame that opens a stripe waits in the same queues as others.
        opening = np.maximum(self.opening_timeout.after(doublings), usual)
        waits = np.where(self._opening[slots], opening, usual)
        self._due[slots] = now + self.stretch * waits

    def be_patient(self) -> None:
        """Frames go by memory or by a Unix socket, which lose none."""
        self.timeout.be_patient()
        self.opening_timeout.be_patient()

    def stop(self, slots: Indices | slice = _ALL) -> None:
        """Stop timers."""
        self._due[slots] = np.inf

    def hurry(self, now: float) -> None:
        """Let all that run run out now."""
        self._due[np.isfinite(self._due)] = now

    def run_out(self, waiting: npt.NDArray[np.bool_], now: float) -> None:
        """Let those of some slots run out, whether they run or not."""
        self._due[waiting] = now

    def expired(self, now: float) -> Indices:
        """Return the slots whose timers have run out."""
        return np.flatnonzero(self._due <= now)

    def hold(self, slots: Indices, tries: int, now: float) -> None:
        """Let timers that have run out run on, while another slot's frame is sent again.

        As long as that one's will, which was sent again `tries` times before.
        """
        self._due[slots] = now + self._after(tries + 1)

    def repeated(self, slots: Indices) -> None:
        """Contributions are to be sent again; their timers start when they are."""
        self.tries[slots] += 1
        self.backed_off = True
        self._due[slots] = np.inf

    def told(self, slot: int, heard: bool, quiet: bool, now: float) -> None:
        """A switch has said whom it has heard in the round that a slot waits for.

        It was asked by this rank, or by another one and answered all. In the latter case that
        counts as if this one had asked. Only timers change, so nothing is sent here.

        Args:
            slot: which.
            heard: whether it has this rank's contribution. If not, that was lost.
            quiet: whether nothing else came for some time. Then the other slots' timers wait as
                well, as in `hold`.
            now: when.
        """
        if not np.isfinite(self._due[slot]):
            return  # not sent yet
        if not heard:
            self.missed(slot, now)
        elif self.turn or not self.tries[slot]:
            self.tries[slot] += 1
            self.backed_off = True
            due = now + self._after(int(self.tries[slot]))
            self._due[slot] = max(self._due[slot], due)
            if quiet and self.turn:
                others = np.isfinite(self._due) & (self.tries == 0)
                self._due[others] = np.maximum(self._due[others], due)

    def missed(self, slot: int, now: float) -> None:
        """A slot's contribution or its result was lost, unless it was sent a moment ago."""
        if np.isfinite(self._due[slot]) and now - self._sent_at[slot] >= self.timeout.seconds / 2:
            self._due[slot] = now

    def completed(
        self,
        slots: Indices,
        now: float,
        in_time: npt.NDArray[np.bool_] | None = None,
        told: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[int, int]:
        """Measure rounds that are over, from when their frames were first sent.

        Which results are samples is in docs/protocol.md, "Round trips". How long it takes until the
        slowest rank is there says nothing about how long frames take: of the opening rounds those
        that were repeated meanwhile are left out.

        Args:
            slots: whose rounds have a result.
            now: when it came.
            in_time: for each slot, whether no timer had a part in that. None: in none of them.
            told: for each slot, whether the switch has said that it waits for others. None: no.

        Returns:
            How many rounds there were besides those that open stripes, and how many of them were
            troubled: repeated though nothing was lost, or because something of this rank's was.
        """
        samples = now - self._sent_at[slots]
        rounds, troubled = len(slots), 0
        if in_time is not None or self._some_open or self.backed_off:
            opening = self._opening[slots]
            again = self.tries[slots] != 0
            opened = samples[opening & ~again]
            if len(opened):
                self.opening_timeout.measured(float(opened.max()), now)
            counted = ~opening if in_time is None else in_time & ~opening
            samples = samples[counted]
            lost = again & ~opening if told is None else again & ~opening & ~told
            troubled = int(np.count_nonzero(lost | again & counted))
            if in_time is not None and np.count_nonzero(again & ~in_time):
                self._stop_holding(now)
            rounds -= int(np.count_nonzero(opening))
            self._opening[slots] = False
            self._some_open = bool(self._opening.any())
        if len(samples):
            self.timeout.measured(float(np.maximum.reduce(samples)), now)
            self.round_trips.add(samples)
        if self.backed_off:
            self._calm_down(slots, now)
        return rounds, troubled

    def _stop_holding(self, now: float) -> None:
        """Something was lost after all: those held back run out as they would have.

        Not before the rank whose turn it is could ask for them.
        """
        once = np.isfinite(self._due) & (self.tries == 0)
        soonest = now + self._usual - self.timeout.seconds
        due = np.maximum(self._sent_at[once] + self._usual, soonest)
        self._due[once] = np.minimum(self._due[once], due)

    def _calm_down(self, slots: Indices, now: float) -> None:
        """Some slots have a result, so there is no reason left to wait for long in the others.

        The ranks are there and the switch answers: what is missing was lost.
        """
        self.tries[slots] = 0
        self.backed_off = bool(self.tries.any())
        waiting = np.isfinite(self._due)
        self._due[waiting] = np.minimum(self._due[waiting], now + self._usual)

    def _after(self, tries: int) -> float:
        """How long a contribution waits that was sent again so often."""
        doublings = tries // self.tries_a_doubling + self.turn
        return self.stretch * self.timeout.after_one(doublings)

    @property
    def _usual(self) -> float:
        """How long a contribution that was sent once waits."""
        return self._after(0) if self.turn else self.timeout.seconds
