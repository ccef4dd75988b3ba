# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped: an error that names them on all others, and a clean end."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_system import Ended, Ranks, TorchSystem, all_well, torch_system

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

LEASE = 5.0  # seconds
MODES = ("backend", "hook", "delegated", "queued", "groups", "init")
RUNS = int(os.environ.get("KILLS") or len(MODES))  # KILLS=100 in a quarter of an hour


@pytest.fixture(scope="module")
def system() -> Iterator[TorchSystem]:
    """One that notices soon what is lost."""
    with torch_system(LEASE) as running:
        yield running


@pytest.mark.timeout(400 * RUNS)
def test_a_killed_rank_is_named_by_all_others(system: TorchSystem, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    draw = random.Random(seed)
    wrong = []
    for number in range(RUNS):
        mode, victim = MODES[number % len(MODES)], draw.randrange(3)
        after = draw.random()  # seconds
        ended = kill(mode, victim, after, system, tmp_path / f"ranks{number}")
        told = [trouble_of(mode, rank, victim, one) for rank, one in enumerate(ended)]
        texts = [text for text in told if text]
        if texts:
            wrong.append(f"run {number}, {mode}, after {after} s: " + "\n".join(texts))
        print(f"run {number}: {mode}, rank {victim} killed: {len(texts)} of 2 ranks wrong")
    assert not wrong, f"{len(wrong)} of {RUNS} runs\n" + "\n".join(wrong)


def kill(mode: str, victim: int, after: float, system: TorchSystem, directory: Path) -> list[Ended]:
    """Train with three ranks, kill one when all have begun; return how they ended."""
    ranks = Ranks(system, 3, ["training.py", mode], directory)
    try:
        for rank in range(3):
            ranks.wait_for(rank, "step 3")
        time.sleep(after)
        ranks.processes[victim].send_signal(signal.SIGKILL)
        # Their end is of a second or two of a core; beside many others they get little of one.
        return ranks.wait()
    finally:
        ranks.kill()


def trouble_of(mode: str, rank: int, victim: int, one: Ended) -> str:
    """What is wrong with how a rank that was not killed ended; nothing where it is right."""
    if rank == victim:
        return ""
    # 0: no signal, no abort at the interpreter's exit, and nothing hung.
    if one.code != 0 or one.lines[-1] != "destroyed":
        return f"rank {rank}: exit code {one.code}, {one.lines[-2:]}\n{one.log[-3000:]}"
    (record,) = one.records
    names = f"rank {victim}" in record["text"]
    # Where there is no group yet, a rank may hear first that torch's store is gone, or that another
    # rank is, which has ended because of the victim.
    names |= mode == "init" and "rank" in record["text"]
    if not record["runtime"] or not names:
        return f"rank {rank} is told: {record}"
    return ""


@pytest.mark.timeout(300)
def test_a_stopped_rank_is_named_by_all_others(system: TorchSystem, tmp_path: Path) -> None:
    ranks = Ranks(system, 3, ["training.py", "delegated"], tmp_path / "ranks")
    try:
        for rank in range(3):
            ranks.wait_for(rank, "step 3")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            ranks.wait_for(rank, "destroyed")
        (record,) = ranks.ended(0).records
        assert "rank 1" in record["text"], record
    finally:
        ranks.processes[1].send_signal(signal.SIGCONT)
        ranks.kill()


def test_without_rank_0_the_store_is_gone_and_its_error_is_pointed_to() -> None:
    import torch.distributed as dist
    from p4reduce.torch.presence import meet

    held = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    store = dist.TCPStore("127.0.0.1", held.port, 2, is_master=False)
    del held
    with pytest.raises(dist.DistNetworkError, match=r"rank 0 has ended.* own error.* before this"):
        meet(store, 1, 2, "here", 20.0)


def trouble(
    what: str, size: int, system: TorchSystem, directory: Path
) -> tuple[list[Ended], list[dict[str, Any]]]:
    """Run the program trouble.py; return how the ranks ended, and what each was told first."""
    ranks = []
    for rank in range(size):
        arguments = ["trouble.py", what, str(directory / "store"), str(rank), str(size)]
        ranks.append(Ranks(system, 1, arguments, directory / f"rank{rank}", {"RANK": str(rank)}))
    ended = [one for rank in ranks for one in rank.wait()]
    all_well(ended)
    return ended, [one.records[0] if one.records else {} for one in ended]


@pytest.mark.timeout(300)
def test_a_rank_that_does_not_come_is_named(system: TorchSystem, tmp_path: Path) -> None:
    _, (first, _, last) = trouble("missing", 3, system, tmp_path)
    for record in (first, last):
        assert "DistNetworkError" in record["kinds"]
        assert "rank 1 of 3 did not come to the process group within 5 s" in record["text"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["joining", "connecting"])
def test_a_rank_lost_while_a_group_is_made_is_named(
    what: str, system: TorchSystem, tmp_path: Path
) -> None:
    """Not after the hour that the group's timeout is: the groups that there are know of it."""
    ended, told = trouble(what, 3, system, tmp_path)
    for rank in (0, 2):
        assert "DistBackendError" in told[rank]["kinds"], told
        assert "rank 1" in told[rank]["text"]
        assert "the timeout has passed" not in told[rank]["text"]
        assert ended[rank].lines[-1] == "destroyed"


@pytest.mark.timeout(300)
def test_ranks_that_do_not_reach_each_other_in_time_try_again(
    system: TorchSystem, tmp_path: Path
) -> None:
    """All of them, also those that had reached the others."""
    ended, told = trouble("connecting slowly", 3, system, tmp_path)
    for one, record in zip(ended, told, strict=True):
        assert record["text"] == "no error"
        assert one.records[1]["attempts"] == 2
        assert one.lines[-1] == "destroyed"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["size", "dtype", "operation", "kind"])
