# SPDX-License-Identifier: Apache-2.0
"""What the differential test is made of, without a switch: a comparison that sees too little would
pass for ever."""

from __future__ import annotations

import pytest
from differential_steps import (
    FIELDS,
    LONGEST,
    SHORTEST,
    JobShape,
    SetField,
    Step,
    correct_checksum,
    correct_lengths,
    play,
    scenes,
    steps,
)
from differential_targets import Account, Sent, SentOut, Written, differences, remaining
from hypothesis import HealthCheck, given, settings
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.p4client import PacketIn
from p4reduce_controller.values.counts import CounterValue
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

HERE = wire.Endpoint("02:00:00:00:00:01", "10.77.0.1", 49152)
THERE = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)


def answer(kind: FrameKind, rank: int, *, round_: int = 0, flags: int = 0) -> bytes:
    header = Aggregation(kind=kind, rank=rank, round=round_, flags=flags)
    return wire.template(THERE, HERE, header)


def result(rank: int, *, round_: int = 0, flags: int = 0) -> bytes:
    return answer(FrameKind.RESULT, rank, round_=round_, flags=flags)


def status(rank: int) -> bytes:
    return answer(FrameKind.STATUS, rank)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_set_and_no_other(name: str) -> None:
    layer, _, field = name.partition(".")
    frame = wire.template(HERE, THERE, Aggregation())
    changed = SetField(name, 1, add=True)(frame)
    was, now = Ether(frame), Ether(changed)
    kinds = {kind.__name__: kind for kind in (Ether, IP, UDP, Aggregation)}
    assert now[kinds[layer]].getfieldval(field) != was[kinds[layer]].getfieldval(field)
    assert SetField(name, -1, add=True)(changed) == frame


def test_repairs_are_as_scapy_has_it() -> None:
    right = wire.template(HERE, THERE, Aggregation(), bytes(1024))
    wrong = SetField("UDP.len", 9)(SetField("IP.len", 7)(SetField("IP.chksum", 1)(right)))
    assert correct_checksum(correct_lengths(wrong)) == right


def accounts(a: list[bytes], b: list[bytes]) -> dict[str, Account]:
    one, other = Account(), Account()
    one.received[2], other.received[2] = a, b
    return {"one": one, "other": other}


def test_copies_of_a_result_may_come_in_any_order() -> None:
    first, second = result(0, flags=64), result(0, flags=128)
    assert differences(accounts([first, second, result(4)], [result(4), second, first])) == []


def test_copies_of_a_status_may_come_in_any_order() -> None:
    # The first two went to rank 0 alone, and look like its copy of the multicast.
    alone = [status(0), status(0)]
    together = [status(0), status(4)]
    assert differences(accounts([*alone, *together], [*alone, *reversed(together)])) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([result(0), result(4)], [result(0)]),
        ([result(0), result(4)], [result(0), result(5)]),
        ([result(0), result(4)], [result(0), result(4)[:-1] + b"\1"]),
        # Not of the same round, or no results at all.
        ([result(0), result(4, round_=1)], [result(4, round_=1), result(0)]),
        ([b"x" * 60, b"y" * 60], [b"y" * 60, b"x" * 60]),
        ([status(0), result(4)], [result(4), status(0)]),
        # A rank's own frames: the repetition comes after the copy.
        (
            [result(0), result(4), result(0, flags=Flag.RETRANSMISSION)],
            [result(0, flags=Flag.RETRANSMISSION), result(4), result(0)],
        ),
    ],
)
def test_other_frames_must_be_equal_and_in_order(a: list[bytes], b: list[bytes]) -> None:
    (found,) = differences(accounts(a, b))
    assert found.startswith("port 2")


def test_counters_and_packet_ins_count_too() -> None:
    one, other = Account(), Account()
    one.outcomes[FrameOutcome.STALE] = CounterValue(1, 78)
    other.outcomes[FrameOutcome.STALE] = CounterValue(1, 77)
    one.rows["delivery(replica=0x1)"] = CounterValue(0, 0)
    one.packet_ins.append(PacketIn(1, result(0)))
    found = differences({"one": one, "other": other})
    assert [text.split(",")[0].split(":")[0] for text in found] == [
        "packet-in",
        "outcomes",
        "rows",
    ]


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=scenes, steps=steps)
def test_sequences_are_possible(jobs: tuple[JobShape, ...], steps: list[Step]) -> None:
    """Each change is to an entry that is there, or not there, and each frame has a size that the
    kernel takes: else a sequence would fail for other reasons than the switches'."""
    before, events = play(jobs, steps)
    remaining(before, events)  # a KeyError: deleted though not there
    for event in events:
        if isinstance(event, Sent):
            assert SHORTEST <= len(event.frame) <= LONGEST
        elif isinstance(event, SentOut):
            assert len(event.frame) <= LONGEST
        else:
            assert isinstance(event, Written)
