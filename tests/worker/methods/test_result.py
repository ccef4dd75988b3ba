# SPDX-License-Identifier: Apache-2.0
"""What every solver returns, beside what its `watch` and its communicator have seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from method_tasks import synthetic
from p4reduce.methods.admm import admm
from p4reduce.methods.cat import cat
from p4reduce.methods.dslsr1 import dslsr1
from p4reduce.methods.fedbcd import FedBCDSettings, Party, fedbcd_p, fedbcd_s
from p4reduce.methods.gadmm import dgadmm, gadmm
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import InProcess, run
from p4reduce.methods.lag import lag_ps, lag_wk
from p4reduce.methods.local_sgd import local_sgd
from p4reduce.methods.neighbours import Groups
from p4reduce.methods.problems import LeastSquares
from p4reduce.methods.result import Result

RANKS, STEPS, EVERY = 5, 14, 4
PARTS = synthetic(RANKS)
SIZE = PARTS[0].size
AVERAGES = [4, 8, 12, 14]
RATE = 0.5 / sum(part.smoothness() for part in PARTS)

Solve = Callable[[Any, Any], Result]  # gets a communicator and a watch


def of_parts(method: Callable[..., Result], **settings: Any) -> Solve:
    """A solver of the synthetic task."""
    return lambda comm, watch: method(comm, PARTS[comm.rank], steps=STEPS, watch=watch, **settings)


def of_features(method: Callable[..., Result], **settings: Any) -> Solve:
    """A solver whose ranks have other features of the same samples."""
    rng = np.random.default_rng(8)
    features, labels = rng.standard_normal((20, 2 * RANKS)), np.sign(rng.standard_normal(20))
    columns = np.split(features, RANKS, axis=1)
    chosen = FedBCDSettings(rate=0.2, rounds=STEPS, local_steps=2, **settings)
    return lambda comm, watch: method(
        comm, Party(columns[comm.rank], None if comm.rank else labels), chosen, watch=watch
    )


SOLVERS: dict[str, Solve] = {
    "gd": of_parts(gd, rate=RATE),
    "cat": of_parts(cat, rate=RATE),
    "lag-wk": of_parts(lag_wk, rate=RATE),
    "lag-ps": of_parts(lag_ps, rate=RATE),
    "admm": of_parts(admm, rho=5),
    "gadmm": of_parts(gadmm, rho=5),
    "gadmm in groups": of_parts(gadmm, rho=5, by=Groups),
    "dgadmm": of_parts(dgadmm, rho=5, period=3),
    "dslsr1": of_parts(dslsr1, memory=4, start=np.ones(SIZE)),
    "local-sgd": of_parts(local_sgd, rate=RATE, every=EVERY, start=np.ones(SIZE)),
    "fedbcd-p": of_features(fedbcd_p),
    "fedbcd-s": of_features(fedbcd_s),
    "fedbcd-s, hidden": of_features(fedbcd_s, hidden=True),
}
EACH = pytest.mark.parametrize("name", SOLVERS)


def numbers_of(name: str) -> list[int]:
    """Those with which a solver calls `watch`."""
    return AVERAGES if name == "local-sgd" else list(range(1, STEPS + 1))


class Seen:
    """A communicator that notes what a rank does, and the groups that are split from it."""

    def __init__(self, comm: Any, whole: Seen | None = None) -> None:
        self._comm, self._whole = comm, whole or self
        self.rank, self.size, self.close = comm.rank, comm.size, comm.close
        self.sums = self.uploads = 0
        self.left: list[tuple[int, int, int]] = []  # at each call of `watch`: its step, and both
        self.models: list[Any] = []

    def allreduce(self, array: Any, **options: Any) -> Any:
        self._whole.sums += 1
        self._whole.uploads += int(np.count_nonzero(array) > 0)
        return self._comm.allreduce(array, **options)

    def split(self, *arguments: Any, **options: Any) -> Any:
        group = self._comm.split(*arguments, **options)
        return group and Seen(group, self._whole)

    def watch(self, step: int, model: Any) -> None:
        """A caller that sums something of its own."""
        self._comm.allreduce(np.ones(3))
        self.left.append((step, self.sums, self.uploads))
        self.models.append(model.copy())


def watched(name: str) -> list[tuple[Result, Seen]]:
    """All ranks' results, and what was seen."""

    def work(comm: InProcess) -> tuple[Result, Seen]:
        seen = Seen(comm)
        return SOLVERS[name](seen, seen.watch), seen

    return run(RANKS, work)


@EACH
def test_all_steps(name: str) -> None:
    for end, seen in watched(name):
        assert (end.steps, end.reason) == (STEPS, "steps")
        assert [step for step, _, _ in seen.left] == numbers_of(name)
        np.testing.assert_array_equal(end.model, seen.models[-1])


@EACH
@pytest.mark.parametrize("call", [1, 3, -1], ids=["at once", "later", "at the last step"])
def test_an_end_by_watch(name: str, call: int) -> None:
    numbers = numbers_of(name)
    last = numbers[call if call < 0 else call - 1]
    whole = watched(name)

    def work(comm: InProcess) -> Result:
        return SOLVERS[name](comm, lambda step, _model: step == last)

    for end, (_, seen) in zip(run(RANKS, work), whole, strict=True):
        assert (end.steps, end.reason) == (last, "watch")
        assert len(end.history) == numbers.index(last) + 1
        np.testing.assert_array_equal(end.model, seen.models[len(end.history) - 1])


@EACH
def test_the_history_is_what_the_models_have_moved_by(name: str) -> None:
    start = 1.0 if name in ("dslsr1", "local-sgd") else 0.0
    for end, seen in watched(name):
        points = np.vstack([np.full(len(end.model), start), *seen.models])
        moves = np.sqrt((np.diff(points, axis=0) ** 2).sum(axis=1))
        assert end.history.dtype == np.float64
        assert end.history.shape == (len(numbers_of(name)),)
        np.testing.assert_allclose(end.history, moves, rtol=1e-12)
        assert moves.any()


@EACH
def test_sums_and_uploads_are_those_of_the_communicator(name: str) -> None:
    """After each iteration, without the sums of `watch`."""
    for end, seen in watched(name):
        assert list(end.sums_by) == [sums for _, sums, _ in seen.left]
        assert list(end.uploads_by) == [uploads for _, _, uploads in seen.left]
        assert (end.sums, end.uploads) == (seen.sums, seen.uploads)


def test_a_silent_rank_has_fewer_uploads_than_sums() -> None:
    """The first rank of the authors' data is the smoothest. All ranks meet in one sum."""
    ends = [end for end, _ in watched("lag-wk")]
    assert {end.sums for end in ends} == {STEPS + 1}
    assert ends[0].uploads < STEPS + 1
    assert [end.uploads for end, _ in watched("gd")] == [STEPS + 1] * RANKS


def test_a_model_that_stays_has_moves_of_zero() -> None:
    part = LeastSquares(np.eye(3), np.zeros(3))
    (end,) = run(1, lambda comm: gd(comm, part, rate=0.5, steps=3))
    np.testing.assert_array_equal(end.history, np.zeros(3))
    assert list(end.uploads_by) == [1, 1, 1]  # the ranks' meeting; all gradients are zeros
    assert list(end.sums_by) == [2, 3, 4]
