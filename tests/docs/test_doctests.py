# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings do what they say. `comm` in them is a communicator of one rank."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import p4reduce
import pytest
from p4reduce_lab import LocalNetwork

ROOT = Path(__file__).parents[2]
PACKAGES = ("worker/p4reduce", "lab/p4reduce_lab", "switch/p4reduce_switch")


def modules_with_examples() -> list[str]:
    return [
        ".".join(path.relative_to((ROOT / package).parent).with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if ">>> " in path.read_text("utf-8")
    ]


@pytest.mark.p4reduce(ranks=1)
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_a_module(
    name: str, p4reduce_network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".torch" in name or ".horovod" in name:
        pytest.importorskip("torchft" if name.endswith(".ft") else "torch")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    module = importlib.import_module(name)
    with p4reduce.init(0, 1, job=f"doctest-{name}") as comm:
        results = doctest.testmod(module, extraglobs={"comm": comm})
    assert results.attempted > 0
    assert results.failed == 0
