# SPDX-License-Identifier: Apache-2.0
"""LightGBM over the switch: the trees of its own sockets, several contexts, lost ranks, signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import p4reduce
import pytest
from needed import DEADLINE, ROOT, marked, needs
from p4reduce.lightgbm import network
from p4reduce_lab.local_network import LocalNetwork

pytestmark = [pytest.mark.engines, needs(packages=("lightgbm", "sklearn"))]
FEATURES = 7  # which two and four ranks do not share out evenly
SETTINGS = {
    "objective": "binary",
    "num_threads": 1,
    "num_leaves": 8,
    "min_data_in_leaf": 5,
    "verbosity": -1,
}


def samples(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    numbers = rng.standard_normal((number, FEATURES))
    return numbers, (numbers[:, 0] * numbers[:, 1] + numbers[:, 2] > 0).astype(int)


def trees(booster: Any) -> str:
    """The model without its parameters, some of which name the network; floats are exact."""
    return str(booster.model_to_string().partition("\nparameters:")[0])


def train(
    parameters: dict[str, Any], data: tuple[Any, Any], part: int, of: int, **more: Any
) -> Any:
    import lightgbm

    rows = np.array_split(np.arange(len(data[0])), of)[part]
    mine = lightgbm.Dataset(data[0][rows], data[1][rows])
    return lightgbm.train({**SETTINGS, **parameters}, mine, **{"num_boost_round": 5, **more})


def over_the_switch(
    local: LocalNetwork, ranks: int, data: tuple[Any, Any], **settings: Any
) -> set[str]:
    def work(comm: p4reduce.Communicator) -> str:
        with network(comm) as parameters:
            return trees(train({**parameters, **settings}, data, comm.rank, comm.size))

    return set(on_ranks(local, ranks, work))


def on_ranks(
    local: LocalNetwork, ranks: int, work: Callable[[p4reduce.Communicator], Any]
) -> list[Any]:
    """Run on the first ranks of a network for four."""

    def some(comm: p4reduce.Communicator) -> Any:
        group = comm.split(0 if comm.rank < ranks else None)
        if group is None:
            return None
        with group:
            return work(group)

    return [one for one in local.run(some) if one is not None]


def over_sockets(ranks: int, data: tuple[Any, Any], **settings: Any) -> set[str]:
    """The same by LightGBM's own sockets, with a thread per rank."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(ranks)
        ]
        ports = [server.getsockname()[1] for server in servers]
    found: set[str] = set()

    def work(rank: int) -> None:
        own = {
            "machines": ",".join(f"127.0.0.1:{port}" for port in ports),
            "local_listen_port": ports[rank],
            "num_machines": ranks,
            "tree_learner": "data",
            "pre_partition": True,
        }
        booster = train({**own, **settings}, data, rank, ranks)
        booster.free_network()
        found.add(trees(booster))

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "LightGBM's sockets hang"
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_quantised_gradients_give_the_trees_of_lightgbms_sockets(
    p4reduce_network: LocalNetwork, ranks: int
) -> None:
    mine = over_the_switch(p4reduce_network, ranks, samples(2000), use_quantized_grad=True)
    assert len(mine) == 1
    assert mine == over_sockets(ranks, samples(2000), use_quantized_grad=True)


def test_so_do_histograms_of_wide_words(p4reduce_network: LocalNetwork) -> None:
    """From 65,536 samples times gradient bins on, where LightGBM's own trees are wrong."""
    data = samples(17_000)
    settings = {"use_quantized_grad": True, "num_leaves": 2}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mine = over_the_switch(p4reduce_network, 2, data, **settings)
    assert mine == over_sockets(2, data, **settings)
    assert any("use_quantized_grad=False" in str(one.message) for one in said)


@pytest.mark.parametrize("ranks", [2, 4])
def test_histograms_of_floats(p4reduce_network: LocalNetwork, ranks: int) -> None:
    """Two numbers have one order. Of four, LightGBM adds pairs first, and we in order of ranks."""
    mine = over_the_switch(p4reduce_network, ranks, samples(2000))
    assert len(mine) == 1
    if ranks == 2:
        assert mine == over_sockets(ranks, samples(2000))


def test_splits_of_many_bytes(p4reduce_network: LocalNetwork) -> None:
    """LightGBM reduces those from 4,096 bytes on in two steps, in place: they stay the same."""
    mine = over_the_switch(p4reduce_network, 2, samples(2000), max_cat_threshold=1000)
    assert mine == over_the_switch(p4reduce_network, 2, samples(2000))


def test_contexts_within_and_after_another(p4reduce_network: LocalNetwork) -> None:
    """Pairs within all four, one rank alone within a pair, and all four again."""
    data = samples(500)

    def work(comm: p4reduce.Communicator) -> tuple[str, ...]:
        pair = comm.split(comm.rank % 2)
        alone = comm.split(comm.rank)
        assert pair is not None
        assert alone is not None
        found = []
        with pair, alone:
            with network(comm) as of_all:
                with network(pair, timeout=60) as of_pair:
                    with network(alone) as of_one:
                        found.append(trees(train(of_one, data, 0, 1)))
                    found.append(trees(train(of_pair, data, pair.rank, 2)))
                found.append(trees(train(of_all, data, comm.rank, 4)))
            with network(comm) as of_all:
                found.append(trees(train(of_all, data, comm.rank, 4)))
            found.append(trees(train({}, data, 0, 1)))  # without a network again
        return tuple(found)

    (found,) = set(p4reduce_network.run(work))
    assert found[0] == found[4]
    assert found[2] == found[3]
    assert len(set(found)) == 3
    assert {found[1]} == over_the_switch(p4reduce_network, 2, data)


