# SPDX-License-Identifier: Apache-2.0
"""The meter in front of the controller: each port has its own rate of HELLOs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.schema import MeterRate, Op, Update
from packet_jobs import Jobs, constant
from packet_testbed import DEADLINE, PORTS, SWITCH, Testbed

FLOODED = 1  # the port
OTHER = 2
BURST = 5
FRAMES = 100
ATTACKER = wire.Endpoint("02:00:00:00:cc:01", "10.77.8.8", 6666)
NO_LIMIT = 1_000_000  # a second: no test comes near


def hello(number: int) -> bytes:
    return wire.template(
        ATTACKER, SWITCH, Aggregation(kind=FrameKind.HELLO, job=1, rank=number % 64)
    )


def limit(bed: Testbed, ports: tuple[int, ...], rate: int, burst: int) -> None:
    cells = [MeterRate("hello_rate", port, rate, burst) for port in ports]
    bed.client.write([Update(Op.MODIFY, cell) for cell in cells])


@pytest.fixture
def limited(bed: Testbed) -> Iterator[Testbed]:
    """One port takes a HELLO a second, after that many at once; the others are as by default."""
    limit(bed, (FLOODED,), 1, BURST)
    limit(bed, tuple(port for port in PORTS if port != FLOODED), 200, 64)
    yield bed
    limit(bed, PORTS, NO_LIMIT, NO_LIMIT)
    bed.exchange([(port, hello(0)) for port in PORTS])


def flood(bed: Testbed) -> int:
    """Send HELLOs as fast as it goes; return how many of them passed."""
    began = time.monotonic()
    outcomes = bed.pour(FLOODED, [hello(number) for number in range(FRAMES)]).outcomes
    took = time.monotonic() - began
    passed, dropped = outcomes[FrameOutcome.HELLO_PUNTED], outcomes[FrameOutcome.HELLO_LIMITED]
    assert passed + dropped == sum(outcomes.values()) == FRAMES
    assert passed <= BURST + 1 + took
    return passed


def test_a_flood_is_cut_down_to_the_rate(limited: Testbed) -> None:
    passed = flood(limited)
    assert passed >= BURST
    # What comes to the controller is what was counted as handed to it, and no more: all of it has
    # come once a HELLO has that another port sent after it.
    later = limited.exchange([(OTHER, hello(0))]).packet_ins
    came = [one.frame[:42] for one in later if one.port == FLOODED]
    assert came == [hello(0)[:42]] * passed


def test_another_port_does_not_suffer(limited: Testbed) -> None:
    flood(limited)
    for port in PORTS:
        if port == FLOODED:
            continue
        seen = limited.exchange([(port, hello(9))])
        assert seen.outcomes == {FrameOutcome.HELLO_PUNTED: 1}
        assert (port, hello(9)) in [(one.port, one.frame) for one in seen.packet_ins]


def test_what_is_not_hello_does_not_suffer(limited: Testbed, jobs: Jobs) -> None:
    """Least of all the sums of a job whose rank is at the flooded port."""
    job = jobs(2)
    assert job.ranks[0].port == FLOODED
    for turn in range(3):
        flood(limited)
        outcomes = [
            limited.pour(rank.port, [job.frame(rank.number, constant(1), round=turn)]).outcomes
            for rank in job.ranks
        ]
        assert outcomes == [{FrameOutcome.ROUND_OPENED: 1}, {FrameOutcome.ROUND_COMPLETED: 1}]


def test_the_port_is_heard_again(limited: Testbed) -> None:
    """Tokens come back: who flooded by mistake is not shut out for good."""
    flood(limited)
    deadline = time.monotonic() + DEADLINE
    while not limited.pour(FLOODED, [hello(1)]).outcomes[FrameOutcome.HELLO_PUNTED]:
        assert time.monotonic() < deadline, "no HELLO passes any more"
        time.sleep(0.05)
