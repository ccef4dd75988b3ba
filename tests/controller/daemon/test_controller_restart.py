# SPDX-License-Identifier: Apache-2.0
"""A controller that dies, and the next one, which takes up the switch as it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from controller_harness import (
    DEADLINE,
    PORTS,
    SWITCH_MAC,
    Calls,
    Rank,
    RunningController,
    ServingProcess,
    SwitchProcess,
    contribute,
    eventually,
    failed,
    reform,
    refused,
    result,
)
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce_controller.storage import keeping
from p4reduce_controller.storage.job_table import TableError, TableFile, TableInUseError
from p4reduce_controller.topology.switches import only_switch
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac

Start = Callable[..., RunningController]


def tables(controller: Calls) -> dict[str, list[tuple[dict[str, str], str, int]]]:
    """Return all entries, with their counts."""

    def entries(name: str) -> list[tuple[dict[str, str], str, int]]:
        rows = controller.table(name)
        return sorted(((dict(row.match), row.action, int(row.frames)) for row in rows), key=str)

    return {name: entries(name) for name in ("admission", "delivery", "bridge", "own_address")}


@pytest.fixture
def serve(mortal_switch: SwitchProcess, tmp_path: Path) -> Iterator[Callable[[], ServingProcess]]:
    """Starts controllers as processes, and ends them after the test."""
    started: list[ServingProcess] = []

    def serve() -> ServingProcess:
        started.append(ServingProcess(mortal_switch, tmp_path))
        return started[-1]

    yield serve
    for controller in started:
        controller.end(signal.SIGKILL)


def moved(ranks: list[Rank], controller: Calls) -> None:
    """Let ranks talk to another controller."""
    for rank in ranks:
        rank.controller = controller


def the_table(directory: Path) -> Path:
    [table] = [path for path in (directory / "state").glob("jobs-*") if not path.suffix]
    return table


def test_a_controller_that_is_killed(
    serve: Callable[[], ServingProcess], mortal_switch: SwitchProcess, tmp_path: Path
) -> None:
    first = serve()
    ranks = [Rank(first, mortal_switch, rank, 2) for rank in range(2)]
    forming = Rank(first, mortal_switch, 0, 2, job="forming", port=3, slots=100)
    for rank in (*ranks, forming):
        rank.hello()
    for rank in ranks:
        rank.await_ready()
    eventually(lambda: first.job("forming").members[0].state == "attached", "it is attached")
    contribute(ranks[0], 1)  # half of a round
    before = tables(first)
    first.end(signal.SIGKILL)
    assert the_table(tmp_path).stat().st_mode & 0o777 == 0o600

    # The switch continues by itself, with no controller at all.
    contribute(ranks[1], 2)
    for rank in ranks:
        assert bytes(result(rank).payload)[:4] == (3).to_bytes(4, "big")

    second = serve()
    moved([*ranks, forming], second)
    assert "2 from a former life; the switch is as it was" in second.log.read_text()
    after = tables(second)
    assert after["admission"] == [(*row[:2], 1) for row in before["admission"]]
    assert after["own_address"] == before["own_address"]
    assert ranks[0].heartbeat().state == pb.RUNNING
    assert second.job("train").members[1].mac == ranks[1].joined.suggested_mac
    assert second.call("GetSwitch").slots_free == 1024 - 32 - 100
    # What was handed out is not handed out again.
    third = second.running(mortal_switch, 1, job="third", port=4)
    for rank in ranks:
        contribute(rank, 7, round_=2)
    for rank in ranks:
        assert bytes(result(rank).payload)[:4] == (14).to_bytes(4, "big")
    contribute(third[0], 5)
    assert bytes(result(third[0]).payload)[:4] == (5).to_bytes(4, "big")
    # The one that was forming continues.
    other = Rank(second, mortal_switch, 1, 2, job="forming", port=4)
    other.hello()
    assert forming.await_ready().slot_count == 100
    for rank in (*ranks, *third):
        rank.leave()
    eventually(lambda: len(second.table("admission")) == 2, "only one job is left")
    second.end(signal.SIGTERM)
    # Having ended in order, it leaves nothing.
    assert list((tmp_path / "state").glob("jobs-*")) == []


def test_the_switch_was_restarted_as_well(start: Start, mortal_switch: SwitchProcess) -> None:
    first = start(mortal_switch)
    ranks = first.running(mortal_switch, 2)
    first.crash()
    mortal_switch.kill()
    mortal_switch.revive()
    second = start(mortal_switch)
    moved(ranks, second)
    reply = failed(ranks)
    assert reply.cause == pb.CAUSE_SWITCH_LOST
    assert "it was restarted or reloaded while no controller ran" in reply.reason
    again = reform(ranks, world_size=2, intact=True)
    for rank in again:
        rank.await_ready()
    assert len(second.table("admission")) == 2


def test_jobs_are_kept_on_request(start: Start, switch: SwitchProcess) -> None:
    first = start(switch, keep_jobs=True)
    ranks = first.running(switch, 2)
    forming = first.rank(switch, 0, 2, job="forming", port=3)
    forming.hello()
    waiting = forming.begin_await_ready()
    eventually(lambda: first.job("forming").members[0].state == "attached", "it is attached")
    first.stop()
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result(timeout=DEADLINE)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    second = start(switch)
    moved([*ranks, forming], second)
    assert ranks[1].heartbeat().state == pb.RUNNING
    other = second.rank(switch, 1, 2, job="forming", port=4)
    other.hello()
    assert forming.await_ready().world_size == 2


def test_going_on_after_a_failure_and_a_restart(start: Start, switch: SwitchProcess) -> None:
    first = start(switch, lease=1.0)
    ranks = first.running(switch, 3)
    failed(ranks[:2])
    first.crash()
    second = start(switch, lease=30.0)
    moved(ranks, second)
    assert ranks[0].heartbeat().cause == pb.CAUSE_RANK_LOST
    assert "declared lost" in reform_refusal(ranks[2])
    replies = [each.result() for each in [rank.begin_reform(completed=5) for rank in ranks[:2]]]
    second.crash()
    # One of them did not get its answer, so it asks the next controller.
    third = start(switch)
    moved(ranks, third)
    assert ranks[1].begin_reform(completed=5).result() == replies[1]
    again = [rank.reformed(reply) for rank, reply in zip(ranks, replies, strict=False)]
    for rank in again:
        rank.hello()
    for rank in again:
        rank.await_ready()
    assert len(third.table("admission")) == 2
    assert replies[0].resume_from == 5


def reform_refusal(rank: Rank) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        rank.begin_reform().result()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return str(caught.value.details())


def test_only_one_controller_has_a_table(
    start: Start, switch: SwitchProcess, tmp_path: Path
) -> None:
    first = start(switch)
    ranks = first.running(switch, 1)
    with pytest.raises(TableInUseError, match=r"another controller \(pid \d+\) has the jobs of"):
        RunningController(
            switch.address, tmp_path, election_id=9, listen=f"unix:{tmp_path}/second.sock"
        )
    assert first.call("GetSwitch").primary  # not even the higher election id took it
    contribute(ranks[0], 4)
    assert bytes(result(ranks[0]).payload)[:4] == (4).to_bytes(4, "big")


def test_another_address_of_the_switch(start: Start, switch: SwitchProcess) -> None:
    first = start(switch)
    ranks = first.running(switch, 1)
    first.crash()
    elsewhere = only_switch(parse_ip("10.77.255.253"), parse_mac(SWITCH_MAC), PORTS)
    second = start(switch, topology=elsewhere)
    moved(ranks, second)
    # What the ranks were told to send to is no more.
    assert failed(ranks).cause == pb.CAUSE_SWITCH_LOST


def test_a_damaged_table_is_not_guessed_at(start: Start, switch: SwitchProcess) -> None:
    first = start(switch)
    first.running(switch, 1)
    first.crash()
    table = the_table(Path(first.daemon.settings.state_directory).parent)
    table.write_bytes(table.read_bytes()[:-7])
    with pytest.raises(TableError, match="move it away"):
        start(switch)
    table.unlink()
    assert start(switch).table("admission") == []


def room_on_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While this event is clear, the disk does not answer. It is set."""
    room, write = threading.Event(), TableFile.write

    def slowly(self: TableFile, data: bytes) -> None:
        assert room.wait(DEADLINE)
        write(self, data)

    room.set()
    monkeypatch.setattr(TableFile, "write", slowly)
    return room


