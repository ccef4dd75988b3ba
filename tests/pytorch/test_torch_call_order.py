# SPDX-License-Identifier: Apache-2.0
"""Calls that agree first keep the script's order; marks say which rows the ranks have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

from p4reduce.errors import P4ReduceTimeoutError  # noqa: E402
from p4reduce.tensors.index_codes import marked, marks_of  # noqa: E402
from p4reduce.tensors.sparse import SparseRows  # noqa: E402
from p4reduce.torch.call_order import CallOrder, QueuedHandle  # noqa: E402
from p4reduce.torch.sparse import SparseSum  # noqa: E402
from p4reduce.torch.threads import FutureThread  # noqa: E402
from p4reduce.wire.calls import Operation  # noqa: E402
from torch_system import Ranks, TorchSystem, all_well  # noqa: E402

DEADLINE = 60.0


class Ended:
    """A handle of something that has a result."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> Any:
        return self._value


def noted(
    made: list[str], name: str, first: Callable[[], object] = lambda: None
) -> Callable[[], Any]:
    """A call that does something first, and notes that it was made."""

    def begin() -> Any:
        first()
        made.append(name)
        return Ended(name)

    return begin


def test_calls_are_made_in_the_order_of_the_script() -> None:
    turns, agreed = CallOrder(), threading.Event()
    made: list[str] = []
    assert turns.take(noted(made, "before")).wait() == "before"
    assert made == ["before"]
    later = turns.later(noted(made, "agrees", agreed.wait))
    behind = turns.take(noted(made, "behind"))  # must not overtake
    assert isinstance(behind, QueuedHandle)
    assert made == ["before"]
    assert not later.done()
    with pytest.raises(P4ReduceTimeoutError, match="it continues"):
        behind.wait(0.0)
    agreed.set()
    assert (behind.wait(), later.wait()) == ("behind", "agrees")
    assert made == ["before", "agrees", "behind"]


def test_who_waits_at_once_needs_no_thread_and_overtakes_nobody() -> None:
    turns, agreed = CallOrder(), threading.Event()
    made: list[str] = []
    here: list[bool] = []
    caller = threading.current_thread()

    def note() -> None:
        here.append(threading.current_thread() is caller)

    assert turns.now(noted(made, "alone", note)).wait() == "alone"
    first = turns.later(noted(made, "first", agreed.wait))
    then = turns.now(noted(made, "then", note))
    assert not then.done()
    agreed.set()
    assert (then.wait(DEADLINE), first.wait(DEADLINE)) == ("then", "first")
    assert made == ["alone", "first", "then"]
    assert here == [True, False]


def test_a_call_waits_for_one_that_another_thread_makes() -> None:
    turns = CallOrder()
    made: list[str] = []
    behind: list[Any] = []

    def call_another() -> None:
        another = threading.Thread(target=lambda: behind.append(turns.take(noted(made, "behind"))))
        another.start()
        another.join(DEADLINE)
        assert not behind[0].done()

    assert turns.now(noted(made, "slow", call_another)).wait(DEADLINE) == "slow"
    assert behind[0].wait(DEADLINE) == "behind"
    assert made == ["slow", "behind"]


def test_what_is_called_within_a_call_is_a_part_of_it() -> None:
    turns, free = CallOrder(), threading.Event()
    made: list[str] = []

    def parts() -> None:
        assert turns.take(noted(made, "first part")).done()
        assert turns.later(noted(made, "second part")).wait(0.0) == "second part"

    whole = turns.later(noted(made, "whole", lambda: (free.wait(), parts())))
    behind = turns.later(noted(made, "behind"))
    free.set()
    assert (behind.wait(DEADLINE), whole.wait(DEADLINE)) == ("behind", "whole")
    assert made == ["first part", "second part", "whole", "behind"]