def test_a_scikit_learn_estimator(p4reduce_network: LocalNetwork) -> None:
    import lightgbm

    numbers, targets = samples(4000)

    def work(comm: p4reduce.Communicator) -> float:
        rows = np.array_split(np.arange(len(numbers)), comm.size)[comm.rank]
        with network(comm) as parameters:
            model = lightgbm.LGBMClassifier(
                n_estimators=40, use_quantized_grad=True, n_jobs=1, verbosity=-1, **parameters
            ).fit(numbers[rows], targets[rows])
        return float(model.score(numbers, targets))  # on this rank alone

    (score,) = set(p4reduce_network.run(work))
    assert score > 0.95


class LeftError(Exception):
    """What a rank ends with."""


def test_a_rank_that_leaves_ends_the_others_training(p4reduce_network: LocalNetwork) -> None:
    rounds: list[int] = []

    def work(comm: p4reduce.Communicator) -> None:
        def watch(environment: Any) -> None:
            if comm.rank == 1 and environment.iteration == 3:
                raise LeftError
            if comm.rank == 0:
                rounds.append(environment.iteration)

        wanted = LeftError if comm.rank == 1 else p4reduce.WorkerLostError
        more = {"num_boost_round": 200, "callbacks": [watch]}
        with pytest.raises(wanted) as raised, network(comm) as parameters:
            train(parameters, samples(500), comm.rank, comm.size, **more)
        if isinstance(raised.value, p4reduce.WorkerLostError):
            assert raised.value.ranks == (1,)
            assert "Please initialize the network" in str(raised.value.__cause__)
        comm.close()

    p4reduce_network.run(work)
    assert max(rounds) <= 4


@pytest.mark.parametrize("rank", [0, 3])  # rank 3 has the bins of fewer features
@pytest.mark.parametrize("call", [*range(9), 30])
def test_a_failure_in_any_collective(p4reduce_network: LocalNetwork, call: int, rank: int) -> None:
    """In the exchange of bins, of the targets, of sums and splits: an error, and no crash."""
    numbers, targets = samples(500)
    numbers[:, :-1] = np.sign(numbers[:, :-1])  # so the bins of rank 3 take the most bytes by far

    def work(comm: p4reduce.Communicator) -> None:
        if comm.rank == rank:
            break_at(comm, call)
        wanted = LeftError if comm.rank == rank else p4reduce.WorkerLostError
        with pytest.raises(wanted) as raised, network(comm) as parameters:
            train(parameters, (numbers, targets), comm.rank, comm.size, num_boost_round=20)
        if isinstance(raised.value, p4reduce.WorkerLostError):
            assert raised.value.ranks == (rank,)
        comm.close()

    p4reduce_network.run(work)


def break_at(comm: p4reduce.Communicator, call: int) -> None:
    """Let a communicator's collectives raise from that one on."""
    calls = [0]
    for name in ("allgather", "reduce_scatter"):
        method = getattr(comm, name)

        def broken(*args: Any, method: Any = method, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] > call:
                raise LeftError
            return method(*args, **options)

        setattr(comm, name, broken)


def test_the_example_beside_lightgbms_sockets() -> None:
    command = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "2", "--"]
    command += [sys.executable, str(ROOT / "examples" / "lightgbm_trees.py")]
    with marked() as environment:
        done = subprocess.run(
            [*command, "--trees", "10", "--sockets"], env=environment, capture_output=True,
            text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"([\d.]+)% of the test samples right", done.stdout)
    assert said is not None, done.stdout
    assert float(said[1]) > 93
    assert "LightGBM's sockets: the same trees" in done.stdout


INTERRUPTED = """
import signal
import numpy as np
import p4reduce
from p4reduce.lightgbm import network
import lightgbm

def watch(environment):
    if environment.iteration == 3 and comm.rank == 0:
        print("training", flush=True)

with p4reduce.init(timeout=60) as comm:
    # Rank 0 has the most to compute, so that the signal comes while LightGBM does.
    number = [200_000, 100][comm.rank]
    numbers = np.random.default_rng(0).standard_normal((number, 20))
    try:
        with network(comm) as parameters:
            lightgbm.train(
                {**parameters, "num_threads": 1, "verbosity": -1, "min_data_in_leaf": 1},
                lightgbm.Dataset(numbers, numbers[:, 0]), num_boost_round=10**6, callbacks=[watch],
            )
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    except p4reduce.WorkerLostError as error:
        print("lost", error.ranks)
"""


def test_ctrl_c_ends_the_training(p4reduce_network: LocalNetwork) -> None:
    with marked() as environment, ExitStack() as stack:
        ranks = []
        for rank in range(2):
            own = {**environment, **p4reduce_network.variables, "P4REDUCE_RANK": str(rank)}
            own |= {"P4REDUCE_WORLD_SIZE": "2", "P4REDUCE_JOB": f"interrupted-{os.getpid()}"}
            process = subprocess.Popen(
                [sys.executable, "-c", INTERRUPTED], env=own, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            stack.callback(ended, process)
            ranks.append(process)
        assert ranks[0].stdout is not None
        assert any("training" in line for line in ranks[0].stdout)
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGINT)
        said = [process.communicate(timeout=DEADLINE)[0] for process in ranks]
    assert "interrupted True" in said[0], said
    assert "lost (0,)" in said[1], said
    assert "ignored" not in said[0]


def ended(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait(DEADLINE)