def test_nobody_is_told_what_is_not_on_disk(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = room_on_disk(monkeypatch)
    controller = start(switch)
    rank = controller.rank(switch, 0, 1)
    rank.hello()
    room.clear()
    stub = controller.client.stub
    calls = [
        rank.begin_await_ready(),
        stub.Join.future(pb.JoinRequest(job="b", world_size=1), timeout=DEADLINE),
        stub.CreateJob.future(pb.CreateJobRequest(name="c", world_size=1), timeout=DEADLINE),
    ]
    eventually(lambda: len(controller.call("ListJobs").jobs) == 3, "all are made")
    eventually(lambda: controller.job("train").state == pb.RUNNING, "one runs")
    assert [call.done() for call in calls] == [False] * 3
    room.set()
    for call in calls:
        call.result(timeout=DEADLINE)


def test_who_does_not_wait_for_the_disk_leaves_its_place(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join without an answer may be repeated by the same process, which has no nonce."""
    room = room_on_disk(monkeypatch)
    controller = start(switch)
    room.clear()
    request = pb.JoinRequest(job="b", world_size=1)
    call = controller.client.stub.Join.future(request, timeout=DEADLINE)
    eventually(lambda: len(controller.call("ListJobs").jobs) == 1, "it has a place")
    call.cancel()
    eventually(lambda: controller.job("b").state == pb.ENDED, "the place is free")
    room.set()
    assert controller.events()[-2:] == ["rank-left", "job-ended"]  # no lease ran out
    assert controller.call("Join", request).nonce


def test_a_disk_that_is_full(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False
    write = TableFile.write

    def fill(self: TableFile, data: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(TableFile, "write", fill)
    controller = start(switch)
    ranks = controller.running(switch, 2)
    full = True
    message = refused(
        grpc.StatusCode.INTERNAL, lambda: controller.rank(switch, 0, 1, job="new", port=3)
    )
    assert message == (
        "the controller cannot write its job table: [Errno 28] No space left on device"
    )
    assert controller.job("new").state == pb.ENDED
    assert ranks[0].heartbeat().state == pb.RUNNING  # what there is continues
    ranks[0].leave()
    full = False
    eventually(lambda: joined(controller, switch), "the disk has room again")


def test_a_disk_that_does_not_answer(
    start: Start,
    switch: SwitchProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ranks that are there hear how the job is; those that join wait for the disk."""
    answers = room_on_disk(monkeypatch)
    monkeypatch.setattr(keeping, "SLOW", 0.1)
    controller = start(switch, lease=5.0)
    ranks = controller.running(switch, 2)
    answers.clear()
    try:
        ranks[0].leave()
        assert list(ranks[1].heartbeat().left) == [0]
        eventually(lambda: "is not on disk after 0.1 s" in caplog.text, "the log has it")
        request = pb.JoinRequest(job="new", rank=0, world_size=2)
        joining = controller.client.stub.Join.future(request, timeout=DEADLINE)
        ranks[1].heartbeat()
        assert not joining.done()
    finally:
        answers.set()
    assert joining.result().incarnation
    ranks[1].leave()


def joined(controller: RunningController, switch: SwitchProcess) -> bool:
    try:
        controller.rank(switch, 0, 1, job="new", port=3)
    except ControlError:
        return False
    return True
