# SPDX-License-Identifier: Apache-2.0
"""A switch that answers nobody, for whatever reason: no call waits for its deadline in silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import p4reduce
import pytest
from fault_system import EMBEDDED, FaultSystem, fault_system_with, short_time
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session import session
from p4reduce.session.job_client import JoinedJob
from p4reduce.session.machine import Machine
from worker_system import DEADLINE

WORLD = 3
ONES = np.ones(3000, np.float32)

fault_system = fault_system_with(short_time, "module")


@EMBEDDED
@pytest.mark.parametrize("stuck", [False, True])
def test_ranks_that_nobody_answers_form_their_job_anew(
    fault_system: FaultSystem, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """Here the frames are of a life that the switch does not know; or none are sent at all."""
    real = session.machine_for
    first: set[int] = set()

    def machine(joined: JoinedJob, engine: str) -> Machine:
        if (member := joined.member).rank in first:
            return real(joined, engine)
        first.add(member.rank)
        elsewhere = replace(member, incarnation=member.incarnation ^ 1 << 31)
        wrong = real(replace(joined, member=elsewhere), engine)
        if stuck:
            assert isinstance(wrong, SlotMachine)
            wrong.window_size = 0
        return wrong

    monkeypatch.setattr(session, "machine_for", machine)

    def work(comm: p4reduce.Communicator) -> int:
        handle = comm.allreduce_async(ONES, timeout=DEADLINE)
        assert (handle.wait() == WORLD).all()
        return comm.stats.recoveries

    assert fault_system.run(WORLD, work) == [1] * WORLD
