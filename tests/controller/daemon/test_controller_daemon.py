# SPDX-License-Identifier: Apache-2.0
"""The controller with a real P4Runtime server, a real program and real ports."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from controller_harness import (
    DEADLINE,
    Rank,
    RunningController,
    SwitchProcess,
    contribute,
    eventually,
    refused,
    result,
)
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, NoAnswerError
from p4reduce.wire import format as wire
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.hello_limit import HelloLimit
from p4reduce_controller.fabric.p4client import (
    NoSwitchAnswerError,
    NotPrimaryError,
    SwitchClient,
    SwitchError,
)
from p4reduce_controller.fabric.schema import Op, TableRow, Update
from p4reduce_controller.service.listen import ListenError
from p4reduce_controller.settings import Http

Start = Callable[..., RunningController]

NO_LIMIT = HelloLimit(rate=1_000_000, burst=1_000_000)  # none that a test would come to


# -- Jobs ---------------------------------------------------------------------------------------


def test_a_whole_life(controller: RunningController, switch: SwitchProcess) -> None:
    ranks = controller.running(switch, 4)
    ready = ranks[0].await_ready()
    assert (ready.world_size, ready.slot_count, ready.lease) == (4, 32, 30.0)
    assert len(controller.table("admission")) == 4
    assert len(controller.table("delivery")) == 12
    assert len(controller.table("bridge")) == 4
    assert controller.call("GetSwitch").slots_free == 992

    for rank in ranks:
        contribute(rank, 1 << rank.rank)
    for rank in ranks:
        answer = result(rank)
        assert answer.rank == rank.rank
        assert answer.contributors == 0b1111
        assert bytes(answer.payload) == (15).to_bytes(4, "big") * 256
    statistics = controller.call("GetStatistics", job="train")
    assert [(each.frames_up, each.frames_down) for each in statistics.ranks] == [(1, 1)] * 4
    assert {each.bytes_up for each in statistics.ranks} == {1102}
    ranks[0].send(ranks[0].frame(slot=1, round=1, block=0, tag=1))
    eventually(lambda: controller.count("round-opened") == 2, "an empty one has come")
    [first, *_] = controller.call("GetStatistics", job="train").ranks
    assert (first.frames_up, first.payload_up, first.empty_up) == (2, 1, 1)

    for rank in ranks[:3]:
        rank.leave()
    assert ranks[3].heartbeat().left == [0, 1, 2]
    ranks[3].leave()
    assert controller.job("train").state == pb.ENDED
    eventually(lambda: controller.call("GetSwitch").slots_free == 1024, "slots are free again")
    for table in ("admission", "delivery", "bridge"):
        assert controller.table(table) == []
    # What was counted outlives the entries.
    statistics = controller.call("GetStatistics", job="train")
    assert [(each.payload_up, each.frames_down) for each in statistics.ranks] == [(1, 1)] * 4
    contribute(ranks[0], 1, round_=2)
    eventually(lambda: controller.count("not-admitted") == 1, "the late frame was refused")


def test_jobs_are_isolated(controller: RunningController, switch: SwitchProcess) -> None:
    first = controller.running(switch, 2, job="first")
    second = controller.running(switch, 2, job="second")
    assert controller.job("first").slot_base != controller.job("second").slot_base
    # A rank of one job cannot speak for the other one, neither from its own port and address
    # nor under another's rank.
    for frame in (
        first[0].frame(job=second[0].joined.incarnation),
        first[0].frame(rank=1),
    ):
        first[0].send(frame)
    eventually(lambda: controller.count("not-admitted") == 2, "both were refused")
    for ranks, number in ((first, 1), (second, 100)):
        for rank in ranks:
            contribute(rank, number)
    for rank in first:
        assert bytes(result(rank).payload)[:4] == (2).to_bytes(4, "big")
    for rank in second:
        assert bytes(result(rank).payload)[:4] == (200).to_bytes(4, "big")
    first[0].leave()
    first[1].leave()
    eventually(lambda: len(controller.table("admission")) == 2, "the first job's entries are gone")
    for rank in second:
        contribute(rank, 3, round_=2)
    assert bytes(result(second[0]).payload)[:4] == (6).to_bytes(4, "big")


def test_ranks_may_share_a_port(controller: RunningController, switch: SwitchProcess) -> None:
    ranks = controller.running(switch, 3, port=2)
    for rank in ranks:
        contribute(rank, 5)
    assert {result(ranks[0]).rank for _ in ranks} == {0, 1, 2}


def test_jobs_of_one_host_share_its_bridge_entry(
    controller: RunningController, switch: SwitchProcess
) -> None:
    host = "02:00:00:00:00:77"
    first = controller.running(switch, 2, job="first", port=1, mac=host)
    [second] = controller.running(switch, 1, job="second", port=1, mac=host)
    for rank in first:
        rank.leave()
    eventually(lambda: len(controller.table("admission")) == 1, "the first job is gone")
    [entry] = controller.table("bridge")
    assert (entry.match["dst_mac"], entry.params["port"]) == (host, "1")
    # One MAC address cannot be in two places.
    elsewhere = controller.rank(switch, 0, 1, job="third", port=2, mac=host)
    elsewhere.hello()
    message = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: elsewhere.await_ready(0.3))
    assert f"{host} is on port 1 already, as rank 0 of job 'second'" in message
    second.leave()
    eventually(lambda: controller.table("bridge") == [], "nobody needs the entry")


def test_a_hosts_frames_go_to_its_port_whoever_claims_its_address(
    start: Start, switch: SwitchProcess
) -> None:
    host = "02:00:00:00:00:78"
    controller = start(switch, stations=((host, 3),))

    def entries() -> list[tuple[str, str]]:
        return [(row.match["dst_mac"], row.params["port"]) for row in controller.table("bridge")]

    assert entries() == [(host, "3")]
    thief = controller.rank(switch, 0, 1, port=2, mac=host)
    thief.hello()
    message = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: thief.await_ready(0.3))
    assert f"{host} belongs to port 3 (--station), but comes from port 2" in message
    [rank] = controller.running(switch, 1, job="own", port=3, mac=host)
    assert entries() == [(host, "3")]
    rank.leave()
    eventually(lambda: controller.table("admission") == [], "the job is gone")
    assert entries() == [(host, "3")]


def test_a_name_can_be_used_again(controller: RunningController, switch: SwitchProcess) -> None:
    incarnations = set()
    for _ in range(3):
        ranks = controller.running(switch, 2)
        incarnations.add(ranks[0].joined.incarnation)
        for rank in ranks:
            rank.leave()
    assert len(incarnations) == 3


def test_deletion_tells_the_ranks(controller: RunningController, switch: SwitchProcess) -> None:
    ranks = controller.running(switch, 2)
    waiting = controller.rank(switch, 0, 2, job="forming").begin_await_ready()
    controller.call("DeleteJob", name="train")
    reply = ranks[0].heartbeat()
    assert reply.state == pb.ENDED
    assert reply.reason == "deleted by an operator"
    eventually(lambda: controller.table("admission") == [], "the entries are gone")
    eventually(lambda: len(controller.call("ListJobs").jobs) == 2, "both jobs are known")
    controller.call("DeleteJob", name="forming")
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result(timeout=DEADLINE)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert caught.value.details() == "job 'forming' will not run: deleted by an operator"


def graver_than_information(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return level and kind of what the controller has logged."""
    return [
        (record.levelno, record.getMessage().split()[0])
        for record in caplog.records
        if record.name == "p4reduce_controller.controller" and record.levelno > logging.INFO
    ]


