# SPDX-License-Identifier: Apache-2.0
"""`deadline_hook`: a late rank's gradient counts in the next step, and all ranks agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


@pytest.mark.timeout(300)
def test_a_late_gradient_is_added_to_the_next_one(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 3, ["late_hook.py"], tmp_path / "ranks").wait()
    all_well(ended)
    means = [(1 + 2 + 3) / 3, (10 + 20) / 2, (100 + 200 + 300 + 30) / 3]
    for one in ended:
        (record,) = one.records
        assert record["kept"] == 0
        for gradient, mean in zip(record["gradients"], means, strict=True):
            assert gradient == pytest.approx([mean] * 5, rel=1e-6)
