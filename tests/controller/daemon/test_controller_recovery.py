# SPDX-License-Identifier: Apache-2.0
"""Jobs that lose a rank, and continue, with a real switch."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from controller_harness import DEADLINE, RunningController, SwitchProcess, failed, reform
from p4reduce.control import control_pb2 as pb

Start = Callable[..., RunningController]


def test_a_lost_rank_and_those_who_go_on(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch, lease=1.0)
    ranks = controller.running(switch, 3, slots=9)
    statistics = pb.WorkerStatistics(collectives=5, blocks=100, blocks_announced=40)
    ranks[2].heartbeat(statistics=statistics, completed=5)
    assert ranks[0].heartbeat(completed=4).completed_by_all == 0  # rank 1 said nothing
    reply = failed([ranks[0], ranks[2]])
    assert reply.cause == pb.CAUSE_RANK_LOST
    assert list(reply.lost) == [1]
    assert reply.completed_by_all == 4
    shown = controller.call("GetStatistics", job="train").ranks
    assert [each.worker.collectives for each in shown] == [0, 0, 5]
    assert not shown[0].HasField("worker")

    first = ranks[0].begin_reform(completed=4, ring_address="here:1")
    with pytest.raises(grpc.RpcError) as caught:
        ranks[0].begin_reform(completed=4, ring_address="here:1", timeout=0.2).result()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details() == (
        "job 'train' is not formed again after 0.2 s: rank 2 (host host2, pid 102) has not "
        "asked for it"
    )
    second = ranks[2].begin_reform(completed=5)
    replies = [first.result(timeout=DEADLINE), second.result(timeout=DEADLINE)]
    assert [(each.rank, each.world_size, each.resume_from) for each in replies] == [
        (0, 2, 4),
        (1, 2, 4),
    ]
    again = [ranks[0].reformed(replies[0]), ranks[2].reformed(replies[1])]
    for rank in again:
        rank.hello()
    ready = again[1].await_ready()
    assert (ready.world_size, ready.slot_count) == (2, 9)
    assert list(ready.ring_addresses) == ["here:1", ""]
    assert len(ready.secret) == 32
    assert ready.secret == again[0].await_ready().secret
    assert len(controller.table("admission")) == 2
    with pytest.raises(grpc.RpcError) as caught:
        ranks[1].begin_reform().result()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "rank 1 (host host1, pid 101) was declared lost" in caught.value.details()


def test_a_replacement_takes_the_lost_ranks_place(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch, lease=1.0)
    ranks = controller.running(switch, 2)
    failed(ranks[:1])
    [first] = reform(ranks[:1], world_size=2)
    second = controller.rank(switch, 1, 2)
    second.hello()
    assert second.await_ready().world_size == first.await_ready().world_size == 2