def test_a_rank_without_heartbeats_is_lost(
    start: Start, switch: SwitchProcess, caplog: pytest.LogCaptureFixture
) -> None:
    controller = start(switch, lease=0.5)
    ranks = controller.running(switch, 2)

    def failed() -> bool:
        return bool(ranks[0].heartbeat().state == pb.FAILED)

    eventually(failed, "the job failed")
    reply = ranks[0].heartbeat()
    assert list(reply.lost) == [1]
    assert reply.reason.startswith("rank 1 (host host1, pid 101) was lost: no heartbeat for 0.")
    assert len(controller.table("admission")) == 2
    ranks[0].leave()
    eventually(lambda: controller.table("admission") == [], "the entries are gone")
    assert graver_than_information(caplog) == [
        (logging.WARNING, "rank-lost"),
        (logging.ERROR, "job-failed"),
    ]


def test_a_lost_switch_is_an_error_in_the_log(
    start: Start, mortal_switch: SwitchProcess, caplog: pytest.LogCaptureFixture
) -> None:
    controller = start(mortal_switch)
    controller.running(mortal_switch, 2)
    mortal_switch.kill()
    eventually(lambda: controller.job("train").state == pb.FAILED, "the job failed")
    assert graver_than_information(caplog) == [
        (logging.ERROR, "switch-lost"),
        (logging.ERROR, "job-failed"),
    ]


