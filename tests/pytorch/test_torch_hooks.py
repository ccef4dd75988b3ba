# SPDX-License-Identifier: Apache-2.0
"""Hooks: what they come to, what they send, on the backend and beside another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_system import Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

HOOKS = (
    "allreduce_hook",
    "int16_hook",
    "int8_hook",
    "int4_hook",
    "topk_hook",
    "elements_hook",
    "hierarchical_hook",
    "cat_hook",
    "majority_hook",
    "onebit_hook",
)
OPERATORS = ("powersgd:2", "powersgd:2/int16", "gradiveq:32")
# A part of the gradient alone takes more steps, as do few bits of it.
COARSE = (
    "topk_hook",
    "elements_hook",
    "hierarchical_hook",
    "cat_hook",
    "PowerSGD",
    "int4_hook",
    "onebit_hook",
)


@pytest.fixture(scope="module", params=["backend", "beside"])
def trained(
    request: pytest.FixtureRequest, system: TorchSystem, tmp_path_factory: pytest.TempPathFactory
) -> list[list[dict[str, Any]]]:
    """What each of three ranks printed."""
    directory = tmp_path_factory.mktemp(request.param)
    ended = Ranks(system, 3, ["hooks_case.py", request.param], directory).wait()
    all_well(ended)
    return [one.records for one in ended]


@pytest.mark.timeout(300)
def test_training_comes_to_the_same(trained: list[list[dict[str, Any]]]) -> None:
    losses = {record["hook"]: record["loss"] for record in trained[0] if "hook" in record}
    others = {"int8_hook with feedback", "fp16 wrapper", "PowerSGD"}
    assert losses.keys() == {"none", *HOOKS, *OPERATORS, *others}
    for hook, loss in losses.items():
        limit = 0.2 if hook in (*COARSE, *OPERATORS) else 0.02
        if hook == "majority_hook":  # goes another way, and further
            assert loss < losses["none"], losses
        else:
            assert loss == pytest.approx(losses["none"], rel=limit), (hook, losses)


def test_all_ranks_have_the_same_weights(trained: list[list[dict[str, Any]]]) -> None:
    for records in trained:
        for record in records:
            assert record.get("same", True), record


def test_narrow_lanes_and_parts_send_less(trained: list[list[dict[str, Any]]]) -> None:
    sent = {record["hook"]: record["sent"] for record in trained[0] if "hook" in record}
    whole = sent["allreduce_hook"]
    assert sent["int16_hook"] < 0.6 * whole
    assert sent["int8_hook"] < 0.4 * whole
    assert sent["int4_hook"] < 0.3 * whole
    assert sent["majority_hook"] < 0.4 * whole
    assert sent["topk_hook"] < 0.6 * whole
    assert sent["powersgd:2/int16"] < sent["powersgd:2"] < 0.5 * whole


def test_statistics_have_the_bytes_on_the_wire(trained: list[list[dict[str, Any]]]) -> None:
    """Those of the backend's groups; a communicator beside another backend has its own."""
    for records in trained:
        trainings = [record for record in records if "hook" in record]
        backend = trainings[1]["wire"] > 0
        for record in trainings[1:]:
            if backend and record["hook"] == "PowerSGD":  # its callbacks have a way of their own
                assert record["wire"] > record["sent"]
            else:
                assert record["wire"] == (record["sent"] if backend else 0), record
        assert records[-1]["closed"] >= records[-1]["open"] >= sum(one["wire"] for one in trainings)


def test_sparse_gradients_stay_sparse(trained: list[list[dict[str, Any]]]) -> None:
    sparse = {record["sparse"]: record for record in trained[0] if "sparse" in record}
    assert set(sparse) == set(HOOKS)
    for hook, record in sparse.items():
        assert record["is_sparse"]
        assert record["rows"] <= 75  # words of all ranks
        assert record["off"] < {"int8_hook": 0.3, "int4_hook": 8.0}.get(hook, 1e-3), record


def test_votes_are_the_majoritys_and_the_mean_of_signs(trained: list[list[dict[str, Any]]]) -> None:
    for records in trained:
        assert all(record["kept"] == 0 for record in records if "votes" in record), records
    votes = [record for record in trained[0] if "votes" in record]
    assert [record["finite"] for record in votes] == [True, False, True, False]
    for record in votes:
        if record["finite"]:
            assert record["off"] < 1e-6, record
        else:  # all of the bucket, or of what shares a block of magnitudes
            assert record["nan"] == 5000, record


def test_a_group_of_another_backend_is_refused() -> None:
    from p4reduce.torch import hooks

    with pytest.raises(TypeError, match=r"a process group or a p4reduce\.Communicator is needed"):
        hooks.HookState("gloo")


@pytest.mark.timeout(300)
def test_all_buckets_are_under_way_together_and_none_is_copied(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(system, 2, ["overlap.py"], tmp_path / "ranks").wait()
    all_well(ended)
    (record,) = ended[0].records
    assert record["called"] >= 3
    assert set(record["when_completed"]) == {record["called"]}
