# SPDX-License-Identifier: Apache-2.0
"""The retransmission timeout: RFC 6298, with one sample a round trip."""

from __future__ import annotations

import numpy as np
import pytest
from measured_timers import Timers
from p4reduce.protocol.slots import SlotMachine
from p4reduce.statistics import RoundTrips
from p4reduce.wire.format import Endpoint
from p4reduce.wire.rank_sets import Child, Level


def machine(ranks: int = 1, rank: int = 0, tree: bool = False) -> SlotMachine:
    """With that many ranks at its switch, and few = 1."""
    children = tuple(Child((rank,)) for rank in range(ranks))
    levels = [Level("leaf", children)]
    if tree:
        levels.append(Level("root", (Child(tuple(range(ranks)), "leaf"),)))
    here = Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
    switch = Endpoint("02:70:34:72:65:64", "10.77.255.254", 0xBEE0)
    return SlotMachine(
        slots=2,
        job=1,
        rank=rank,
        world_size=ranks,
        here=here,
        switch=switch,
        levels=levels,
        few=1,
    )


def test_first_sample_gives_three_times_itself() -> None:
    timers = Timers(machine(), floor=0.001, ceiling=10)
    assert timers.seconds == 0.05
    timers.measured(0.1, now=0.0)
    assert timers.seconds == pytest.approx(0.1 + 4 * 0.05)


def test_further_samples_follow_the_rfc() -> None:
    timers = Timers(machine(), floor=0.001, ceiling=10)
    timers.measured(0.1, now=0.0)
    timers.measured(0.2, now=1.0)
    variation = 0.75 * 0.05 + 0.25 * 0.1
    assert timers.seconds == pytest.approx(0.875 * 0.1 + 0.125 * 0.2 + 4 * variation)


def test_longest_sample_of_a_round_trip_counts() -> None:
    one, many = (Timers(machine(), floor=0.001, ceiling=10) for _ in range(2))
    one.measured(0.1, now=0.0)
    one.measured(0.3, now=1.0)
    many.measured(0.1, now=0.0)
    for sample in (0.02, 0.3, 0.01, 0.05):
        many.measured(sample, now=0.05)  # within 0.1 s of the first
    many.measured(0.02, now=1.0)
    assert many.seconds == pytest.approx(one.seconds)


def test_steady_round_trips_come_down_to_the_floor_and_no_lower() -> None:
    timers = Timers(machine())
    for now in range(200):
        timers.measured(0.0001, now=float(now))
    assert timers.seconds == 0.01


def test_openings_wait_no_shorter_than_other_rounds() -> None:
    """They stand in the same queues, though the last ones may have found those empty."""
    ours = machine()
    state = ours.state
    state.expected[:], state.opening[0] = 0, 1
    state.structure.timeout.seconds, state.structure.opening_timeout.seconds = 0.12, 0.01
    ours.sent(np.array([0, 3]), now=1.0)
    assert ours.next_due == pytest.approx(1.12)
    state.structure.opening_timeout.seconds = 0.2
    ours.sent(np.array([0, 3]), now=1.0)
    assert state.due == pytest.approx([1.2, 1.12])


@pytest.mark.parametrize(
    ("place", "in_tree", "waits"),
    [
        (None, False, [10, 20, 40, 80, 160, 250]),
        (None, True, [10, 20, 40, 80, 160, 250]),
        (0, False, [10, 20, 40, 80, 160, 250]),
        (1, False, [20, 40, 80, 160, 250, 250]),
        (2, False, [20, 40, 80, 160, 250, 250]),
        (0, True, [10, 10, 10, 10, 20, 20]),
        (1, True, [30, 60, 120, 240, 375, 375]),
        (2, True, [40, 80, 160, 320, 500, 500]),
        (63, True, [40, 80, 160, 320, 500, 500]),
    ],
)
def test_who_waits_how_long(place: int | None, in_tree: bool, waits: list[int]) -> None:
    """In milliseconds, each time that a contribution is sent; of many ranks each has its place."""
    ours = machine(1 if place is None else 64, place or 0, in_tree)
    ours.state.expected[0] = 0
    ours.state.structure.timeout.seconds = 0.01
    found = []
    for _ in waits:
        ours.sent(np.array([0]), 0.0)
        found.append(round(1000 * ours.next_due, 6))
        ours.state.tries[0] += 1
    assert found == waits


# -- What was measured ---------------------------------------------------------------------------


def test_typical_and_shortest_of_the_latest_round_trips() -> None:
    trips = RoundTrips()
    assert (trips.typical(5), trips.shortest()) == (0.0, 0.0)
    trips.add(np.array([0.5, 0.1, 0.3]))
    assert (trips.typical(100), trips.shortest()) == (0.3, 0.1)
    trips.add(np.full(4090, 0.2))
    assert trips.typical(4090) == 0.2
    trips.add(np.array([0.9, 0.8, 0.7, 0.6, 0.7, 0.8]))  # over the end, in place of the first ones
    assert trips.typical(5) == 0.7
    assert trips.typical(1) == 0.8
    assert trips.shortest() == 0.2
