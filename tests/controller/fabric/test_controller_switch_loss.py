# SPDX-License-Identifier: Apache-2.0
"""A switch that goes away, comes back, hangs, forgets, or gets another controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from controller_harness import (
    DEADLINE,
    Rank,
    RunningController,
    SwitchProcess,
    cli,
    contribute,
    eventually,
    failed,
    reform,
    refused,
    result,
    stopped,
)
from p4reduce.control import control_pb2 as pb
from p4reduce_controller.fabric import p4client, switch_session
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import NoSwitchAnswerError
from p4reduce_controller.fabric.schema import MulticastGroup, Op, TableRow, Update

Start = Callable[..., RunningController]


def disconnected(controller: RunningController) -> str:
    """Wait until the switch is lost; return why."""
    lost = eventually(lambda: not controller.call("GetSwitch").connected, "the switch is lost")
    assert lost
    return str(controller.call("GetSwitch").reason)


def connected(controller: RunningController) -> None:
    eventually(lambda: controller.call("GetSwitch").connected, "the switch is back")


def sums(ranks: list[Rank], round_: int = 1) -> None:
    """Reduce a block, and see that it arrives."""
    for rank in ranks:
        contribute(rank, rank.rank + 1, round_)
    expected = len(ranks) * (len(ranks) + 1) // 2
    for rank in ranks:
        assert bytes(result(rank).payload) == expected.to_bytes(4, "big") * 256


def test_a_switch_that_is_restarted(start: Start, mortal_switch: SwitchProcess) -> None:
    controller = start(mortal_switch)
    ranks = controller.running(mortal_switch, 2)
    sums(ranks)
    forming = controller.rank(mortal_switch, 0, 2, job="forming", port=3)
    forming.hello()
    waiting = forming.begin_await_ready()
    mortal_switch.kill()
    reply = failed(ranks)
    assert reply.cause == pb.CAUSE_SWITCH_LOST
    assert reply.reason.startswith("the switch was lost: the P4Runtime session with")
    assert "nobody listens at" in controller.call("GetSwitch").reason
    assert "lost: " in cli("--controller", controller.address, "switch", "status").stdout
    for method in ("GetCounters", "GetTable"):
        refused(grpc.StatusCode.UNAVAILABLE, lambda method=method: controller.call(method))
    message = refused(
        grpc.StatusCode.UNAVAILABLE, lambda: controller.rank(mortal_switch, 0, 1, job="x")
    )
    assert "the switch was lost" in message
    asked = [rank.begin_reform(world_size=2, intact=True) for rank in ranks]
    with pytest.raises(grpc.RpcError) as caught:
        ranks[0].begin_reform(world_size=2, intact=True, timeout=0.2).result()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the switch was lost" in caught.value.details()
    assert not waiting.done()
    mortal_switch.revive()
    again = [
        rank.reformed(each.result(timeout=DEADLINE))
        for rank, each in zip(ranks, asked, strict=True)
    ]
    for rank in again:
        rank.hello()
    for rank in again:
        rank.await_ready()
    sums(again)
    # The one that was forming never failed: only its HELLO has to come once more.
    other = controller.rank(mortal_switch, 1, 2, job="forming", port=4)
    for rank in (forming, other):
        rank.hello()
    assert waiting.result(timeout=DEADLINE).world_size == 2
    assert controller.call("GetSwitch").slots_free == 1024 - 2 * 32


def test_a_session_that_breaks_costs_nothing(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch)
    ranks = controller.running(switch, 2)
    sums(ranks)
    before = controller.table("admission")
    controller.break_session()
    eventually(lambda: "switch-back" in controller.events(), "there is another session")
    assert "switch-lost" not in controller.events()
    assert ranks[0].heartbeat().state == pb.RUNNING
    # The entries were not written again: they count on.
    assert [(row.match, row.frames) for row in controller.table("admission")] == [
        (row.match, row.frames) for row in before
    ]
    sums(ranks, round_=2)
    assert len(controller.running(switch, 1, job="new", port=3)) == 1


def test_what_is_missing_or_too_much_is_put_right(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch)
    ranks = controller.running(switch, 2)
    tables = {name: controller.table(name) for name in ("admission", "delivery", "bridge")}
    client = controller.client_now()
    rows = client.read_table("admission")
    client.write(
        [
            Update(Op.DELETE, TableRow("admission", rows[0].match)),
            Update(Op.INSERT, TableRow("bridge", {"dst_mac": 7}, "forward", {"port": 1})),
            Update(Op.INSERT, MulticastGroup(77, ((1, 900),))),
            Update(Op.MODIFY, MulticastGroup(1, ((1, 0),))),
        ]
    )
    controller.break_session()
    eventually(lambda: "switch-back" in controller.events(), "there is another session")
    for name, entries in tables.items():
        shown = [(dict(row.match), row.action, dict(row.params)) for row in controller.table(name)]
        for row in entries:
            assert (dict(row.match), row.action, dict(row.params)) in shown
        assert len(shown) == len(entries)
    groups = {group.group: group for group in controller.client_now().read_groups()}
    assert 77 not in groups
    assert sorted(port for port, _ in groups[1].replicas) == [1, 2, 3, 4]
    sums(ranks)


def test_a_switch_that_forgot_its_program(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch_session, "PULSE", 0.2)
    controller = start(switch)
    ranks = controller.running(switch, 2)
    # Even by the same one: what was in the registers is gone. The controller may notice before the
    # switch has answered, and then closes the session by which it was asked.
    with contextlib.suppress(NoSwitchAnswerError):
        controller.client_now().set_pipeline(load_program())
    reply = failed(ranks)
    assert reply.cause == pb.CAUSE_SWITCH_LOST
    assert "has lost its program; it was configured again" in reply.reason
    again = reform(ranks, world_size=2)
    for rank in again:
        rank.await_ready()
    sums(again)


def test_a_switch_that_hangs(
    start: Start, mortal_switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = start(mortal_switch)
    ranks = controller.running(mortal_switch, 2)
    with stopped(mortal_switch.process.pid), monkeypatch.context() as impatient:
        impatient.setattr(p4client, "CALL_TIMEOUT", 1.0)
        message = refused(grpc.StatusCode.UNAVAILABLE, lambda: controller.call("GetCounters"))
        assert "does not answer: DEADLINE_EXCEEDED" in message
        assert failed(ranks).cause == pb.CAUSE_SWITCH_LOST
    # It is there as it was, but the job is not.
    again = reform(ranks, world_size=2)
    for rank in again:
        rank.await_ready()
    assert len(controller.table("admission")) == 2
    sums(again)


def test_stopping_while_the_switch_hangs(start: Start, mortal_switch: SwitchProcess) -> None:
    controller = start(mortal_switch)
    controller.running(mortal_switch, 1)
    with stopped(mortal_switch.process.pid):
        controller.stop()


def test_a_job_whose_entries_are_gone_is_formed_anew(
    start: Start, mortal_switch: SwitchProcess
) -> None:
    """Found when a rank says that the switch does not answer it."""
    controller = start(mortal_switch)
    ranks = controller.running(mortal_switch, 2)
    client = controller.client_now()
    [entry, *_] = client.read_table("admission")
    client.write([Update(Op.DELETE, TableRow("admission", entry.match))])
    assert ranks[0].heartbeat(unanswered=16.0).state == pb.RUNNING  # of a lease of 30 s
    reply = failed(ranks)
    assert reply.cause == pb.CAUSE_SWITCH_LOST
    assert "the switch has lost entries of the job: admission" in reply.reason
    again = reform(ranks, world_size=2)
    for rank in again:
        rank.await_ready()
    sums(again)


def test_another_controller_is_not_fought(
    start: Start, mortal_switch: SwitchProcess, tmp_path: Path
) -> None:
    first = start(mortal_switch, election_id=10)
    ranks = first.running(mortal_switch, 2)
    second = start(
        mortal_switch,
        election_id=11,
        listen=f"unix:{tmp_path}/second.sock",
        state_directory=tmp_path / "second",
    )
    assert "election id 11, ours is 10" in disconnected(first)
    assert not first.call("GetSwitch").primary
    assert failed(ranks).cause == pb.CAUSE_SWITCH_LOST
    theirs = second.running(mortal_switch, 2)
    sums(theirs)
    assert second.call("GetSwitch").primary
    assert not first.call("GetSwitch").connected
    # Who joins meanwhile hears how it is now.

    def joins() -> object:
        return first.call("Join", job="another", rank=0, world_size=1, host="here", pid=1)

    assert "the primary has election id 11, ours is 10" in refused(
        grpc.StatusCode.UNAVAILABLE, joins
    )
    with stopped(mortal_switch.process.pid):
        eventually(
            lambda: refused(grpc.StatusCode.UNAVAILABLE, joins).startswith(
                f"the switch was lost: no P4Runtime server answers at {mortal_switch.address}"
            ),
            "they hear that it has changed",
        )
    # Once the other one is gone the switch is ours again, with the id that the switch asks for:
    # BMv2 forgets the ids of those that are gone.
    second.stop()
    connected(first)
    needed = 11 if mortal_switch.remembers_election_ids else 10
    assert first.call("GetSwitch").election_id == str(needed)
    again = reform(ranks, world_size=2)
    for rank in again:
        rank.await_ready()
    sums(again)
