# SPDX-License-Identifier: Apache-2.0
"""Every collective, dtype and reduction against Gloo, on the same inputs.

In each run a share of the cases is drawn, as all take a quarter of an hour: SHARE=1 runs all, and
SEED=… repeats what a failed test has printed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

SHARES = {2: 0.12, 3: 0.12, 4: 0.03, 8: 0.015}
SUMS = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor")
COPIES = ("broadcast", "all_gather", "all_gather_into_tensor")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SHARES)
def test_results_are_those_of_gloo(size: int, system: TorchSystem, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 31))
    share = float(os.environ.get("SHARE") or SHARES[size])
    print(f"seed {seed}")
    ranks = Ranks(system, size, ["conformance.py", str(seed), str(share)], tmp_path / "ranks")
    ended = ranks.wait(800)
    all_well(ended)
    records = [record for one in ended for record in one.records]
    wrong = {record["case"]: record["wrong"] for record in records if record.get("wrong")}
    assert not wrong, "\n".join(f"{case}: {text[:500]}" for case, text in wrong.items())
    assert sum("case" in record for record in records) > 10 * size
    if size == 2:
        counted = ended[0].records[-1]
        assert set(counted["switch"]) == {*SUMS, *COPIES}, counted
        # What the switch does not do is delegated, with the reason.
        assert {"gather: no sum", "send: point to point"} <= set(counted["gloo"])
