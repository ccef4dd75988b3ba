# SPDX-License-Identifier: Apache-2.0
"""The torch hook takes a compressor of another package by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_package import installed
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


def test_the_hook_finds_it_by_its_entry_point(system: TorchSystem, tmp_path: Path) -> None:
    site = installed(EXAMPLES / "compressor", tmp_path / "site")
    program = ["own_compressor.py", "cyclic:2", str(site)]
    ended = Ranks(system, 2, program, tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        first, second = (record["rows"] for record in one.records)
        # Even blocks in the first step; what waited of the odd ones comes with the second.
        assert first == pytest.approx([1.5, 0, 1.5, 0], abs=1e-3)
        assert second == pytest.approx([0, 3, 0, 3], abs=1e-3)
