# SPDX-License-Identifier: Apache-2.0
"""Any counter of the P4 program, by the control API."""

from __future__ import annotations

import grpc
from controller_harness import RunningController, SwitchProcess, contribute, refused, result


def counts(controller: RunningController, name: str) -> dict[str, int]:
    return {each.name: each.frames for each in controller.call("GetCounters", name=name).counts}


def test_counters_by_name(controller: RunningController, switch: SwitchProcess) -> None:
    ranks = controller.running(switch, 2)
    for rank in ranks:
        contribute(rank, 1)
    for rank in ranks:
        result(rank)
    contributed = counts(controller, "contributed")
    assert sorted(contributed.values()) == [1, 1]
    assert all(name.startswith("admission(") for name in contributed)
    outcomes = counts(controller, "outcomes")  # by cell
    assert outcomes["1"] == counts(controller, "")["round-opened"] == 1
    with_name = refused(
        grpc.StatusCode.NOT_FOUND, lambda: controller.call("GetCounters", name="wrong")
    )
    assert "no counter 'wrong'; there are answered, contributed, delivered, outcomes" in with_name