def test_the_thread_ends_with_the_last_who_knows_it() -> None:
    threads: list[threading.Thread] = []

    def call() -> Any:
        threads.append(threading.current_thread())
        return Ended(1)

    turns = CallOrder()
    assert turns.later(call).wait(DEADLINE) == 1
    del turns
    threads[0].join(DEADLINE)
    assert not threads[0].is_alive()


def test_a_call_may_take_a_turn_within_its_own() -> None:
    turns = CallOrder()
    outer = turns.take(lambda: turns.take(lambda: Ended(1)))  # type: ignore[arg-type, return-value]
    assert outer.wait() == 1


def test_what_a_call_raises_is_raised_to_who_waits_and_the_next_is_made() -> None:
    turns = CallOrder()

    def fail() -> Any:
        raise ValueError("no such row")

    later = turns.later(fail)
    assert turns.later(lambda: Ended(3)).wait() == 3  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="no such row"):
        later.wait()
    assert later.done()


class Alone:
    """A communicator of which the other rank has sent nothing but marks and rows of its own."""

    rank, size = 0, 2

    def __init__(self, others: SparseRows) -> None:
        self._others = others
        self.sent: list[Any] = []
        self.timeouts: list[float | None] = []

    def allreduce_async(
        self,
        array: Any,
        op: Operation = Operation.SUM,
        name: str | None = None,
        out: Any = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Ended:
        self.sent.append(np.array(array))
        self.timeouts.append(timeout)
        time.sleep(0.01)
        if len(self.sent) == 1:
            rows = self._others.shape[0]
            return Ended(array + marks_of(self._others.indices, rows, self.size))
        whole = self._others.to_dense()
        union = marked(self.sent[0] + marks_of(self._others.indices, len(whole), 2), 2)
        array += whole[union]
        return Ended(array)


def test_rows_are_summed_close_together_and_given_back_at_their_places() -> None:
    indices = torch.tensor([[7, 2, 7, 90]])  # uncoalesced, as an embedding's gradient is
    values = torch.arange(12.0).reshape(4, 3)
    mine = torch.sparse_coo_tensor(indices, values, (100, 3), check_invariants=True)
    others = SparseRows(np.array([2, 50]), np.ones((2, 3), np.float32), (100, 3))
    comm = Alone(others)
    sparse = SparseSum(comm, mine, Operation.SUM)  # type: ignore[arg-type]
    assert sparse.agrees
    sparse.begin(None)
    result = sparse.result()
    assert result.is_coalesced()
    assert result.indices().tolist() == [[2, 7, 50, 90]]
    assert torch.equal(result.to_dense(), mine.to_dense() + torch.from_numpy(others.to_dense()))
    assert comm.sent[1].shape == (4, 3)
    assert comm.timeouts == [None, None]


def test_marks_and_rows_have_one_timeout_together() -> None:
    mine = torch.sparse_coo_tensor([[7]], torch.ones(1, 3), (100, 3), check_invariants=True)
    comm = Alone(SparseRows(np.array([2]), np.ones((1, 3), np.float32), (100, 3)))
    SparseSum(comm, mine, Operation.SUM).begin(5.0)  # type: ignore[arg-type]
    first, second = comm.timeouts
    assert first == 5.0
    assert second is not None
    assert second <= 4.99


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3)], ids=repr)
def test_a_job_that_fails_leaves_the_thread_to_the_next_one(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise error

    thread = FutureThread("test-futures")
    thread.submit(fail)
    thread.submit(done.set)
    assert done.wait(DEADLINE)
    thread.stop()
    assert "a job of a thread for futures failed" in caplog.text


def test_a_call_that_is_waited_for_runs_in_its_thread(system: TorchSystem, tmp_path: Path) -> None:
    """To wake the progress thread takes longer than a small collective."""
    ended = Ranks(system, 2, ["awaited.py"], tmp_path).wait()
    all_well(ended)
    for one in ended:
        (record,) = one.records
        assert record["waits"] > 0, record
        assert record["async_op"] == 0, record
