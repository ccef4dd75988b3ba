# SPDX-License-Identifier: Apache-2.0
"""Requests while the data plane does not answer, as when a debugger holds a packet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import INSERT, MODIFY, BatchError, Client, config
from switch_peer import DEADLINE_S

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

LARGE_STATUS = (("grpc.max_metadata_size", 4 << 20),)  # as the specification recommends
SOON_S = 0.2  # to wait for a data plane that cannot answer


def group(number: int) -> Any:
    return p4rt.MulticastGroupEntry(multicast_group_id=number)


class HeldAt:
    """Holds the data plane before a number of its next requests."""

    def __init__(self, target: Target, patch: pytest.MonkeyPatch, number: int) -> None:
        self._target = target
        self._left = number
        self._run = target.dataplane.run
        self.is_held = threading.Event()
        self.release = threading.Event()
        self.patience = SOON_S
        patch.setattr(target.dataplane, "run", self.run)

    def run(self, action: Any, timeout: float = DEADLINE_S) -> Any:
        self._left -= 1
        if self._left == 0:
            self._target.dataplane.run = self._run  # type: ignore[method-assign]
            self.release = self._target.hold()
            self._target.dataplane.run = self.run  # type: ignore[method-assign]
            self.is_held.set()
        held = self.is_held.is_set() and not self.release.is_set()
        return self._run(action, self.patience if held else DEADLINE_S)


@pytest.mark.parametrize("turns", [1, 4])
def test_a_write_says_what_was_done(
    target: Target, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    client = target.client(options=LARGE_STATUS)
    client.become_primary()
    client.set_config(config("p4rt_features"))
    updates = [(INSERT, group(number)) for number in range(1, 1501)]
    updates[1400] = (INSERT, group(0))
    held = HeldAt(target, monkeypatch, turns)
    with pytest.raises(BatchError) as caught:
        client.write(*updates)
    held.release.set()
    codes = caught.value.codes
    done = codes.index("UNAVAILABLE")
    assert codes[:done] == ["OK"] * done
    assert codes[1400] == "INVALID_ARGUMENT"  # nobody has to wait to say so
    assert set(codes[done:1400] + codes[1401:]) == {"UNAVAILABLE"}
    assert len(codes) == 1500
    assert [g.multicast_group_id for g in client.read(group(0))] == [*range(1, done + 1)]
    assert bool(done) == (turns > 1)
    # What was not done can be sent again.
    client.write(*(u for u, code in zip(updates, codes, strict=True) if code == "UNAVAILABLE"))
    assert len(client.read(group(0))) == 1499


def test_a_read_says_that_there_is_no_answer(
    features: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldAt(target, monkeypatch, 2)
    with pytest.raises(grpc.RpcError) as caught:
        features.read(*(p4rt.CounterEntry() for _ in range(100)))
    held.release.set()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the data plane did not answer" in caught.value.details()


def test_an_election_id_is_free_when_its_stream_has_ended(
    features: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a request waits for the data plane, which may be for longer than any deadline."""
    backup = target.client(election_id=0)
    backup.arbitrate()
    backup.next()
    held = HeldAt(target, monkeypatch, 1)
    held.patience = DEADLINE_S
    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(features.write, (INSERT, group(7)))
        assert held.is_held.wait(DEADLINE_S)
        features.end_sending()
        assert features.next() is grpc.StatusCode.OK
        assert backup.next().arbitration.status.code == code_pb2.NOT_FOUND

        again = target.client(election_id=features.election_id)
        again.arbitrate()
        # The others are told at once, the new primary when the last one's write has ended.
        assert backup.next().arbitration.status.code == code_pb2.ALREADY_EXISTS
        assert not writing.done()
        held.release.set()
        writing.result(DEADLINE_S)
        assert again.next().arbitration.status.code == code_pb2.OK
    again.write((MODIFY, group(7)))


def test_streams_come_and_go_while_nothing_is_answered(
    features: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldAt(target, monkeypatch, 1)
    held.patience = DEADLINE_S
    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(features.read, p4rt.CounterEntry())
        assert held.is_held.wait(DEADLINE_S)
        for _ in range(20):  # more than may be open at a time
            client = target.client(election_id=3)
            client.become_primary()
            client.end_sending()
            assert client.next() is grpc.StatusCode.OK
        held.release.set()
        reading.result(DEADLINE_S)


def test_a_primary_that_changes_its_mind_while_it_waits(
    features: Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that waits leaves, and a third becomes primary."""
    held = HeldAt(target, monkeypatch, 1)
    held.patience = DEADLINE_S
    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(features.write, (INSERT, group(7)))
        assert held.is_held.wait(DEADLINE_S)
        second = target.client(election_id=5)
        second.arbitrate()
        assert features.next().arbitration.status.code == code_pb2.ALREADY_EXISTS
        third = target.client(election_id=6)
        third.arbitrate()
        assert features.next().arbitration.election_id.low == 6
        update = second.next().arbitration  # it never was primary
        assert (update.status.code, update.election_id.low) == (code_pb2.ALREADY_EXISTS, 6)
        held.release.set()
        writing.result(DEADLINE_S)
        assert third.next().arbitration.status.code == code_pb2.OK
    third.write((MODIFY, group(7)))
    with pytest.raises(grpc.RpcError, match="election id 5 is not the primary's"):
        second.write((MODIFY, group(7)))
