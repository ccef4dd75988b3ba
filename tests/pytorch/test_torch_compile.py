# SPDX-License-Identifier: Apache-2.0
"""torch.compile meets this backend in models, in whole steps and in functions, as it meets Gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

CASES = 11


@pytest.mark.timeout(300)
def test_compiled_programs_do_as_over_gloo(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 2, ["compiled.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        assert len(one.records) == CASES
        for record in one.records:
            near = pytest.approx(record["gloo"], rel=1e-5, abs=1e-5)
            assert record["ours"] == near, record["case"]
