# SPDX-License-Identifier: Apache-2.0
"""`LayerOrder`, and the classes of DDP's buckets: another order, and the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


@pytest.mark.timeout(300)
def test_the_order_changes_no_bit(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 3, ["layer_order.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        (record,) = one.records
        chosen = record.pop("chosen")
        assert record == {"same": True, "int16": True, "ddp": True, "never": [0]}
        # The last bucket goes first. How many others there are, a pass knows from the one before.
        ends = [place + 1 for place, priority in enumerate(chosen) if priority == 3]
        first, second, third = (
            chosen[begin:end] for begin, end in zip([0, *ends], ends, strict=False)
        )
        assert set(first[:-1]) <= {0}
        assert len(second) == len(third) > 4
        assert third == sorted(third)
        assert set(third) == {0, 1, 2, 3}
        twice, unused, nothing = one.lines[1:]
        assert "has a mean in flight: LayerOrder needs a forward pass" in twice
        assert unused == (
            "layer '0' has gradients of 1 of its 2 parameters: LayerOrder needs all of them"
        )
        assert nothing == "the model has no parameters that take part in training"
