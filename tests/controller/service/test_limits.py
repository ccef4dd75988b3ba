# SPDX-License-Identifier: Apache-2.0
"""What the control API takes from a client that is broken or hostile, and that it goes on after."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from controller_harness import DEADLINE, RunningController, SwitchProcess, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce_common.grpc_channels import open_channel
from p4reduce_controller.events import MAX_WATCHERS
from p4reduce_controller.jobs.job import Job, JobMember
from p4reduce_controller.jobs.job_states import Stage
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.service import limits

METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["Control"].methods]
STREAMING = "WatchEvents"
# What a request may be answered with. UNKNOWN is gRPC's for an exception that nobody expected.
EXPECTED = frozenset(grpc.StatusCode) - {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
}

Call = Callable[[str, bytes], grpc.StatusCode]


@pytest.fixture
def alive(controller: RunningController, switch: SwitchProcess) -> Iterator[RunningController]:
    """A controller with a job, which works after the test as before."""
    ranks = controller.running(switch, 2, job="bystander")
    yield controller
    assert ranks[0].heartbeat().state == pb.RUNNING
    for rank in ranks:
        rank.leave()
    controller.running(switch, 2, job="newcomer")


@pytest.fixture
def raw(alive: RunningController) -> Iterator[Call]:
    """Calls a method with any bytes for its request; returns the status."""
    with open_channel(alive.address) as channel:

        def call(method: str, request: bytes) -> grpc.StatusCode:
            path = f"/p4reduce.control.Control/{method}"
            try:
                if method == STREAMING:
                    stream = channel.unary_stream(path)(request, timeout=0.05)
                    for _ in stream:
                        pass
                else:
                    channel.unary_unary(path)(request, timeout=DEADLINE)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        yield call


# -- Size ----------------------------------------------------------------------------------------


def test_an_oversized_request(raw: Call) -> None:
    for size in (limits.MAX_REQUEST_BYTES, 8 << 20):
        request = pb.CreateJobRequest(name="x" * size, world_size=1).SerializeToString()
        assert raw("CreateJob", request) is grpc.StatusCode.RESOURCE_EXHAUSTED
    within = pb.CreateJobRequest(name="x" * 1000, world_size=1).SerializeToString()
    assert raw("CreateJob", within) is grpc.StatusCode.INVALID_ARGUMENT


def test_long_texts_are_not_kept(alive: RunningController) -> None:
    alive.call("Join", job="long", rank=0, world_size=1, host="h\n" * 9000, ring_address="a" * 9000)
    [member] = alive.job("long").members
    assert len(member.host) <= 100
    assert "\n" not in member.host


# -- Number --------------------------------------------------------------------------------------


def test_one_rank_waits_so_often(alive: RunningController, switch: SwitchProcess) -> None:
    rank = alive.rank(switch, 0, 2, job="waiting")
    waits = [rank.begin_await_ready() for _ in range(limits.MAX_WAITS_A_RANK + 3)]

    def refused() -> list[grpc.StatusCode]:
        return [wait.code() for wait in waits if wait.done()]

    eventually(lambda: len(refused()) == 3, "those that are too many are refused")
    assert set(refused()) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for wait in waits:
        wait.cancel()


def test_so_many_watch(alive: RunningController) -> None:
    request = pb.WatchEventsRequest(recent=1)
    streams = [alive.client.stub.WatchEvents(request) for _ in range(MAX_WATCHERS)]
    for stream in streams:
        next(stream)  # it is being served
    with pytest.raises(ControlError, match=f"{MAX_WATCHERS} clients watch already"):
        next(alive.client.watch(recent=1))
    for stream in streams:
        stream.cancel()
    eventually(lambda: _watches(alive), "there is room again")


def _watches(controller: RunningController) -> bool:
    try:
        return bool(next(controller.client.watch(recent=1)))
    except ControlError:
        return False


def forming(limit: limits.PeerLimits, peer: str, jobs: int, ranks: int) -> list[Job]:
    made = []
    for number in range(jobs):
        job = Job(f"job{number}", number + 1, ranks, range(1), 0.0, False, b"")
        for rank in range(ranks):
            job.members[rank] = JobMember(rank, 0, "", 0, 1, 0.0)
            limit.joined(peer, job, job.members[rank])
        made.append(job)
    return made


def test_a_peer_has_so_many_jobs_in_the_making() -> None:
    limit = limits.PeerLimits()
    made = forming(limit, "unix", limits.MAX_FORMING_JOBS_A_PEER, 2)
    limit.check("unix", new_job=False)
    limit.check("ipv4:10.0.0.1", new_job=True)
    with pytest.raises(JobRefusedError, match="still forming") as caught:
        limit.check("unix", new_job=True)
    assert caught.value.cause is Cause.EXHAUSTED
    made[0].stage = Stage.RUNNING
    limit.check("unix", new_job=True)


def test_a_peer_has_so_many_ranks_in_the_making() -> None:
    limit = limits.PeerLimits()
    ranks = 64
    made = forming(limit, "unix", limits.MAX_FORMING_RANKS_A_PEER // ranks, ranks)
    with pytest.raises(JobRefusedError, match="have joined"):
        limit.check("unix", new_job=False)
    del made[0].members[5]  # it left, or its lease ran out
    limit.check("unix", new_job=False)


def test_jobs_that_are_gone_are_not_remembered() -> None:
    limit = limits.PeerLimits()
    made = forming(limit, "unix", 3, 3)
    jobs = [weakref.ref(job) for job in made]
    while made:
        made.pop().stage = Stage.ENDED
    limit.check("unix", new_job=True)
    gc.collect()
    assert [job() for job in jobs] == [None] * 3


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "ipv4:10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "ipv6:::1"),
        ("ipv6:[fd00::5]:5000", "ipv6:fd00::5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "ipv6:fe80::1%eth0"),
        ("unix:", "unix"),
        ("unix:/tmp/x", "unix"),
    ],
)
def test_a_hosts_connections_are_one_peer(peer: str, host: str) -> None:
    assert limits.peer_host(peer) == host


# -- Nonsense ------------------------------------------------------------------------------------

TEXTS = (
    "",
    "bystander",
    "x",
    "é" * 60,
    "a\0b",
    "../../etc/passwd",
    "\u202e",
    "n" * 100,
    "n" * 5000,
)
NUMBERS = (0, 1, 2, 63, 64, 65, 1024, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (*NUMBERS, 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, -1.0, 1e-9, 0.01, 1e300, float("inf"), float("-inf"), float("nan"))


def hostile(rng: random.Random, message: Any) -> Any:
    """Fill all fields of a request with what nobody sends."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.1:
            continue
        if hasattr(several := getattr(message, field.name), "extend"):
            for _ in range(rng.choice((1, 2, 40))):
                if field.message_type is not None:
                    hostile(rng, several.add())
                else:
                    text = field.type == field.TYPE_STRING
                    several.append(rng.choice(TEXTS if text else NUMBERS))
        elif field.message_type is not None:
            hostile(rng, getattr(message, field.name)).SetInParent()
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, rng.choice(TEXTS))
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, rng.randbytes(rng.choice((0, 1, 1000))))
        elif field.type == field.TYPE_DOUBLE:
            setattr(message, field.name, rng.choice(FLOATS))
        else:
            wide = field.type in (field.TYPE_UINT64, field.TYPE_FIXED64)
            setattr(message, field.name, rng.choice(LARGE if wide else NUMBERS))
    # A wait that is allowed, and long, would only be long.
    if getattr(message, "timeout", 0) > 1:
        message.timeout = 0.01
    return message


@pytest.mark.fuzz
def test_hostile_values(raw: Call, fuzz: Any) -> None:
    service = pb.DESCRIPTOR.services_by_name["Control"]
    for number in fuzz.rounds(40):
        for method in METHODS:
            if method == STREAMING and number % 8:
                continue  # each takes as long as we wait
            request = getattr(pb, service.methods_by_name[method].input_type.name)
            message = hostile(fuzz.random, request())
            if method == "DeleteJob" and message.name == "bystander":
                continue
            assert raw(method, message.SerializeToString()) in EXPECTED, f"{method}({message})"


@pytest.mark.fuzz
def test_noise(raw: Call, fuzz: Any) -> None:
    for number in fuzz.rounds(20):
        for method in METHODS:
            if method == STREAMING and number % 8:
                continue
            noise = fuzz.random.randbytes(fuzz.random.choice((1, 10, 100, 1000)))
            assert raw(method, noise) in EXPECTED, f"{method}: {noise!r}"
    assert raw("NoSuchMethod", b"") is grpc.StatusCode.UNIMPLEMENTED
