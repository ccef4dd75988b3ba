# SPDX-License-Identifier: Apache-2.0
"""Tensors of an accelerator, without hardware: its streams are threads that are late at random."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from torch_system import Ranks, TorchSystem, all_well

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
    assert [one.lines for one in ended] == [[f"right: {COLLECTIVES}"]] * ranks


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
