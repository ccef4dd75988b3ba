# SPDX-License-Identifier: Apache-2.0
"""Cases of the test-suite that torch's wheel ships (torch/testing/_internal/distributed).

They are those for Gloo, run on the backend p4reduce.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)
pytest.importorskip("expecttest", reason="torch's test-suite needs it: pip install expecttest")

CASES = """
    test_get_rank test_destroy_group test_get_rank_size_full_group
    test_batch_isend_irecv_gloo test_send_recv test_send_recv_any_source test_send_recv_with_tag
    test_isend test_irecv test_broadcast test_broadcast_group test_broadcast_full_group
    test_reduce_sum test_reduce_product test_reduce_group_max test_reduce_sum_twice
    test_all_reduce_sum test_all_reduce_sum_async test_all_reduce_sum_complex
    test_all_reduce_product test_all_reduce_group_sum test_all_reduce_full_group_min
    test_sparse_all_reduce_sum test_all_reduce_coalesced_sum test_all_reduce_coalesced_group_max
    test_scatter test_scatter_complex test_gather test_gather_group test_all_gather
    test_all_gather_complex test_all_gather_coalesced_simple test_all_gather_coalesced_with_empty
    test_barrier
    test_barrier_group test_get_future test_all_gather_object_default_pg test_gather_object
    test_scatter_object_list
    test_DistributedDataParallelCPU
    test_accumulate_gradients_no_sync_allreduce_with_then_hook
""".split()  # noqa: SIM905  # as a list it would be a line for each


@pytest.mark.timeout(600)
def test_torchs_own_cases(system: TorchSystem, tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    ranks = Ranks(system, 4, ["wheel_cases.py", str(directory), *CASES], tmp_path / "ranks")
    ended = ranks.wait(500)
    outcomes = {
        (record["case"], record["rank"]): record["outcome"]
        for one in ended
        for record in one.records
        if "outcome" in record
    }
    wrong = {key: text for key, text in outcomes.items() if not text.startswith(("pass", "skip"))}
    assert not wrong, "\n".join(f"{case}: {text[-2000:]}" for case, text in wrong.items())
    all_well(ended)
    assert {case for case, _ in outcomes} == set(CASES)
    skipped = {case for (case, _), text in outcomes.items() if text.startswith("skip")}
    assert not skipped, {case: outcomes[case, 0] for case in skipped}
