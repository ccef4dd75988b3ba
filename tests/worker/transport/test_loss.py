# SPDX-License-Identifier: Apache-2.0
"""Heavy loss, of all kinds: sums stay exact, and everything continues once frames get through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import p4reduce
import pytest
from cables import Cables
from p4reduce.transport import open_port
from p4reduce.transport.base import Transport
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT, FaultPlan, FaultyTransport
from p4reduce.wire import format as wire
from worker_system import System, at_once, wait_for

WORLD = 4
SLOTS = 16
BLOCKS = 2 * SLOTS + 1
OUTAGE = 1.0  # seconds, at least: a rank's timer is at its longest by then


@dataclass(frozen=True)
class Run:
    """What one rank saw."""

    wrong: int  # sums
    ends: list[float]  # of its collectives, on the monotonic clock
    retransmissions: int


@pytest.fixture(params=[None])
def faults(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    plan = f"{request.param},seed={int(time.time())}"
    print(f"{FAULTS_ENVIRONMENT}={plan}")
    monkeypatch.setenv(FAULTS_ENVIRONMENT, plan)
    return plan


def reduce_while(comm: p4reduce.Communicator, more: Callable[[int], bool]) -> Run:
    """Reduce until a rank's `more`, which is given how often it has been, is false on all ranks."""
    ends: list[float] = []
    wrong = 0
    rng = np.random.default_rng(7)  # the same on all ranks: each knows the sum
    while True:
        number = rng.integers(-(1 << 28), 1 << 28, BLOCKS * 256, np.int32)
        handles = [
            comm.allreduce_async(number + np.int32(comm.rank)),
            comm.allreduce_async(np.full(1, more(len(ends)), np.int32)),
        ]
        total, going_on = (handle.wait() for handle in handles)
        wrong += int(np.count_nonzero(total != number * WORLD + sum(range(WORLD))))
        ends.append(time.monotonic())
        if not going_on[0]:
            return Run(wrong, ends, comm.stats.retransmissions)


def check(runs: list[Run]) -> None:
    assert [run.wrong for run in runs] == [0] * WORLD
    assert len({len(run.ends) for run in runs}) == 1
    assert sum(run.retransmissions for run in runs) > 0


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param("drop=0.3", id="30-percent-both-ways"),
        pytest.param("drop=0.2,burst=0.02", id="bursts-of-20-ms"),
        pytest.param("drop=0.3,up=0,only=2", id="one-replica-of-the-multicast"),
    ],
    indirect=True,
)
def test_sums_are_exact_under_heavy_loss(
    system: System, faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = [0] * WORLD  # frames, by each rank

    def work(comm: p4reduce.Communicator) -> Run:
        def more(done: int) -> bool:
            again[comm.rank] = comm.stats.retransmissions
            return done < 2 or not any(again)  # there may be no burst in so short a time

        return reduce_while(comm, more)

    check(system.run(WORLD, work, slots=SLOTS))
    # No slot is stuck: a job that has the same ones sees nothing of what was before.
    monkeypatch.delenv(FAULTS_ENVIRONMENT)
    wait_for(lambda: system.slots_free() == 1024, "the job's slots are free again")
    runs = system.run(WORLD, lambda comm: reduce_while(comm, lambda done: done < 1), slots=512)
    assert [run.wrong for run in runs] == [0] * WORLD


class LosesOneResult(FaultyTransport):
    """Loses the first result that has lanes, and nothing else."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, FaultPlan())
        self.lost: list[bytes] = []

    def receive(self) -> int:
        count = super().receive()
        frames = [self.received.get(row) for row in range(count)]
        for frame in frames:
            is_result = frame[wire.AGG_OFFSET] & 0xF == wire.FrameKind.RESULT
            if is_result and len(frame) == wire.PAYLOAD_FRAME_BYTES and not self.lost:
                self.lost.append(frame)
                frames.remove(frame)
                break
        for row, frame in enumerate(frames):
            self.received.put(row, frame)
        return len(frames)


def test_a_result_lost_for_one_rank_only(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy of a multicast is gone, the others arrive: who lacks it gets it again, alone."""
    lossy: list[LosesOneResult] = []

    def open_lossy(name: str, rank: int, udp_port: int, _: object) -> Transport:
        transport = open_port(name, rank, udp_port)
        if rank == 2:
            transport = LosesOneResult(transport)
            lossy.append(transport)
        return transport

    def work(comm: p4reduce.Communicator) -> tuple[bool, p4reduce.Statistics]:
        total = comm.allreduce(np.arange(BLOCKS * 256, dtype=np.int32) + np.int32(comm.rank))
        expected = np.arange(BLOCKS * 256) * WORLD + sum(range(WORLD))
        return np.array_equal(total, expected), comm.stats

    monkeypatch.setattr("p4reduce.switches.addresses.open_port", open_lossy)
    before = system.count("result-repeated")
    done = system.run(WORLD, work, slots=SLOTS)
    assert [exact for exact, _ in done] == [True] * WORLD
    assert [len(transport.lost) for transport in lossy] == [1]
    assert [stats.blocks_received for _, stats in done] == [BLOCKS] * WORLD
    assert done[2][1].retransmissions >= 1
    assert system.count("result-repeated") > before


def test_an_outage_of_a_second(system: System, cables: Cables) -> None:
    """Nothing at all comes through; then it continues where it was, in the same job."""
    over = threading.Event()
    done = [0] * WORLD  # collectives, of each rank
    mended = 0.0

    def cut(*, everything: bool) -> None:
        for cable in cables.values():
            cable.deaf = cable.mute = everything

    def work(comm: p4reduce.Communicator) -> Run:
        def more(count: int) -> bool:
            done[comm.rank] = count
            return not over.is_set()

        return reduce_while(comm, more)

    def cut_and_mend() -> None:
        nonlocal mended
        try:
            wait_for(lambda: min(done) >= 2, "all ranks have begun")
            cut(everything=True)
            before = max(done)
            time.sleep(OUTAGE)
            wait_for(lambda: all(cable.lost for cable in cables.values()), "all ranks try again")
            assert max(done) <= before + 1, "what had come before the outage, and no more"
            stood = max(done)
            mended = time.monotonic()
            cut(everything=False)
            wait_for(lambda: min(done) > stood + 1, "all ranks go on")
        finally:
            over.set()
            cut(everything=False)

    runs: list[Run] = []
    at_once([lambda: runs.extend(system.run(WORLD, work, slots=SLOTS)), cut_and_mend])
    assert len(cables) == WORLD
    check(runs)
    for run in runs:
        next_end = next(end for end in run.ends if end > mended)
        print(f"{next_end - mended:.3f} s after the outage, of {len(run.ends)} collectives")
