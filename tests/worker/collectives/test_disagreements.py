# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things hear which ranks called what, on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.session import disputes
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce_controller.jobs import comparing
from worker_system import DEADLINE, System, outcome

TALL = np.ones((20, 10), np.float32)
WIDE = np.ones((10, 20), np.float32)

Call = Callable[[p4reduce.Communicator], Any]


@pytest.mark.parametrize(
    ("one", "other", "first", "second"),
    [
        pytest.param(
            lambda comm: comm.allreduce(TALL, name="w"),
            lambda comm: comm.allreduce(WIDE, name="w"),
            "allreduce 0 ('w', SUM of 200 float32, shape (20, 10))",
            "allreduce 0 ('w', SUM of 200 float32, shape (10, 20))",
            id="shape",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allreduce(TALL.reshape(-1)),
            "shape (20, 10)",
            "shape (200,)",
            id="dimensions",
        ),
        pytest.param(
            lambda comm: comm.reduce(TALL),
            lambda comm: comm.reduce(WIDE),
            "shape (20, 10)",
            "shape (10, 20)",
            id="shape of what is reduced",
        ),
        pytest.param(
            lambda comm: comm.broadcast(TALL),
            lambda comm: comm.broadcast(WIDE),
            "shape (20, 10)",
            "shape (10, 20)",
            id="shape of what is broadcast",
        ),
        pytest.param(
            lambda comm: comm.grouped_allreduce([TALL, TALL], names=["v", "w"]),
            lambda comm: comm.grouped_allreduce([TALL, WIDE], names=["v", "w"]),
            "'w' of 200 float32, shape (20, 10)",
            "'w' of 200 float32, shape (10, 20)",
            id="shape of one of many",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allreduce_sparse(p4reduce.SparseRows([1], WIDE[:1], (10, 20))),
            "shape (20, 10)",
            "shape (10, 20)",
            id="shape of a sparse array",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allgather(TALL),
            "allreduce 0",
            "allgather 0",
            id="all-gather",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.broadcast(TALL, 2),
            "allreduce 0",
            "broadcast 0 (200 float32, shape (20, 10), root 2)",
            id="broadcast",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allreduce(TALL.astype(np.int16)),
            "200 float32",
            "200 int16",
            id="dtype",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allreduce(TALL, p4reduce.MEAN),
            "SUM",
            "MEAN",
            id="operation",
        ),
        pytest.param(
            lambda comm: comm.allreduce(TALL),
            lambda comm: comm.allreduce(TALL, precision="int8"),
            "shape (20, 10))",
            "shape (20, 10)) as int8",
            id="precision",
        ),
    ],
)
def test_each_rank_hears_who_called_what(
    one: Call,
    other: Call,
    first: str,
    second: str,
    system: System,
    request: pytest.FixtureRequest,
) -> None:
    errors = system.run(3, lambda comm: outcome(lambda: (other if comm.rank == 1 else one)(comm)))
    for error in errors:
        assert isinstance(error, p4reduce.MismatchError), error
        assert error.ranks == (1,)
        odd, most = str(error).split("; ")[:2]
        assert "rank 1 called" in odd
        assert second in odd
        assert most.startswith("ranks 0, 2 called")
        assert first in most
        hinted = any(word in request.node.callspec.id for word in ("shape", "dimensions"))
        assert ("check_shapes=False" in str(error)) == hinted
    assert len({str(error) for error in errors}) == 1


def test_of_two_ranks_both_are_named(system: System) -> None:
    errors = system.run(2, lambda comm: outcome(lambda: comm.allreduce((TALL, WIDE)[comm.rank])))
    for error in errors:
        assert isinstance(error, p4reduce.MismatchError)
        assert error.ranks == (0, 1)
        assert "rank 0 called allreduce 0 (SUM of 200 float32, shape (20, 10))" in str(error)
        assert "rank 1 called allreduce 0 (SUM of 200 float32, shape (10, 20))" in str(error)


def test_shapes_may_differ_where_that_is_asked_for(system: System) -> None:
    """Also in what `dup` and `split` make."""

    def work(comm: p4reduce.Communicator) -> Any:
        mine = (TALL, WIDE)[comm.rank]
        some = [comm.allreduce(mine), comm.grouped_allreduce([mine])[0], comm.broadcast(mine)]
        half = comm.split(0)
        assert half is not None
        with half, comm.dup() as twin:
            return [*some, half.allreduce(mine), twin.allreduce(mine)]

    for rank, sums in enumerate(system.run(2, work, check_shapes=False)):
        assert [one.shape for one in sums] == [(TALL, WIDE)[rank].shape] * 5
        assert [one.flat[0] for one in sums] == [2, 2, 1, 2, 2]


