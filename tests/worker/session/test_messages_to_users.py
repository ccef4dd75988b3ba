# SPDX-License-Identifier: Apache-2.0
"""What users of the library are told of their own mistakes."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.session import job_client
from worker_system import DEADLINE, NO_OPERATION, System, outcome


def test_who_calls_init_twice_is_told_so(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "TAKEN_FOR", 0.2)  # seconds

    def work(comm: p4reduce.Communicator) -> Any:
        again = None
        if comm.rank == 0:
            again = outcome(lambda: system.init(0, 2, comm.job, timeout=DEADLINE))
        comm.barrier()
        return again

    error = system.run(2, work)[0]
    assert isinstance(error, p4reduce.AdmissionError)
    assert "cannot join twice: init was called a second time in this process" in str(error)
    assert "dup()" in str(error)


def test_who_says_no_rank_is_told_of_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "P4REDUCE_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(p4reduce.ConfigurationError, match=r"no rank.*p4reduce-lab exec -n 4"):
        p4reduce.init()


def test_who_says_no_interface_is_told_of_up_and_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_INTERFACE", raising=False)
    with pytest.raises(p4reduce.ConfigurationError, match=r"p4reduce-lab up.*p4reduce-lab exec"):
        p4reduce.init(0, 2)


def library_frames(call: Callable[[], Any]) -> int:
    """How many of the library the traceback of the call's error has."""
    try:
        call()
    except (p4reduce.P4ReduceError, TypeError, ValueError) as error:
        shown = traceback.format_exception(error)
        assert "another exception" not in "".join(shown)
        modules = [
            frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)
        ]
        return sum(module.partition(".")[0] == "p4reduce" for module in modules)
    raise AssertionError("no error")


MISTAKES: list[Callable[[p4reduce.Communicator], Any]] = [
    lambda comm: comm.allreduce([1.0, 2.0]),  # type: ignore[call-overload]
    lambda comm: comm.allreduce(np.ones(3), NO_OPERATION),
    lambda comm: comm.broadcast(np.ones(3), 7),
    lambda comm: comm.split("red"),  # type: ignore[arg-type]
    lambda comm: comm.reform(timeout=0.2),  # no rank is lost
    lambda comm: p4reduce.init(7, 2, interface="unix:/nowhere"),
    lambda comm: p4reduce.init(0, 2, interface="unix:/nowhere", timeout=0.0),
    lambda comm: p4reduce.init(0, 2, "unix:/nowhere", interface="unix:/none", timeout=0.2),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_tracebacks_have_one_frame_at_most_of_the_library(
    number: int, alone: p4reduce.Communicator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "p4reduce")
    assert library_frames(lambda: MISTAKES[number](alone)) <= 1
    assert any("was raised here" in record.getMessage() for record in caplog.records)


def test_a_mismatch_has_a_short_traceback(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> int:
        return library_frames(lambda: comm.allreduce(np.ones(1 + comm.rank)))

    assert max(system.run(2, work)) <= 1


def test_what_a_users_own_code_raises_keeps_its_traceback(alone: p4reduce.Communicator) -> None:
    class Mine:
        def __array__(self, *given: Any, **more: Any) -> Any:
            raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own") as caught:
        alone.allgather(Mine())
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__array__"
