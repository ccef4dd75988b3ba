# SPDX-License-Identifier: Apache-2.0
"""The ranks of a large group find each other with few questions to torch's store."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

import torch.distributed as dist
from needed import DEADLINE
from p4reduce.torch import meeting, presence
from p4reduce.torch.meeting import exchange_by
from p4reduce.torch.presence import meet
from p4reduce.torch.store import FIRST_WARNING

SIZE = 1000


class Counted:
    """A store that counts which keys it is asked for, one or several in a call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.keys = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(first: Any, *more: Any) -> Any:
            self.keys += len(first) if isinstance(first, list) else 1
            return method(first, *more)

        return call


def come(store: Any, ranks: range | list[int]) -> None:
    """Let ranks say that they are here, and wait for nobody."""
    for rank in ranks:
        with suppress(dist.DistNetworkError):
            meet(store, rank, SIZE, f"job of rank {rank}", 0.0)


def test_a_look_asks_for_one_number_however_many_ranks_there_are() -> None:
    store = dist.HashStore()
    counted = Counted(store)
    come(store, range(1, SIZE - 1))
    asked: list[int] = []

    def look() -> None:
        asked.append(counted.keys)
        if len(asked) == 4:
            come(store, [SIZE - 1])

    assert meet(counted, 0, SIZE, "job of rank 0", 60.0, look) == "job of rank 0"
    each = [after - before for before, after in itertools.pairwise(asked)]
    assert each == [1, 1, 1]
    assert counted.keys < 10


class Clock:
    """A time that passes only where somebody sleeps, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds


def rank_1_comes(store: Any, clock: Clock, at: float) -> Callable[[], None]:
    """Return a check by which rank 1 of 2 comes at a time, while rank 0 waits for it."""

    def look() -> None:
        if clock.now >= at and not store.check(["here/came"]):
            store.set("here/came", "")
            with suppress(dist.DistNetworkError):
                meet(store, 1, 2, "", 0.0)

    return look


@pytest.mark.parametrize("comes_at", [0.02, 0.3, 2.0])
def test_two_ranks_know_at_once_that_the_last_one_has_come(
    comes_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, store = Clock(), dist.HashStore()
    monkeypatch.setattr(presence, "time", clock)

    meet(store, 0, 2, "", 60.0, rank_1_comes(store, clock, comes_at))
    assert clock.now <= 1.11 * comes_at + 0.01  # two intervals, each a twentieth of what has passed


def test_many_ranks_leave_the_store_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(presence, "time", clock)
    with pytest.raises(dist.DistNetworkError, match="did not come"):
        meet(dist.HashStore(), 0, SIZE, "", 9.0)
    assert clock.sleeps * SIZE / clock.now <= 5001  # looks per second, of all ranks


def test_the_log_says_whom_a_rank_waits_for_and_how_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "time", Clock())
    with pytest.raises(dist.DistNetworkError, match="rank 1 of 2 did not come"):
        meet(dist.HashStore(), 0, 2, "", 60.0)
    words = r"rank 0 of 2: still waiting for rank 1 after (\d+) of 60 s"
    assert re.findall(words, caplog.text) == ["10", "20", "40"]


def test_the_log_names_nobody_where_the_last_rank_has_just_come(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, store = Clock(), dist.HashStore()
    monkeypatch.setattr(presence, "time", clock)

    look = rank_1_comes(store, clock, FIRST_WARNING)
    assert meet(store, 0, 2, "word", 60.0, look) == "word"
    assert caplog.text == ""


def test_those_who_do_not_come_are_named_with_few_questions() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    missing = sorted(random.Random(seed).sample(range(1, SIZE), 3))
    counted = Counted(dist.HashStore())
    come(counted, [rank for rank in range(1, SIZE) if rank not in missing])
    counted.keys = 0
    named = ", ".join(map(str, missing))
    with pytest.raises(dist.DistNetworkError, match=f"ranks {named} of 1000 did not come"):
        meet(counted, 0, SIZE, "job", 0.0)
    assert counted.keys < 30


@pytest.mark.parametrize("size", [1, 2, 62, 63, 124])
def test_all_learn_what_rank_0_says(size: int, tmp_path: Any) -> None:
    store = dist.FileStore(str(tmp_path / "store"), size)
    for rank in range(size - 1):
        with pytest.raises(dist.DistNetworkError, match=rf"{size - 1} of {size} did not come"):
            meet(store, rank, size, f"job … of {rank}", 0.0)
    said = meet(store, size - 1, size, f"job … of {size - 1}", 60.0)
    assert said == "job … of 0"


class EndedError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("comes", [True, False], ids=["when it has come", "before it comes"])
def test_rank_0_that_ends_between_two_rounds_is_named(
    comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def end() -> None:
        if ends.is_set():
            raise EndedError

    store = dist.HashStore()
    exchanges = [exchange_by(store, 0, 2, DEADLINE, end), exchange_by(store, 1, 2, DEADLINE)]
    with ThreadPoolExecutor(2) as pool:
        rounds = [pool.submit(one, f"rank {rank}") for rank, one in enumerate(exchanges)]
        assert [list(one.result(DEADLINE)) for one in rounds] == [["rank 0", "rank 1"]] * 2
    ends.set()
    monkeypatch.setattr(meeting, "ROUND_TIMEOUT", 0.5)
    if comes:
        with pytest.raises(EndedError):
            exchanges[0]("it waits for rank 1")
    says = r"rank 0 of 2 did not come to the process group within 0\.5 s"
    with pytest.raises(dist.DistNetworkError, match=says):
        exchanges[1]("it waits for rank 0")