def test_different_calls_are_an_error_on_all_ranks(
    what: str, system: TorchSystem, tmp_path: Path
) -> None:
    ended, told = trouble(what, 2, system, tmp_path)
    for one, record in zip(ended, told, strict=True):
        assert "DistBackendError" in record["kinds"], record
        assert "the ranks do not agree on what they reduce" in record["text"]
        assert "rank 0 called" in record["text"]
        assert "rank 1 called" in record["text"]
        assert one.lines[-1] == "destroyed"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "what",
    ["shape", "shape of a broadcast", "shape of an all_gather", "shape of a reduce_scatter"],
)
def test_another_shape_is_told_with_its_rank(
    what: str, system: TorchSystem, tmp_path: Path
) -> None:
    ended, told = trouble(what, 3, system, tmp_path)
    for one, record in zip(ended, told, strict=True):
        odd, most = record["text"].split("; ")[:2]
        assert "rank 1 called" in odd, record
        assert "shape (10, 20" in odd
        assert "ranks 0, 2 called" in most
        assert "shape (20, 10" in most
        assert one.lines[-1] == "destroyed"


@pytest.mark.timeout(300)
def test_models_of_different_shapes_are_named(system: TorchSystem, tmp_path: Path) -> None:
    """DDP compares the parameters itself, with those of rank 0."""
    _, told = trouble("models", 2, system, tmp_path)
    assert "rank 1" in told[0]["text"]
    assert "sizes [20, 10] appears not to match" in told[1]["text"]


@pytest.mark.timeout(300)
def test_the_timeout_of_the_group_is_kept_and_names_who_is_late(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended, (record, _) = trouble("late", 2, system, tmp_path)
    assert "DistBackendError" in record["kinds"]
    assert "the timeout has passed" in record["text"]
    passed = re.search(r"not complete after ([\d.]+) s", record["text"])
    assert passed, record
    assert float(passed[1]) >= 8
    assert "1" in record["text"]
    assert ended[0].lines[-1] == "destroyed"


@pytest.mark.timeout(300)
def test_a_monitored_barrier_names_who_does_not_come(system: TorchSystem, tmp_path: Path) -> None:
    ended, told = trouble("monitored", 2, system, tmp_path)
    assert [record["text"] for record in told] == ["no error"] * 2
    assert "Ranks 1 failed to pass monitoredBarrier" in ended[0].records[1]["text"]


@pytest.mark.timeout(300)
def test_an_overflow_is_an_error_on_all_ranks_and_breaks_nothing(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended, told = trouble("overflow", 2, system, tmp_path)
    for one, record in zip(ended, told, strict=True):
        assert "a sum left the range of int32" in record["text"]
        assert one.records[1]["text"] == "no error"


@pytest.mark.timeout(300)
def test_the_interpreter_ends_without_destroy_process_group(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended, _ = trouble("exit", 2, system, tmp_path)
    for one in ended:
        assert one.lines == ["at the end"]


@pytest.mark.timeout(300)
def test_a_group_may_be_made_again(system: TorchSystem, tmp_path: Path) -> None:
    _, told = trouble("again", 2, system, tmp_path)
    assert [record["text"] for record in told] == ["no error"] * 2
