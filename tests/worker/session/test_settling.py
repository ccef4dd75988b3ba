# SPDX-License-Identifier: Apache-2.0
"""After the loss of a rank, each collective is over on all ranks that remain, or on none of them.

`SETTLE_TRIALS=100 SEED=7 pytest tests/worker/session/test_settling.py -s -k random` has a hundred
random moments.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from fault_system import EMBEDDED, FaultSystem
from p4reduce.switches import addresses
from p4reduce.transport import open_port
from p4reduce.transport.base import Transport
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT, FaultPlan, FaultyTransport
from p4reduce.wire import format as wire
from worker_system import DEADLINE, at_once, outcome

TRIALS = int(os.environ.get("SETTLE_TRIALS") or 4)
KILLED = 2

RANK = """
import sys, numpy as np, p4reduce
controller, job, rank, size, interface, elements = sys.argv[1:]
comm = p4reduce.init(int(rank), int(size), controller, job, interface=interface, timeout=60)
print("joined", flush=True)
array = np.full(int(elements), int(rank) + 1, np.int32)
while True:
    comm.allreduce(array)
    print("reduced", flush=True)
"""


@contextmanager
def trio(broken: FaultSystem, elements: int) -> Iterator[tuple[list[Any], Any]]:
    """Ranks 0 and 1, and rank 2, which all-reduces again and again in a process of its own."""
    job = broken.new_job()
    where = [broken.controller, job, str(KILLED), "3", broken.interface(KILLED + 1), str(elements)]
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, *where], stdout=subprocess.PIPE, text=True
    )
    comms: list[p4reduce.Communicator] = []
    try:
        comms += at_once([lambda rank=rank: broken.init(rank, 3, job) for rank in range(2)])
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        yield comms, process
    finally:
        process.kill()
        process.communicate()
        for comm in comms:
            comm.close()


class LosesSums(FaultyTransport):
    """Loses all sums, but not what opens stripes."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, FaultPlan())

    def receive(self) -> int:
        count = super().receive()
        frames = [self.received.get(row) for row in range(count)]
        left = [
            frame
            for frame in frames
            if frame[wire.AGG_OFFSET] & 0xF != wire.FrameKind.RESULT
            or len(frame) < wire.PAYLOAD_FRAME_BYTES
        ]
        for row, frame in enumerate(left):
            self.received.put(row, frame)
        return len(left)


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Rank 1 gets no sums, until it is undone."""

    def open_lossy(name: str, rank: int, udp_port: int, _: object) -> Transport:
        transport = open_port(name, rank, udp_port)
        return LosesSums(transport) if rank == 1 else transport

    monkeypatch.setattr(addresses, "open_port", open_lossy)
    return monkeypatch


@EMBEDDED
@pytest.mark.parametrize("elements", [1, 8 * 256, 32 * 256])
def test_a_result_that_one_rank_lacks_comes_from_another(
    broken: FaultSystem, lossy: pytest.MonkeyPatch, elements: int
) -> None:
    arrays = [np.full(elements, rank + 1, np.int32) for rank in range(2)]
    with trio(broken, elements) as (comms, killed):
        late = comms[1].allreduce_async(arrays[1], out=arrays[1])
        assert (comms[0].allreduce(arrays[0]) == 6).all()
        assert killed.stdout.readline() == "reduced\n"
        assert not late.done()
        killed.send_signal(signal.SIGKILL)
        assert (late.wait() == 6).all()
        for error in at_once(
            [lambda comm=comm: outcome(lambda: comm.allreduce(arrays[0])) for comm in comms]
        ):
            assert isinstance(error, p4reduce.WorkerLostError), error
            assert error.ranks == (KILLED,)
        lossy.undo()
        fewer = at_once([comm.reform for comm in comms])
        comms += fewer
        for result in at_once([lambda comm=comm: comm.allreduce(arrays[0]) for comm in fewer]):
            assert (result == 2 * arrays[0][0]).all()


@EMBEDDED
@pytest.mark.parametrize("first", ["the loss", "reform"])
def test_a_rank_that_forms_anew_before_it_has_heard_of_the_loss(
    broken: FaultSystem, lossy: pytest.MonkeyPatch, first: str
) -> None:
    """It has what the other rank lacks, and no call that could fail."""
    with trio(broken, 256) as (comms, killed):
        late = comms[1].allreduce_async(np.full(256, 2, np.int32))
        assert (comms[0].allreduce(np.full(256, 1, np.int32)) == 6).all()
        assert killed.stdout.readline() == "reduced\n"

        def lose() -> None:
            if first == "reform":
                time.sleep(0.5)  # it asks the controller meanwhile, which knows of no loss
            killed.kill()
            killed.wait()

        def reform() -> p4reduce.Communicator:
            if first == "the loss":
                lose()
            return comms[0].reform()

        def wait_and_reform() -> p4reduce.Communicator:
            if first == "reform":
                lose()
            assert (late.wait() == 6).all()
            return comms[1].reform()

        comms += at_once([reform, wait_and_reform])
        assert [comm.size for comm in comms[2:]] == [2, 2]


def all_over(comm: p4reduce.Communicator, array: npt.NDArray[np.int32]) -> tuple[int, Any]:
    """All-reduce until that fails; return how often it was right, and the error."""
    done = 0
    while True:
        try:
            pending = [comm.allreduce_async(array) for _ in range(3)]
        except p4reduce.P4ReduceError as error:
            return done, error
        ends = [outcome(one.wait) for one in pending]
        failed = [end for end in ends if isinstance(end, p4reduce.P4ReduceError)]
        done += len(ends) - len(failed)
        # A later one is not over before an earlier one.
        assert ends[len(ends) - len(failed) :] == failed
        assert all((total == 6).all() for total in ends[: len(ends) - len(failed)])
        if failed:
            return done, failed[0]


@EMBEDDED
def test_random_moments(broken: FaultSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 30))
    print(f"SEED={seed}")
    draw = random.Random(seed)
    # Rank 1 lacks many results that rank 0 has.
    monkeypatch.setenv(FAULTS_ENVIRONMENT, f"drop=0.3,up=0,only=1,seed={seed}")
    for number in range(TRIALS):
        elements = draw.choice([1, 2000, 20_000, 500_000, 2_000_000])
        with trio(broken, elements) as (comms, killed):
            works = [
                functools.partial(all_over, comm, np.full(elements, comm.rank + 1, np.int32))
                for comm in comms
            ]
            after = draw.uniform(0.0, 1.0)
            killer = threading.Timer(after, killed.kill)
            killer.start()
            found = at_once(works)
            killer.join(DEADLINE)
            print(number, elements, after, found[0][0])
            assert found[0][0] == found[1][0]
            for _, error in found:
                assert isinstance(error, p4reduce.WorkerLostError), error
                assert error.ranks == (KILLED,)
                assert "could not settle" not in str(error)
            fewer = at_once([comm.reform for comm in comms])
            comms += fewer
            for result in at_once(
                [lambda comm=comm: comm.allreduce(np.ones(300)) for comm in fewer]
            ):
                assert (result == 2).all()
