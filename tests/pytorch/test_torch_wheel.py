# SPDX-License-Identifier: Apache-2.0
"""Cases of the test-suite that torch's wheel ships (torch/testing/_internal/distributed).

They are those for Gloo, run on the backend p4reduce.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch_system import Ended, Ranks, TorchSystem

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
    test_barrier test_barrier_group test_barrier_timeout_group
    test_monitored_barrier_gloo_subgroup test_monitored_barrier_wait_all_ranks
    test_get_future test_new_subgroups_with_group_param test_scatter_object_list
    test_all_gather_object_default_pg test_all_gather_object_subgroup test_gather_object
    test_DistributedDataParallelCPU test_ddp_logging_data_cpu test_static_graph_api_cpu
    test_accumulate_gradients_no_sync_allreduce_with_then_hook
""".split()  # noqa: SIM905  # as a list it would be a line for each


# Those that run here on Gloo, and not on the switch, each with the reason.
NOT_HERE = {"test_get_backend": "it wants the name gloo"}

WORLD = 4
STILL = 240.0  # seconds without a word from any rank; a case's own limits are shorter


def run(system: TorchSystem, names: Sequence[str], directory: Path) -> dict[str, list[str]]:
    """Run cases; return what each rank says of each.

    A case that fails ends its ranks, and others continue with the next one.
    """
    told: dict[str, list[str]] = {}
    rest = list(names)
    while rest:
        place = directory / f"from{len(told)}"
        (place / "shared").mkdir(parents=True)
        program = ["wheel_cases.py", str(place / "shared"), "p4reduce", *rest]
        ranks = Ranks(system, WORLD, program, place / "ranks")
        ended = watch(ranks)
        begun = {record["case"] for one in ended for record in one.records}
        assert begun, [one.log[-2000:] for one in ended]
        for one in ended:
            said = {record["case"]: record["outcome"] for record in one.records[1::2]}
            for case in begun:
                nothing = f"no outcome, exit code {one.code}: {one.log[-2000:]}"
                told.setdefault(case, []).append(said.get(case, nothing))
        rest = [name for name in rest if name not in begun]
    return told


def watch(ranks: Ranks) -> list[Ended]:
    """Wait for all ranks, and kill them where one has failed or none says anything any more."""
    size, changed = -1, time.monotonic()
    while any(process.poll() is None for process in ranks.processes):
        now, before = sum(len(ranks.output(rank)) for rank in range(WORLD)), size
        size, changed = now, changed if now == before else time.monotonic()
        failed = any(process.poll() not in (None, 0) for process in ranks.processes)
        if time.monotonic() - changed > (15 if failed else STILL):
            break
        time.sleep(0.1)
    return ranks.wait(0)


def wrong_of(told: dict[str, list[str]]) -> dict[str, str]:
    """Return what the first rank that neither passed nor skipped a case says."""
    return {
        case: bad[0]
        for case, outcomes in told.items()
        if (bad := [text for text in outcomes if not text.startswith(("passed", "skipped"))])
    }


def shown(wrong: dict[str, str]) -> str:
    return "\n".join(f"{case}: {text[-2000:]}" for case, text in wrong.items())


@pytest.mark.timeout(600)
def test_torchs_own_cases(system: TorchSystem, tmp_path: Path) -> None:
    told = run(system, CASES, tmp_path)
    wrong = wrong_of(told)
    assert not wrong, shown(wrong)
    skipped = {case: texts for case, texts in told.items() if texts[0].startswith("skipped")}
    assert not skipped


@pytest.mark.skipif(
    "WHEEL" not in os.environ, reason="a quarter of an hour: WHEEL=all, or WHEEL=ddp for a part"
)
@pytest.mark.timeout(7200)
def test_all_of_torchs_own_cases(system: TorchSystem, tmp_path: Path) -> None:
    """All that Gloo's run does not leave out, or those with a word in their name."""
    word = os.environ["WHEEL"].replace("all", "test_", 1)
    program = ["wheel_cases.py", str(tmp_path), "p4reduce", "--list"]
    (listed,) = Ranks(system, 1, program, tmp_path / "list").wait()
    names = [name for name in listed.lines if word in name]
    told = run(system, names, tmp_path)
    kinds = Counter(texts[0].partition(":")[0].partition("\n")[0] for texts in told.values())
    print(f"{len(told)} cases: {dict(kinds)}")
    wrong = wrong_of(told)
    assert wrong.keys() == NOT_HERE.keys() & told.keys(), shown(wrong)
