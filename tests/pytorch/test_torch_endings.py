# SPDX-License-Identifier: Apache-2.0
"""Results are there when a work says so, whoever asked; what nobody waited for is settled."""

from __future__ import annotations

import re
from inspect import isclass
from pathlib import Path
from typing import Any

import pytest
from torch_system import Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

WAYS = (
    "poll",
    "result",
    "future",
    "callback",
    "destroy",
    "destroy dropped",
    "inference tensors",
    "inference calls",
)  # as in programs/endings.py


def run(program: list[str], size: int, system: TorchSystem, directory: Path) -> dict[str, str]:
    """What was wrong with each case on any rank."""
    ended = Ranks(system, size, program, directory).wait()
    all_well(ended)
    wrong: dict[str, str] = {}
    for rank, one in enumerate(ended):
        cases = [record for record in one.records if "case" in record]
        assert cases
        wrong |= {
            f"rank {rank}: {record['case']}": record["wrong"] for record in cases if record["wrong"]
        }
    return wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_completed_means_written(way: str, system: TorchSystem, tmp_path: Path) -> None:
    assert not run(["endings.py", way], 2 + ("dropped" in way), system, tmp_path / "ranks")


@pytest.mark.timeout(300)
def test_means_of_integers_scaled_sums_and_tensors_that_resize(
    system: TorchSystem, tmp_path: Path
) -> None:
    assert not run(["arithmetic.py"], 3, system, tmp_path / "ranks")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["exit", "destroy"])
@pytest.mark.parametrize("kept", ["kept", "dropped"])
def test_a_receive_that_nobody_answers_ends_with_the_group(
    way: str, kept: str, system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(system, 2, ["unanswered.py", way, kept], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        assert one.lines[-1] == "at the end"
        if way == "destroy" and kept == "kept":
            (record,) = one.records
            assert record["completed"]
            assert "recv from rank" in record["error"]


def test_the_functions_that_keep_a_work_in_cpp_are_known() -> None:
    """One more needs what `_set_forward_pass_work_handle` has: a work that C++ owns."""
    module = torch._C._distributed_c10d
    found = set()
    for name in dir(module):
        owner = getattr(module, name)
        members = (
            {f"{name}.{one}": vars(owner)[one] for one in vars(owner)} if isclass(owner) else {}
        )
        for called, member in {name: owner, **members}.items():
            if takes_a_work(member):
                found.add(called)
    # The second holds the Python half as well.
    assert found == {"Reducer._set_forward_pass_work_handle", "_register_work"}


def takes_a_work(member: Any) -> bool:
    signatures = (getattr(member, "__doc__", None) or "").splitlines()
    taken = re.compile(r"\w+\((?!self: \S+Work\b).*: \S*\bWork\b.*\) ->")
    return any(taken.match(line) for line in signatures)
