# SPDX-License-Identifier: Apache-2.0
"""A heartbeat that fails by an exception nobody expects ends its rank's calls, with the cause."""

from __future__ import annotations

from typing import Any

import p4reduce
import pytest
from p4reduce.control.client import ClientClosedError
from p4reduce.session.job_client import JobClient
from worker_system import System, at_once, outcome

pytestmark = pytest.mark.parametrize("system", ["embedded"], indirect=True)


@pytest.mark.parametrize(
    "cause",
    [ValueError("not a heartbeat"), ClientClosedError(), AssertionError()],
    ids=repr,
)
def test_the_rank_hears_the_cause_and_the_others_of_its_end(
    system: System, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    beat = JobClient.heartbeat
    failing = False

    def heartbeat(self: JobClient, member: Any, *given: Any, **more: Any) -> Any:
        if failing and member.rank == 1:
            raise cause
        return beat(self, member, *given, **more)

    monkeypatch.setattr(JobClient, "heartbeat", heartbeat)
    job = system.new_job()
    comms = at_once([lambda rank=rank: system.init(rank, 2, job) for rank in range(2)])
    try:
        at_once([comm.barrier for comm in comms])
        failing = True
        error = outcome(comms[1].barrier)  # rank 0 does not come
        assert isinstance(error, p4reduce.P4ReduceError)
        assert f"the heartbeat thread failed: {cause!r}" in str(error)
        assert str(outcome(comms[1].barrier)) == str(error)
        # Rank 1 has contributed to the first of them.
        other = [outcome(comms[0].barrier) for _ in range(2)][-1]
        assert isinstance(other, p4reduce.WorkerLostError)
        assert other.ranks == (1,)
        assert "lease" not in str(other)  # it has left; nobody waited for that
    finally:
        failing = False
        at_once([comm.close for comm in comms])


def test_a_closed_communicator_is_no_failure(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        job = system.new_job()
        comms = at_once([lambda rank=rank, job=job: system.init(rank, 2, job) for rank in range(2)])
        at_once([comm.barrier for comm in comms])
        at_once([comm.close for comm in comms])
    assert "ended by an exception" not in caplog.text