# -- Waiting --------------------------------------------------------------------------------------


def test_waiting_in_vain_names_who_is_missing(
    controller: RunningController, switch: SwitchProcess
) -> None:
    ranks = [controller.rank(switch, rank, 4) for rank in (0, 1)]
    ranks[0].hello()
    eventually(lambda: controller.job("train").members[0].state == "attached", "rank 0 is attached")
    message = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: ranks[0].await_ready(0.2))
    assert message == (
        "job 'train' is not ready after 0.2 s: ranks 2-3 have not joined; "
        "rank 1 (host host1, pid 101) joined but its HELLO has not come through the switch: "
        "is its interface connected to a port of the switch?"
    )
    assert [member.rank for member in controller.job("train").members] == [1]
    again = controller.rank(switch, 0, 4)  # the place is free
    assert again.joined.incarnation == ranks[0].joined.incarnation
    assert again.joined.nonce != ranks[0].joined.nonce
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: ranks[0].await_ready(1.0))


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_no_number_of_seconds(
    controller: RunningController, switch: SwitchProcess, timeout: float
) -> None:
    rank = controller.rank(switch, 0, 2)
    request = pb.AwaitReadyRequest(timeout=timeout, **rank.key)
    message = refused(
        grpc.StatusCode.INVALID_ARGUMENT, lambda: controller.call("AwaitReady", request)
    )
    assert "is not a number of seconds" in message


def test_a_client_that_goes_away_is_taken_off(
    controller: RunningController, switch: SwitchProcess
) -> None:
    controller.call("CreateJob", name="train", world_size=2, slots=4)
    rank = controller.rank(switch, 0, 2)
    with ControlClient(controller.address) as other:
        request = pb.AwaitReadyRequest(timeout=60.0, **rank.key)
        waiting = other.stub.AwaitReady.future(request, timeout=60.0)
        assert [member.rank for member in controller.job("train").members] == [0]
        assert not waiting.done()
    eventually(lambda: not controller.job("train").members, "rank 0 is off")
    controller.rank(switch, 0, 2)


@pytest.mark.long
def test_a_thousand_wait_at_once(start: Start, switch: SwitchProcess) -> None:
    # On a busy machine it takes a minute until the last one is there; nobody renews a lease.
    controller = start(switch, lease=600.0)
    ranks = [
        controller.rank(switch, rank, 64, job=f"job{job}")
        for job in range(16)
        for rank in range(64)
    ]
    # The last rank of each job joins and does not wait: all the others wait for it.
    waits = [rank.begin_await_ready(600.0) for rank in ranks if rank.rank < 63]
    # The controller still answers, and still does its work.
    assert len(controller.call("ListJobs").jobs) == 16
    small = controller.running(switch, 2, job="small")
    assert small[0].heartbeat().state == pb.RUNNING
    for job in range(16):
        controller.call("DeleteJob", name=f"job{job}")
    for wait in waits:
        with pytest.raises(grpc.RpcError) as caught:
            wait.result(timeout=DEADLINE)
        # A wait that reached the controller after the deletion is refused as well.
        assert caught.value.code() is grpc.StatusCode.ABORTED


# -- HELLO ----------------------------------------------------------------------------------------


def test_wrong_hellos(controller: RunningController, switch: SwitchProcess) -> None:
    rank = controller.rank(switch, 0, 2)
    rank.send(rank.hello_frame(nonce=rank.joined.nonce ^ 1))
    rank.send(rank.frame(kind=wire.FrameKind.HELLO, job=rank.joined.incarnation + 1))
    rank.send(rank.frame(kind=wire.FrameKind.HELLO, rank=1))
    rank.hello()
    eventually(
        lambda: controller.job("train").members[0].state == "attached", "the right one attached"
    )
    rank.hello(port=2)
    eventually(lambda: controller.call("GetSwitch").hellos_refused == 4, "four are counted")
    [member] = controller.job("train").members
    assert (member.state, member.port) == ("attached", 1)
    assert member.ip == rank.joined.suggested_ip
    assert member.mac == rank.joined.suggested_mac
    events = list_events(controller, "", 20)
    texts = [event.text for event in events if event.kind == "hello-refused"]
    assert "that is not the nonce of rank 0 of job 'train'" in texts[0]
    assert "there is no job with incarnation id" in texts[1]
    assert "rank 1 is not in job 'train'" in texts[2]
    assert "attached from port 1" in texts[3]


