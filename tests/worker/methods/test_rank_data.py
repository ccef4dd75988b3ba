# SPDX-License-Identifier: Apache-2.0
"""Solvers use no more of a rank's data than the table of `rank_data` says."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import get_annotations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from p4reduce.methods import rank_data
from p4reduce.methods.admm import admm
from p4reduce.methods.cat import cat
from p4reduce.methods.dslsr1 import dslsr1
from p4reduce.methods.gadmm import dgadmm, gadmm
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import run
from p4reduce.methods.lag import lag_ps, lag_wk
from p4reduce.methods.local_sgd import local_sgd
from p4reduce.methods.problems import Logistic, split_evenly

RANKS = 3
SOLVERS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (gd, {"rate": 0.1}),
    (cat, {"rate": 0.1}),
    (lag_wk, {"rate": 0.1}),
    (lag_ps, {"rate": 0.1}),
    (local_sgd, {"rate": 0.1, "every": 2, "batch": 3}),
    (dslsr1, {"memory": 2}),
    (admm, {"rho": 0.1}),
    (gadmm, {"rho": 0.1}),
    (dgadmm, {"rho": 0.1, "period": 2}),
]
TABLE = {  # a protocol's name: what it adds, and who needs it
    name: (set(re.findall(r"\w+", adds)), re.findall(r"\w+", who.partition("(")[0]))
    for name, adds, who in re.findall(
        r"^    ([A-Z]\w+) {2,}(.+?) {2,}(.+)$", str(rank_data.__doc__), re.MULTILINE
    )
}
PARTIES = ("fedbcd_p", "fedbcd_s")


def members(protocol: type) -> set[str]:
    """The names that one protocol of the module adds to those that it extends."""
    names = {*vars(protocol), *get_annotations(protocol)}
    return {name for name in names if not name.startswith("_")}


def needed(protocol: type) -> set[str]:
    """All names of a protocol."""
    above = (each for each in protocol.__mro__ if each.__module__ == rank_data.__name__)
    return set().union(*(members(each) for each in above))


def test_the_table_has_each_protocol_and_each_solver() -> None:
    protocols = {
        name: each
        for name, each in vars(rank_data).items()
        if isinstance(each, type) and each.__module__ == rank_data.__name__
    }
    assert list(TABLE) == list(protocols)
    *single, (last, _) = TABLE.items()
    assert {name: adds for name, (adds, _) in single} == {
        name: members(protocols[name]) for name, _ in single
    }
    assert last == "Problem"
    assert needed(protocols[last]) == set().union(*(adds for _, (adds, _) in single))
    listed = [solver for _, (_, solvers) in single for solver in solvers]
    assert sorted(listed) == sorted([*PARTIES, *(solver.__name__ for solver, _ in SOLVERS)])


@pytest.mark.parametrize(
    ("solver", "settings"), SOLVERS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_part_with_no_more_than_that(
    rng: np.random.Generator, solver: Callable[..., Any], settings: dict[str, Any]
) -> None:
    features, labels = rng.standard_normal((30, 4)), np.sign(rng.standard_normal(30))
    own = split_evenly(features, labels, RANKS)
    (protocol,) = [name for name, (_, who) in TABLE.items() if solver.__name__ in who]
    names = needed(getattr(rank_data, protocol))

    def work(comm: Any) -> tuple[Any, Any]:
        whole, other = (Logistic(*own[comm.rank], 0.1, 1 / 30) for _ in range(2))
        part = SimpleNamespace(**{name: getattr(other, name) for name in names})
        return tuple(solver(comm, each, steps=5, **settings).model for each in (whole, part))

    for wanted, model in run(RANKS, work):
        np.testing.assert_array_equal(model, wanted)
        assert model.any()
