# SPDX-License-Identifier: Apache-2.0
"""A job of an engine's ranks on the network that their environment names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from p4reduce.meeting import Exchange
from p4reduce.started_job import join_all
from worker_system import DEADLINE, System, at_once

RANKS = 2
VARIABLES = ("P4REDUCE_CONTROLLER", "P4REDUCE_INTERFACE")


def exchanges() -> list[Exchange]:
    """An all-gather of threads, for each rank."""
    barrier = threading.Barrier(RANKS)
    texts = [""] * RANKS

    def of(rank: int) -> Exchange:
        def exchange(text: str) -> Sequence[str]:
            texts[rank] = text
            barrier.wait(DEADLINE)
            everybody = list(texts)
            barrier.wait(DEADLINE)
            return everybody

        return exchange

    return [of(rank) for rank in range(RANKS)]


def joined_sums() -> list[float]:
    """Join as all ranks; return what each has of a sum of ones."""
    ways = exchanges()

    def work(rank: int) -> float:
        comm, network = join_all(rank, ways[rank], "threads", timeout=DEADLINE, lease=0.0)
        assert network is None, "one was started, though the environment names one"
        with comm:
            return float(comm.allreduce(np.ones(1, np.float32))[0])

    works: list[Callable[[], float]] = [lambda rank=rank: work(rank) for rank in range(RANKS)]
    return at_once(works)


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_an_interface_alone_means_the_controllers_default_socket(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p4reduce").mkdir()
    (tmp_path / "p4reduce" / "controller.sock").symlink_to(system.controller.removeprefix("unix:"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("P4REDUCE_INTERFACE", system.interface("{port}"))
    assert joined_sums() == [RANKS] * RANKS


def test_a_controller_alone_is_an_error_that_names_the_interface(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", system.controller)
    with pytest.raises(p4reduce.ConfigurationError, match="P4REDUCE_INTERFACE"):
        joined_sums()
