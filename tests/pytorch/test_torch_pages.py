# SPDX-License-Identifier: Apache-2.0
"""The code blocks of pages that need PyTorch run as well (tests/docs/test_pages_run.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from p4reduce_lab import LocalNetwork
from page_blocks import Block, run, workplace
from test_pages_run import RUNNING


@pytest.mark.p4reduce(ranks=8)
@pytest.mark.parametrize(
    "block", [one for one in RUNNING if "torch" in one.words], ids=lambda block: block.name
)
def test_a_block_of_pytorch_runs(
    block: Block, p4reduce_network: LocalNetwork, tmp_path: Path
) -> None:
    workplace(tmp_path)
    run(block, tmp_path, p4reduce_network.variables)