def test_a_hello_of_a_former_life(controller: RunningController, switch: SwitchProcess) -> None:
    """Replayed, it binds nobody: neither in the old life nor in the new one."""
    [before] = controller.running(switch, 1)
    used = before.hello_frame()
    before.leave()
    after = controller.rank(switch, 0, 1)
    assert after.joined.incarnation != before.joined.incarnation
    after.send(used)
    eventually(lambda: controller.call("GetSwitch").hellos_refused == 1, "it is refused")
    assert [member.state for member in controller.job("train").members] == ["joined"]


def test_a_flood_of_hellos_drowns_nobody(start: Start, switch: SwitchProcess) -> None:
    """Not even if the switch lets all of them through."""
    controller = start(switch, hello_limit=NO_LIMIT)
    rank = controller.rank(switch, 0, 1)
    wrong = rank.hello_frame(nonce=rank.joined.nonce ^ 1)
    for _ in range(2000):
        rank.send(wrong)
    eventually(lambda: controller.call("GetSwitch").hellos_refused > 100, "many are counted")
    assert len(list_events(controller, "train", 1000)) < 500
    rank.hello()
    waiting = rank.begin_await_ready()
    while not waiting.done():
        rank.hello()
        threading.Event().wait(0.05)
    assert waiting.result().world_size == 1


def test_the_switch_takes_so_many_hellos_from_a_port(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch, hello_limit=HelloLimit(rate=1, burst=5))
    ranks = [controller.rank(switch, rank, 2) for rank in range(2)]
    wrong = ranks[0].hello_frame(nonce=ranks[0].joined.nonce ^ 1)
    for _ in range(1000):
        ranks[0].send(wrong)
    eventually(lambda: controller.count("hello-limited") > 900, "the switch drops most of them")
    ranks[1].hello()  # by another port: once is enough
    eventually(lambda: controller.job("train").members[1].state == "attached", "it attached")
    eventually(
        lambda: (
            controller.count("hello-limited") + controller.call("GetSwitch").hellos_refused == 1000
        ),
        "the controller hears of no other",
    )


def test_random_hellos_attach_nobody(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch, hello_limit=NO_LIMIT)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    rank = controller.rank(switch, 0, 2)
    template = bytearray(rank.hello_frame())
    for number in range(1, 501):
        # Whatever the switch lets through: source addresses and port, rank, job, nonce.
        frame = template.copy()
        for start, stop in ((6, 12), (34, 36), (44, 50), (70, 78)):
            if generator.random() < 0.7:
                frame[start:stop] = generator.randbytes(stop - start)
        frame[77] ^= frame[70:78] == template[70:78]  # never the right nonce
        rank.send(bytes(frame))
        if number % 25 == 0:  # BMv2 queues 64 frames for a port

            def counted(number: int = number) -> bool:
                return bool(controller.call("GetSwitch").hellos_refused == number)

            eventually(counted, f"{number} are counted")
    assert [member.state for member in controller.job("train").members] == ["joined"]


def list_events(controller: RunningController, job: str, recent: int) -> list[pb.Event]:
    """Return past events: one more is made, to know where they end."""
    controller.call("CreateJob", name="mark", world_size=1, slots=1)
    request = pb.WatchEventsRequest(job="", recent=recent)
    events = []
    stream = controller.client.stub.WatchEvents(request, timeout=DEADLINE)
    for event in stream:
        if event.kind == "job-created" and event.job == "mark":
            stream.cancel()
            break
        if job in ("", event.job):
            events.append(event)
    controller.call("DeleteJob", name="mark")
    return events


def test_events_of_one_job_in_order(controller: RunningController) -> None:
    controller.call("CreateJob", name="train", world_size=1, slots=1)
    request = pb.WatchEventsRequest(job="train", recent=20)
    stream = controller.client.stub.WatchEvents(request, timeout=DEADLINE)
    events = [next(stream)]  # so the watch has begun
    controller.call("CreateJob", name="other", world_size=1, slots=1)
    controller.call("DeleteJob", name="other")
    controller.call("DeleteJob", name="train")
    while events[-1].kind != "job-ended":
        events.append(next(stream))
    stream.cancel()
    assert [(event.job, event.kind) for event in events] == [
        ("train", "job-created"),
        ("train", "job-ended"),
    ]


