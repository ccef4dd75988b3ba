# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel in one direction of a DeviceMesh, data parallel in the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


@pytest.mark.timeout(300)
def test_a_mesh_comes_to_what_one_process_comes_to(system: TorchSystem, tmp_path: Path) -> None:
    program = [str(EXAMPLES / "pytorch_grid.py"), "--tensor", "2"]
    ended = Ranks(system, 4, program, tmp_path / "ranks", {"P4REDUCE_JOB": "grid"}).wait()
    all_well(ended)
    losses = []
    for rank, one in enumerate(ended):
        found = re.fullmatch(
            f"rank {rank}: loss ([0-9.]+), ([0-9.e-]+) from one process", one.lines[-1]
        )
        assert found, one.lines
        assert float(found[2]) < 1e-5
        losses.append(found[1])
    # Ranks of a row have the same samples; the rows have others.
    assert losses[0] == losses[1] != losses[2] == losses[3]
