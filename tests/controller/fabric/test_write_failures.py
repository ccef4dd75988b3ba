# SPDX-License-Identifier: Apache-2.0
"""Which update of a Write failed: P4Runtime specification 1.4, section 12.3."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2
from p4reduce_controller.fabric.p4client import WriteRefusedError, write_failures
from p4reduce_controller.fabric.schema import MulticastGroup, Op, Update

UPDATES = [Update(Op.INSERT, MulticastGroup(number)) for number in range(4)]


class Refusal(grpc.RpcError):
    """What gRPC raises for a call that the server refused."""

    def __init__(self, details: list[tuple[int, str]] | None) -> None:
        self.status = status_pb2.Status(code=code_pb2.UNKNOWN)
        for code, message in details or []:
            error = p4runtime_pb2.Error(canonical_code=code, message=message)
            self.status.details.add().Pack(error)
        self.has_details = details is not None

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "a server's words"

    def trailing_metadata(self) -> list[tuple[str, bytes]]:
        other = [("other", b"x")]
        if not self.has_details:
            return other
        return [*other, ("grpc-status-details-bin", self.status.SerializeToString())]


def test_an_update_that_was_done_before_one_that_failed() -> None:
    refusal = Refusal(
        [
            (code_pb2.OK, ""),
            (code_pb2.ALREADY_EXISTS, "group 1"),
            (code_pb2.OK, ""),
            (code_pb2.RESOURCE_EXHAUSTED, "no room"),
        ]
    )
    failures = write_failures(refusal, UPDATES)
    assert [failure.update for failure in failures] == [UPDATES[1], UPDATES[3]]
    assert str(failures[0]) == ("insert multicast group 1 of 0 replicas: ALREADY_EXISTS (group 1)")
    assert WriteRefusedError(failures, []).full
    assert not WriteRefusedError(failures[:1], []).full


@pytest.mark.parametrize("details", [None, [(code_pb2.OK, "")]], ids=["none", "too few"])
def test_without_details_all_updates_count_as_failed(details: list[tuple[int, str]] | None) -> None:
    failures = write_failures(Refusal(details), UPDATES)
    assert [failure.update for failure in failures] == UPDATES
    assert {failure.message for failure in failures} == {"a server's words"}


def test_many_failures_do_not_make_a_message_of_many_lines() -> None:
    failures = write_failures(Refusal(None), UPDATES)
    message = str(WriteRefusedError(failures, []))
    assert message.count("a server's words") == 3
    assert message.endswith(", and 1 more")