def test_shapes_are_agreed_on_in_what_dup_makes(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        with comm.dup() as twin:
            failed = outcome(lambda: twin.allreduce((TALL, WIDE)[comm.rank]))
        return failed, comm.allreduce(TALL)

    for failed, fine in system.run(2, work):
        assert isinstance(failed, p4reduce.MismatchError)
        assert "shape (10, 20)" in str(failed)
        assert (fine == 2).all()


def test_the_environment_says_whether_shapes_are_agreed_on(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P4REDUCE_CHECK_SHAPES", "0")
    for total in system.run(2, lambda comm: comm.allreduce((TALL, WIDE)[comm.rank])):
        assert (total == 2).all()
    monkeypatch.setenv("P4REDUCE_CHECK_SHAPES", "no")
    with pytest.raises(p4reduce.ConfigurationError, match="P4REDUCE_CHECK_SHAPES='no'"):
        system.init(0, 2, "none")


def test_the_first_of_several_calls_that_differs_is_told(system: System) -> None:
    """What is called meanwhile ends with the same error, or begins with it."""

    def work(comm: p4reduce.Communicator) -> list[Any]:
        arrays = [TALL, WIDE if comm.rank == 2 else TALL, TALL]
        handles = [comm.allreduce_async(one, name=f"call {n}") for n, one in enumerate(arrays[:2])]
        last = outcome(lambda: comm.allreduce_async(arrays[2], name="call 2").wait())
        return [outcome(handles[1].wait), last, outcome(comm.barrier)]

    for errors in system.run(4, work):
        for error in errors:
            assert isinstance(error, p4reduce.MismatchError)
            assert "rank 2 called allreduce 1 ('call 1', SUM of 200 float32, shape (10, 20))" in (
                str(error)
            )


def test_a_piece_is_told_among_many_whose_names_are_not_ascii(system: System) -> None:
    """A request to the controller has at most 64 KiB; each of these characters has three bytes."""
    names = [f"{number}: {'層' * 90}" for number in range(400)]

    def work(comm: p4reduce.Communicator) -> Any:
        arrays = [TALL] * 400
        arrays[3] = (TALL, WIDE)[comm.rank]
        return outcome(lambda: comm.grouped_allreduce(arrays, names=names))

    for error in system.run(2, work):
        assert "rank 1 called" in str(error)
        assert f"with {names[3]!r} of 200 float32, shape (10, 20)" in str(error)


def test_a_call_is_reported_alike_whatever_else_a_rank_has_under_way() -> None:
    """Calls with many pieces: all of them together are too much for a request."""
    pieces = tuple((f"the weights of layer {number}", 1) for number in range(500))

    def collective(sequence: int) -> Collective:
        array = np.ones(500, np.float32)
        plan = plans.allreduce(array, p4reduce.SUM, None, np.empty_like(array), world_size=2)
        call = replace(plan.call, pieces=pieces)
        places = {"sequence": sequence, "slots": 8, "timeout": DEADLINE}
        return Collective(call, plan.source, plan.target, **places)

    calls = [collective(sequence) for sequence in range(3)]
    more, fewer = disputes.reported(calls), disputes.reported(calls[1:])
    assert more[-1].sequence == 2
    assert len(more[-1].pieces) == 500
    assert [one for one in more if one.sequence >= fewer[0].sequence] == fewer


def test_a_rank_that_says_nothing_is_named(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = disputes.explained

    def explained(error: Any, calls: Any, job_client: Any, member: Any) -> Any:
        return error if member.rank == 0 else asked(error, calls, job_client, member)

    monkeypatch.setattr(disputes, "explained", explained)
    errors = system.run(3, lambda comm: outcome(lambda: comm.allreduce(np.ones(comm.rank + 1))))
    assert "This is what this rank called" in str(errors[0])
    for error in errors[1:]:
        assert "rank 1 called allreduce 0 (SUM of 2 float64, shape (2,))" in str(error)
        assert "rank 2 called allreduce 0 (SUM of 3 float64, shape (3,))" in str(error)
        assert "rank 0 did not report a call" in str(error)


def test_without_a_controller_a_rank_says_what_it_called_itself(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: Any, member: Any, calls: Any, timeout: float) -> pb.CompareReply:
        raise ValueError("the client is closed")

    monkeypatch.setattr("p4reduce.session.job_client.JobClient.compare", away)
    for error in system.run(
        2, lambda comm: outcome(lambda: comm.allreduce((TALL, WIDE)[comm.rank]))
    ):
        assert isinstance(error, p4reduce.MismatchError)
        assert "This is what this rank called" in str(error)
        assert error.ranks == ()


def test_another_rank_that_leaves_at_once_does_not_hide_what_it_called(system: System) -> None:
    """A rank closes as soon as it has its error; the last one still learns of all."""
    late = threading.Event()

    def work(comm: p4reduce.Communicator) -> Any:
        handle = comm.allreduce_async((TALL, WIDE, TALL)[comm.rank])
        if comm.rank == 0:
            assert late.wait(comparing.WAIT + 5)
        failed = outcome(handle.wait)
        if comm.rank == 1:
            comm.close()
            late.set()
        return failed

    for error in system.run(3, work):
        assert "rank 1 called" in str(error), error
