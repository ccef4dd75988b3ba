# SPDX-License-Identifier: Apache-2.0
"""Tensors of an accelerator, without hardware: its streams are threads that are late at random."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from torch_system import Ranks, TorchSystem, all_well, torch_system

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

pytestmark = [pytest.mark.fake_device, pytest.mark.timeout(300)]
COLLECTIVES = 150


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_collectives_of_device_and_host(
    ranks: int, system: TorchSystem, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    ended = Ranks(system, ranks, ["staged.py", str(seed), str(COLLECTIVES)], tmp_path).wait()
    all_well(ended)
    assert [one.lines for one in ended] == [[f"right: {COLLECTIVES}", "held: 0"]] * ranks


def records(
    system: TorchSystem, directory: Path, ranks: int, program: list[str], key: str
) -> dict[str, dict[str, Any]]:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    ended = Ranks(system, ranks, ["on_fake.py", str(seed), *program], directory).wait()
    all_well(ended)
    return {record[key]: record for record in ended[0].records if key in record}


def test_what_is_built_on_groups(system: TorchSystem, tmp_path: Path) -> None:
    """DDP, FSDP2, ZeRO, functional collectives, Join: as over Gloo."""
    used = records(system, tmp_path, 4, ["uses.py"], "use")
    assert {"ddp", "zero", "fsdp", "collectives", "mixed", "uneven", "hsdp"} <= used.keys()
    for name, record in used.items():
        assert record["apart"] < 1e-4, name


def test_hooks(system: TorchSystem, tmp_path: Path) -> None:
    """A model trains with each hook, and all ranks have the same weights."""
    trained = records(system, tmp_path, 2, ["hooks_case.py", "train"], "hook")
    assert {"allreduce_hook", "int8_hook", "topk_hook", "onebit_hook"} <= trained.keys()
    for name, record in trained.items():
        assert record["same"], name


def test_gradients_that_are_accumulated(system: TorchSystem, tmp_path: Path) -> None:
    found = records(system, tmp_path, 2, ["accumulated.py"], "way")
    assert found["none"]["apart"] < 1e-5
    assert found["allreduce_hook"]["apart"] < 1e-5
    assert found["int16_hook"]["apart"] < 1e-3


def test_compiled_models(system: TorchSystem, tmp_path: Path) -> None:
    for name, record in records(system, tmp_path, 2, ["compiled.py"], "case").items():
        assert record["ours"] == pytest.approx(record["gloo"], rel=1e-5, abs=1e-5), name


def test_local_sgd(system: TorchSystem, tmp_path: Path) -> None:
    (record,) = records(system, tmp_path, 3, ["local_sgd.py"], "int16").values()
    apart = {name: value for name, value in record.items() if name not in ("int16", "factors")}
    assert record["int16"] < 1e-3
    assert max(apart.values()) < 1e-5, apart


def test_what_torch_expects_of_works(system: TorchSystem, tmp_path: Path) -> None:
    """As ProcessGroupNCCL's: what blocks the host, what the streams wait for, what is recorded."""
    ended = Ranks(system, 2, ["rules.py"], tmp_path).wait()
    all_well(ended)
    for one in ended:
        assert {name: found for record in one.records for name, found in record.items()} == {
            "the call returns before the caller's stream gets there": True,
            "wait returns before the copy up": True,
            "complete before the copy up": False,
            "what comes after wait in the caller's stream sees": 3.0,
            "synchronize returns before the copy up": False,
            "synchronize returns with": 3.0,
            "callbacks see": 3.0,
            "a call with a timeout that is too short": "DistBackendError",
            "complete after that": True,
            "with another default device": [1.0] * 3 + [2.0] * 3 + [3.0] * 3,
            "recorded": {
                "all_reduce": ["down", "up"],
                "all_reduce of a long tensor with strides": ["up"],
                "broadcast": ["down", "up"] if one is ended[0] else ["up"],
                "all_gather, input": ["down"],
                "all_gather, output": ["up"],
                "recv": ["up"],
                "send": ["down"],
                "int8_hook, bucket": ["between", "down", "up"],
                "int8_hook, kept": ["between", "down"],
                "topk_hook, bucket": ["down", "up"],
                "topk_hook, kept": ["down"],
            },
        }


@pytest.mark.parametrize("how", ["overflow", "shapes", "abort", "lost", "lost_in_a_hook"])
def test_errors_release_host_memory(how: str, tmp_path: Path) -> None:
    """Of calls in every state: copied down, on the wire, and waiting for their turn."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with torch_system(5.0) as system:
        ended = Ranks(system, 3, ["staged_errors.py", how, str(seed)], tmp_path).wait()
    all_well(ended)
    lost = how.startswith("lost")
    for rank, one in enumerate(ended):
        if lost and rank == 1:
            continue
        (record,) = one.records
        assert record["held"] == 0, record
        assert record["errors"], record
        for text in record["errors"]:
            assert not lost or "rank 1" in text, record
        if how == "overflow":
            assert len(record["errors"]) == 1
            assert record["after"] == 3.0
