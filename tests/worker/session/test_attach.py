# SPDX-License-Identifier: Apache-2.0
"""A rank waits for the others to attach, and loses its way to the switch meanwhile.

The controller and the transports are stood in for; the test decides when each of them does what.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.environment import Placement
from p4reduce.errors import SwitchUnreachableError
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.wire.format import Endpoint

HERE = Endpoint("02:00:00:00:00:01", "10.77.0.1", 1)
SWITCH = Endpoint("02:00:00:00:00:02", "10.77.0.2", 2)
MEMBER = Member(7, 0, 2, 99, HERE, SWITCH)


class Way:
    """A share of a port that breaks after that many looks at it; None: it does not."""

    endpoint = None

    def __init__(self, looks: int | None = None, *, lasting: bool = False) -> None:
        self.looks = looks
        self.lasting = lasting
        self.hellos = 0
        self.closed = False

    def send(self, frame: Any) -> None:
        self.hellos += 1
        assert len(frame) == 1

    def check(self) -> None:
        if self.looks == 0:
            raise SwitchUnreachableError("the switch hung up", lasting=self.lasting)
        if self.looks is not None:
            self.looks -= 1

    def close(self) -> None:
        self.closed = True


class Waiting:
    """The call AwaitReady, over when a transport that holds has sent a HELLO."""

    def __init__(self, last: Way | None) -> None:
        self.last = last
        self.cancelled = False

    def done(self) -> bool:
        return self.last is not None and self.last.hellos > 0

    def result(self, timeout: float = 0.0) -> pb.Ready:
        if not self.done():
            raise grpc.FutureTimeoutError
        return pb.Ready(world_size=2)

    def cancel(self) -> None:
        self.cancelled = not self.done()


def attach(call: Waiting, way: Way, reopen: Any) -> JoinedJob:
    """Attach by a way, and by what `reopen` returns where it breaks."""
    stub = SimpleNamespace(AwaitReady=SimpleNamespace(future=lambda request, timeout: call))
    client = SimpleNamespace(
        stub=stub, call=lambda method, request, timeout: method(request, timeout=timeout)
    )
    job_client = JobClient(cast(Any, client), Placement(0, 2, 0), "test")
    return job_client.attach(MEMBER, cast(Any, way), 30.0, lambda: None, reopen)


def test_the_place_is_kept_and_another_way_is_opened() -> None:
    """To give it up would fail a job that is being put on the switch, as if the rank were lost."""
    first, last = Way(looks=3), Way()
    call = Waiting(last)
    tries: list[Way | None] = [None, None, last]

    def reopen() -> Any:
        assert first.closed
        assert not call.cancelled
        if (way := tries.pop(0)) is None:
            raise SwitchUnreachableError("nobody listens there")
        return way

    joined = attach(call, first, reopen)
    assert joined.transport is cast(Any, last)
    assert joined.ready.world_size == 2
    assert not last.closed
    assert first.hellos > 0
    assert last.hellos == 1
    assert not tries
    assert not call.cancelled


def test_where_there_is_no_other_way_the_call_ends() -> None:
    call, way = Waiting(None), Way(looks=1, lasting=True)
    with pytest.raises(SwitchUnreachableError, match="hung up"):
        attach(call, way, Way)
    assert call.cancelled
    assert way.closed


def test_a_way_that_is_broken_when_all_are_there_is_told() -> None:
    last = Way()
    call = Waiting(last)

    def reopen() -> Any:
        last.hellos = 1  # the controller has heard this rank before its way broke
        raise SwitchUnreachableError("nobody listens there")

    with pytest.raises(SwitchUnreachableError, match="hung up"):
        attach(call, Way(looks=2), reopen)
