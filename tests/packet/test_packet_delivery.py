# SPDX-License-Identifier: Apache-2.0
"""Egress: each copy of a result made one rank's own, and the growth that BMv2 allows."""

from __future__ import annotations

from typing import Any

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.schema import Op, TableRow, Update
from packet_jobs import Job, Jobs, constant
from packet_testbed import PORTS, SWITCH, Seen, Testbed
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

HEADROOM = 512  # bytes by which BMv2 lets a frame grow


def test_each_copy_is_addressed(bed: Testbed, jobs: Jobs) -> None:
    """Field by field, without the help of the other tests' expected frames."""
    job = jobs(4)
    for rank in range(3):
        bed.exchange([job.send(rank, constant(1))])
    seen = bed.exchange([job.send(3, constant(1))])
    for rank in job.ranks:
        (frame,) = seen.received[rank.port]
        packet = Ether(frame)
        ip, udp, agg = packet[IP], packet[UDP], packet[Aggregation]
        assert (packet.src, packet.dst) == (SWITCH.mac, rank.at.mac)
        assert (ip.src, ip.dst, ip.ttl, ip.len) == (SWITCH.ip, rank.at.ip, 64, 1088)
        assert (udp.sport, udp.dport) == (wire.AGGREGATION_PORT, rank.at.udp_port)
        assert (udp.len, udp.chksum) == (1068, 0)
        assert (agg.kind, agg.rank, agg.job) == (FrameKind.RESULT, rank.number, job.id)
        ones = sum(int.from_bytes(frame[i : i + 2], "big") for i in range(14, 34, 2))
        assert (ones & 0xFFFF) + (ones >> 16) == 0xFFFF, "the IPv4 checksum is wrong"


def test_copies_to_ranks_that_share_a_port(bed: Testbed, jobs: Jobs) -> None:
    """One for each, not one for the port."""
    job = jobs(8)
    for rank in range(7):
        bed.exchange([job.send(rank)])
    last = job.send(7)
    results = job.results(last)
    assert [len(results[port]) for port in PORTS] == [2, 2, 2, 2]
    bed.expect([last], results, FrameOutcome.ROUND_COMPLETED)


def test_what_each_rank_got_is_counted(bed: Testbed, jobs: Jobs) -> None:
    """By the replica that was made for it: whole results, and halves."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    bed.exchange([job.send(1, constant(1))])
    bed.exchange([job.send(0, constant(1), round=1)])
    bed.exchange([job.send(1, round=1)])
    bed.exchange([job.send(1, round=1, flags=Flag.PADDED)])
    for replicas in job.replicas:
        counted = {
            action: bed.counts("delivery", replica=replica).frames
            for action, replica in replicas.items()
        }
        assert counted == {"whole": 1, "first_half": 1, "second_half": 1}


def test_a_rank_that_left_between(bed: Testbed, jobs: Jobs) -> None:
    """Its replica is still in the group, its address is gone: nothing goes to nobody, and the
    others get theirs."""
    job = jobs(3)
    bed.exchange([job.send(0, constant(1))])
    bed.exchange([job.send(1, constant(1))])
    gone = TableRow("delivery", {"replica": job.replicas[1]["whole"]})
    bed.remove([gone])
    jobs.forget(
        [row for row in job.rows() if isinstance(row, TableRow) and row.match == gone.match]
    )
    last = job.send(2, constant(1))
    wanted = job.results(last, constant(3))
    wanted[job.ranks[1].port] = []
    bed.expect([last], wanted, FrameOutcome.ROUND_COMPLETED)


def test_the_group_is_what_counts(bed: Testbed, jobs: Jobs) -> None:
    """A rank taken out of the group gets nothing, though it is still admitted."""
    job = jobs(2)
    whole = job.group(job.group_full, "whole")
    fewer = type(whole)(whole.group, whole.replicas[:1])
    bed.client.write([Update(Op.MODIFY, fewer)])
    bed.exchange([job.send(0, constant(1))])
    last = job.send(1, constant(1))
    wanted = job.results(last, constant(2))
    wanted[job.ranks[1].port] = []
    bed.expect([last], wanted, FrameOutcome.ROUND_COMPLETED)


def test_moved_rank(bed: Testbed, jobs: Jobs) -> None:
    """An entry that the controller changes counts for the very next result."""
    job = jobs(2)
    row = next(
        row
        for row in job.rows()
        if isinstance(row, TableRow) and row.match == {"replica": job.replicas[0]["whole"]}
    )
    params = {**row.params, "udp_port": 7, "mac": 0x020000000777}
    bed.client.write([Update(Op.MODIFY, TableRow("delivery", row.match, "whole", params))])
    bed.exchange([job.send(0)])
    seen = bed.exchange([job.send(1)])
    (frame,) = seen.received[job.ranks[0].port]
    assert (Ether(frame).dst, Ether(frame)[UDP].dport) == ("02:00:00:00:07:77", 7)


# -- Growth --------------------------------------------------------------------------------------


def grown(sent: bytes, seen: Seen) -> int:
    """By how many bytes the largest frame that came out is larger than the one that went in."""
    return max((len(frame) - len(sent) for frame in seen.frames), default=0)


ANY_FLAGS = [0, 0x04, 0x08, 0x10, 0x40, 0x80, 0xC0, 0xDE]


@pytest.mark.parametrize("flags", ANY_FLAGS, ids=hex)
def test_nothing_grows_too_far(bed: Testbed, jobs: Jobs, flags: int) -> None:
    """BMv2 aborts where a frame grows by more than 512 bytes. So: every form of frame, with all
    kinds of flags, in every state of a round that has lanes."""
    job = jobs(2)
    turn = 0

    def forms(rank: int) -> list[tuple[int, bytes]]:
        common: dict[str, Any] = {"round": turn, "next_block": 0}
        return [
            job.send(rank, flags=flags, **common),
            job.send(rank, flags=flags | Flag.PADDED, **common),
            job.send(rank, constant(1), flags=flags, **common),
        ]

    for opening in range(3):
        for completing in range(3):
            turn += 1
            steps = [
                forms(0)[opening],
                *forms(0),
                forms(1)[completing],
                *forms(0),
                *forms(1),
            ]
            for port, frame in steps:
                seen = bed.exchange([(port, frame)])
                assert grown(frame, seen) <= HEADROOM
    check_alive(bed, job, turn + 1)


def test_a_halves_result_to_the_hilt(bed: Testbed, jobs: Jobs) -> None:
    """From 78 bytes to 590, exactly what is allowed, for all ranks and many times on end."""
    job = jobs(4)
    for turn in range(20):
        bed.exchange([job.send(0, constant(turn), round=turn)])
        bed.exchange([job.send(1, round=turn)])
        bed.exchange([job.send(2, round=turn)])
        last = job.send(3, round=turn)
        bed.expect([last], job.halves(last, constant(turn)), FrameOutcome.ROUND_COMPLETED_HALVES)


def test_unpadded_duplicates_of_a_round_with_lanes(bed: Testbed, jobs: Jobs) -> None:
    """The network's copies of frames without lanes, all at once; none may be answered by lanes."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    last = job.send(1)
    bed.expect([last], job.halves(last, constant(1)), FrameOutcome.ROUND_COMPLETED_HALVES)
    status = job.status(last, 1, 0b11)
    bed.expect([last] * 10, {last[0]: status[last[0]] * 10}, FrameOutcome.STATUS_SENT)


def check_alive(bed: Testbed, job: Job, turn: int) -> None:
    """A round goes through."""
    bed.expect([job.send(0, constant(1), round=turn)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), round=turn)
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)