# -- The switch -----------------------------------------------------------------------------------


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(NoSwitchAnswerError, match=r"answers at unix:.*none \(waited 0.3 s\)"):
        RunningController(f"unix:{tmp_path}/none", tmp_path, connect_timeout=0.3)


def test_without_a_switch_the_page_has_no_port(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra web")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(NoSwitchAnswerError):
        RunningController(
            f"unix:{tmp_path}/none", tmp_path, connect_timeout=0.3, http=Http(f"127.0.0.1:{port}")
        )
    with socket.socket() as another:
        another.bind(("127.0.0.1", port))


def test_wrong_device_id(switch: SwitchProcess, tmp_path: Path) -> None:
    with pytest.raises(SwitchError, match=r"refuses (device id 7|the program: .* assign device)"):
        RunningController(switch.address, tmp_path, device_id=7)


@pytest.mark.parametrize(
    ("election_id", "message"),
    [
        (4, "a backup: the primary has election id 5, ours is 4"),
        (5, "a backup: another controller of .* has the same election id 5"),
    ],
)
def test_a_second_controller_takes_over_nothing(
    start: Start, mortal_switch: SwitchProcess, tmp_path: Path, election_id: int, message: str
) -> None:
    first = start(mortal_switch, election_id=5)
    ranks = first.running(mortal_switch, 2)
    with pytest.raises(NotPrimaryError, match=message):
        RunningController(
            mortal_switch.address,
            tmp_path,
            election_id=election_id,
            listen=f"unix:{tmp_path}/second.sock",
            state_directory=tmp_path / "second",
        )
    assert ranks[0].heartbeat().state == pb.RUNNING
    for rank in ranks:
        contribute(rank, 4)
    assert bytes(result(ranks[1]).payload)[:4] == (8).to_bytes(4, "big")


def test_a_controller_that_died_leaves_its_switch_to_the_next(
    start: Start, mortal_switch: SwitchProcess, tmp_path: Path
) -> None:
    """The next one takes the switch over, with the election id that the switch asks for.

    P4Runtime: a switch takes no id below the highest that it has seen. BMv2 forgets them.
    """
    start(mortal_switch, election_id=5).crash()
    options: dict[str, Any] = {"election_id": 4, "state_directory": tmp_path / "second"}
    needed = 5 if mortal_switch.remembers_election_ids else 4
    if needed > 4:
        with pytest.raises(
            NotPrimaryError, match="is no primary now, but an earlier one had election id"
        ):
            RunningController(mortal_switch.address, tmp_path, take_over=False, **options)
    second = start(mortal_switch, **options)
    assert second.call("GetSwitch").election_id == str(needed)
    ranks = second.running(mortal_switch, 2)
    for rank in ranks:
        contribute(rank, 4)
    assert bytes(result(ranks[1]).payload)[:4] == (8).to_bytes(4, "big")
    third: dict[str, Any] = {"election_id": 3, "state_directory": tmp_path / "third"}
    third["listen"] = f"unix:{tmp_path}/third.sock"
    with pytest.raises(NotPrimaryError, match=f"the primary has election id {needed}, ours is 3"):
        RunningController(mortal_switch.address, tmp_path, **third)


def test_a_switch_without_room_refuses_the_job_as_a_whole(
    start: Start, switch: SwitchProcess
) -> None:
    controller = start(switch)
    capacity = next(
        table.size for table in load_program().p4info.tables if table.preamble.name == "admission"
    )
    grant = {
        "worker_bit": 1, "all_workers": 1, "slot_base": 0, "slot_count": 1,
        "group_full": 2, "group_halves": 3,
    }  # fmt: skip
    controller.client_now().write(
        [
            Update(
                Op.INSERT,
                TableRow(
                    "admission",
                    {"ingress_port": 9, "src_ip": number, "job": 1, "rank": 0},
                    "grant",
                    grant,
                ),
            )
            for number in range(capacity - 2)
        ]
    )
    ranks = [controller.rank(switch, rank, 3) for rank in range(3)]
    waits = [rank.begin_await_ready() for rank in ranks]
    for rank in ranks:
        rank.hello()
    for wait in waits:
        with pytest.raises(grpc.RpcError) as caught:
            wait.result(timeout=DEADLINE)
        if switch.names_full_tables:
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            assert caught.value.code() is grpc.StatusCode.ABORTED
        assert "insert admission(" in caught.value.details()
    assert len(controller.table("admission")) == capacity - 2
    assert controller.table("delivery") == []
    assert controller.table("bridge") == []
    assert controller.job("train").state == pb.FAILED
    eventually(lambda: controller.call("GetSwitch").slots_free == 1024, "slots are free again")
    assert len(controller.running(switch, 2, job="smaller")) == 2


def test_stopping_removes_the_entries_and_tells_those_who_wait(
    start: Start, switch: SwitchProcess
) -> None:
    controller = start(switch)
    controller.running(switch, 2)
    waiting = controller.rank(switch, 0, 2, job="forming").begin_await_ready()
    eventually(lambda: len(controller.call("ListJobs").jobs) == 2, "the wait has begun")
    path = Path(controller.address.removeprefix("unix:"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    stopper = threading.Thread(target=controller.stop)
    with ControlClient(controller.address) as client:
        events = client.stub.WatchEvents(pb.WatchEventsRequest(recent=1), timeout=DEADLINE)
        assert next(events).job == "forming"  # it is under way
        stopper.start()
        ended = {event.job for event in events if event.kind == "job-ended"}
        assert ended == {"train", "forming"}
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result(timeout=DEADLINE)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    stopper.join(timeout=DEADLINE)
    assert not path.exists()
    client = SwitchClient.connect(switch.address, 1, 1)
    try:
        assert client.has_pipeline(load_program(), client.pipeline_cookie() or 0)
        assert client.read_table("admission") == []
        assert client.read_table("delivery") == []
        assert [group.group for group in client.read_groups()] == [1]
    finally:
        client.close()


# -- The control API's own address ----------------------------------------------------------------


def test_two_controllers_cannot_have_one_address(
    controller: RunningController, switch: SwitchProcess, tmp_path: Path
) -> None:
    with pytest.raises(ListenError, match="another controller listens at"):
        RunningController(switch.address, tmp_path)
    assert controller.call("GetSwitch").connected  # the switch was not touched


def test_loopback_tcp(start: Start, switch: SwitchProcess, tmp_path: Path) -> None:
    controller = start(switch, listen="127.0.0.1:0")
    port = int(controller.address.rpartition(":")[2])
    assert port > 0
    assert controller.call("GetSwitch").connected
    with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
        RunningController(switch.address, tmp_path, listen=controller.address)


def test_no_controller_there(tmp_path: Path) -> None:
    with (
        ControlClient(f"unix:{tmp_path}/none") as client,
        pytest.raises(NoAnswerError, match="no controller answers at unix:"),
    ):
        client.call(client.stub.GetSwitch, pb.GetSwitchRequest())


# -- Ranks that called different things ------------------------------------------------------------


def compare(rank: Rank, text: str) -> Any:
    request = pb.CompareRequest(calls=[pb.Called(sequence=3, text=text)], **rank.key)
    return rank.controller.client.stub.Compare.future(request, timeout=DEADLINE)


def test_ranks_hear_what_all_called(controller: RunningController, switch: SwitchProcess) -> None:
    ranks = controller.running(switch, 3)
    texts = ["allreduce 3 (5 float32)", "barrier 3", "allreduce 3 (5 float32)"]
    asked = [compare(rank, text) for rank, text in zip(ranks, texts, strict=True)]
    for reply in [each.result() for each in asked]:
        assert [(each.called.text, list(each.ranks)) for each in reply.callings] == [
            (texts[0], [0, 2]),
            (texts[1], [1]),
        ]
        assert {each.called.sequence for each in reply.callings} == {3}
        assert not reply.silent


def test_who_does_not_tell_is_not_waited_for_long(
    controller: RunningController, switch: SwitchProcess
) -> None:
    ranks = controller.running(switch, 3)
    asked = [compare(rank, f"call {rank.rank}") for rank in ranks[:2]]
    for reply in [each.result() for each in asked]:
        assert [list(each.ranks) for each in reply.callings] == [[0], [1]]
        assert reply.silent == [2]
    late = compare(ranks[2], "call 2").result()  # is told at once, of all
    assert [list(each.ranks) for each in late.callings] == [[0], [1], [2]]


def test_only_a_jobs_ranks_compare(controller: RunningController, switch: SwitchProcess) -> None:
    [rank] = controller.running(switch, 1)
    key = rank.key | {"nonce": rank.key["nonce"] ^ 1}
    refused(grpc.StatusCode.PERMISSION_DENIED, lambda: controller.call("Compare", **key))
    key = rank.key | {"incarnation": rank.key["incarnation"] ^ 1}
    refused(grpc.StatusCode.NOT_FOUND, lambda: controller.call("Compare", **key))
