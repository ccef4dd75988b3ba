# SPDX-License-Identifier: Apache-2.0
"""A process that sees many networks, one after the other, keeps nothing of those that are over."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from fault_system import PATIENT_LEASE, FaultSystem
from p4reduce.communicator import Communicator
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.engine import Engine
from p4reduce.session.port import WorkerPort
from p4reduce.session.session import Session
from p4reduce.transport.link import LinkTransport
from p4reduce_native.link import Link
from worker_system import at_once, wait_for

NETWORKS = 4
PAIR = np.ones(300, np.float32)
KEPT = (WorkerPort, Engine, Session, SlotMachine, LinkTransport, Link)

Use = Callable[[FaultSystem, Communicator, threading.Barrier], None]


def sums(_system: FaultSystem, comm: Communicator, _all: threading.Barrier) -> None:
    assert (comm.allreduce(PAIR) == 2).all()


def loses_its_switch(system: FaultSystem, comm: Communicator, all_ranks: threading.Barrier) -> None:
    sums(system, comm, all_ranks)
    if all_ranks.wait() == 0:
        system.kill_switch()
    all_ranks.wait()
    with pytest.raises(p4reduce.P4ReduceError):
        comm.allreduce(PAIR, timeout=0.5)


def finds_its_switch_again(
    system: FaultSystem, comm: Communicator, all_ranks: threading.Barrier
) -> None:
    sums(system, comm, all_ranks)
    if all_ranks.wait() == 0:
        system.kill_switch()
        system.start_switch()
    sums(system, comm, all_ranks)


def visit(use: Use) -> None:
    with tempfile.TemporaryDirectory(prefix="p4r-") as directory:
        system = FaultSystem("embedded", Path(directory), PATIENT_LEASE)
        all_ranks = threading.Barrier(2)
        job = system.new_job()

        def rank(number: int) -> None:
            with system.init(number, 2, job) as comm:
                use(system, comm, all_ranks)

        try:
            at_once([lambda: rank(0), lambda: rank(1)])
        finally:
            system.close()


def kept() -> Counter[str]:
    gc.collect()
    found = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KEPT)
    # gRPC keeps some of its own, which Python calls dummies.
    found["threads"] = sum("Dummy" not in one.name for one in threading.enumerate())
    found["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
    return found


@pytest.mark.long
@pytest.mark.parametrize("use", [sums, loses_its_switch, finds_its_switch_again])
def test_nothing_stays_of_networks_that_are_over(use: Use) -> None:
    visit(use)  # gRPC and the caches that there is one of
    before = kept()
    for _ in range(NETWORKS):
        visit(use)
    wait_for(lambda: not kept() - before, f"no more than after the first network: {before}")
