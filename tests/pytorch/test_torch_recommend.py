# SPDX-License-Identifier: Apache-2.0
"""The recommendation model learns the same wherever its tables are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

SMALL = ["--count", "3", "--rows", "2000", "--batch", "96", "--steps", "31"]


def run(
    system: TorchSystem, directory: Path, way: str, ranks: int, options: list[str]
) -> tuple[list[float], float, float]:
    """Return losses, the AUC, and the share of the tables' bytes that goes up in a step."""
    program = [str(EXAMPLES / "pytorch_recommend.py"), "--tables", way, *options]
    ended = Ranks(system, ranks, program, directory / f"{way}-{ranks}").wait()
    all_well(ended)
    lines = ended[0].lines
    losses = [float(one[1]) for line in lines if (one := re.match(r"step +\d+  loss (.*)", line))]
    found = re.search(r"AUC ([0-9.]+), .* ([0-9.]+)% of the tables", lines[-1])
    assert found is not None, lines
    return losses, float(found[1]), float(found[2]) / 100


@pytest.fixture(scope="module")
def alone(
    system: TorchSystem, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[float], float]:
    """Losses and AUC of one process."""
    losses, auc, _ = run(system, tmp_path_factory.mktemp("alone"), "dense", 1, SMALL)
    return losses, auc


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["dense", "replicated", "rows", "split"])
def test_three_ranks_learn_what_one_process_does(
    system: TorchSystem, alone: tuple[list[float], float], tmp_path: Path, way: str
) -> None:
    losses, auc, _ = run(system, tmp_path, way, 3, SMALL)
    assert len(losses) == 2
    assert losses == pytest.approx(alone[0], abs=1e-3)
    assert losses[1] < losses[0]
    assert auc == pytest.approx(alone[1], abs=0.002)


@pytest.mark.timeout(300)
def test_of_large_tables_few_bytes_travel(system: TorchSystem, tmp_path: Path) -> None:
    *_, share = run(system, tmp_path, "replicated", 2, ["--batch", "512", "--steps", "2"])
    assert 0 < share <= 0.012


@pytest.mark.timeout(300)
def test_a_batch_that_does_not_fit_is_named(system: TorchSystem, tmp_path: Path) -> None:
    program = [str(EXAMPLES / "pytorch_recommend.py"), "--batch", "100"]
    ended = Ranks(system, 3, program, tmp_path / "ranks").wait()
    assert all("--batch 100 is not a multiple of the 3 ranks" in one.log for one in ended)
