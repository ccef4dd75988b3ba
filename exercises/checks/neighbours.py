# SPDX-License-Identifier: Apache-2.0
"""Lab 6: the sum of a rank's neighbours, by one all-reduce; and GADMM with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce.methods.gadmm import dgadmm, gadmm
from p4reduce.methods.in_process import InProcess, InProcessTraffic, run
from p4reduce.methods.neighbours import HEADS, TAILS, ChainPlace, Grid
from p4reduce.methods.problems import LeastSquares, split_evenly

from exercises.checks.python_file import guarded, load
from exercises.checks.report import Check, WrongError

SIZE = 3  # numbers of a model
CHAINS = {"in their order": [0, 1, 2, 3, 4], "shuffled": [3, 0, 4, 1, 2]}
SEED, STEPS, RHO = 6, 300, 20.0


def checks(source: Path) -> list[Check]:
    """What has to hold."""
    mine = load(source, "Mine")

    def sums(name: str) -> None:
        chain = CHAINS[name]
        for kind in (HEADS, TAILS):
            results = guarded(source, partial(run, 5, partial(send, mine, chain, kind)))
            for rank, got in enumerate(results):
                place = ChainPlace(chain, rank)
                wanted = None if place.kind == kind else around(chain, place)
                compare(chain, rank, kind, got, wanted)

    def one_sum() -> None:
        traffic = InProcessTraffic()
        guarded(source, lambda: run(5, partial(send, mine, CHAINS["shuffled"], HEADS), traffic))
        # Three rows, as many as there are heads, are right too.
        if traffic.calls != 1 or traffic.elements > 3 * SIZE:
            raise WrongError(
                f"{traffic.calls} all-reduces of {traffic.elements} numbers in all; one of "
                f"{2 * SIZE} is enough for 5 ranks, of which 2 are tails",
                "a row for each rank that receives: the rank at place p has row p // 2",
            )

    def trains(method: Any) -> None:
        draw = np.random.default_rng(SEED)
        features = draw.normal(size=(60, SIZE))
        targets = features @ np.array([1.0, -2.0, 3.0]) + 0.1 * draw.normal(size=60)
        parts = split_evenly(features, targets, 5)
        wanted = np.linalg.lstsq(features, targets, rcond=None)[0]

        # The grid is for lanes of a switch that round; ranks in one process add floats.
        def neighbours(comm: InProcess, _grid: Grid) -> Any:
            return mine(comm)

        def work(comm: InProcess) -> Any:
            problem = LeastSquares(*parts[comm.rank])
            return method(comm, problem, rho=RHO, steps=STEPS, by=neighbours).model

        for rank, model in enumerate(guarded(source, lambda: run(5, work))):
            error = float(np.abs(model - wanted).max())
            if not error < 1e-3:
                raise WrongError(
                    f"after {STEPS} steps of {method.__name__} rank {rank}'s model is off by "
                    f"{error:.3g}",
                    "look at the sums first: the checks above; link must take each new chain",
                )

    return [
        ("neighbours' sums, ranks in their order", lambda: sums("in their order")),
        ("neighbours' sums, ranks shuffled", lambda: sums("shuffled")),
        ("one all-reduce, with a row for each that receives", one_sum),
        ("GADMM finds the optimum", lambda: trains(gadmm)),
        ("D-GADMM does too, with chains that change", lambda: trains(dgadmm)),
    ]


def model_of(rank: int) -> Any:
    """A rank's model: its number tells whose it is."""
    return np.full(SIZE, 10.0**rank)


def send(mine: Any, chain: list[int], kind: int, comm: InProcess) -> Any:
    """One rank's part."""
    neighbours = mine(comm)
    neighbours.link(chain)
    return neighbours.send(kind, model_of(comm.rank))


def around(chain: list[int], place: ChainPlace) -> Any:
    """The sum of the neighbours' models."""
    beside = [chain[at] for at in (place.at - 1, place.at + 1) if 0 <= at < len(chain)]
    return np.sum([model_of(rank) for rank in beside], axis=0)


def compare(chain: list[int], rank: int, kind: int, got: Any, wanted: Any) -> None:
    """Look at what a rank got."""
    who = f"chain {chain}, {'heads' if kind == HEADS else 'tails'} send: rank {rank}"
    if wanted is None:
        if got is not None:
            raise WrongError(f"{who} is one of them and got {got}", "who sends returns None")
        return
    if got is None or np.shape(got) != (SIZE,):
        raise WrongError(
            f"{who} got {got}, should get {wanted}", "who does not send returns its own row"
        )
    if not np.array_equal(got, wanted):
        raise WrongError(
            f"{who} got {np.asarray(got)}, should get {wanted}: rank r's model is 10^r",
            "add your model to the rows of the ranks at the places before and behind yours",
        )
