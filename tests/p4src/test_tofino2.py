# SPDX-License-Identifier: Apache-2.0
"""The Tofino 2 program answers frame by frame as v1model's does.

Both get the same random frames of three ranks, in order and late, once and again, and in a tree
those of a parent. v1model's frames have 256 lanes, of which the first 64 count here. Each of them
has room for sums, so that nothing comes in halves.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tofino2_on_v1model
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from scapy.layers.l2 import Ether
from slot_cases import (
    CHILD,
    JOB,
    PARENT,
    PARENT_PORT,
    RANKS,
    SWITCH,
    TAG,
    TOFINO2,
    V1MODEL,
    Form,
    Switch,
)

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "p4src" / "compiled" / "p4reduce.json"
SLOTS = 3
LANES = 64
# Steps are alike for all pairs of lanes. A program with two of them is compiled in half of the
# time, and its faults are found as well.
FEW_LANES = 4
TWO_PAIRS = (
    ("PAYLOAD_BYTES = 256;", f"PAYLOAD_BYTES = {4 * FEW_LANES};"),
    ("#define EACH_PAIR(F) \\\n", "#define EACH_PAIR(F) F(0) F(1)\n#define ALL_PAIRS(F) \\\n"),
)
STICKY = Flag.OVERFLOW | Flag.NONFINITE | Flag.MISMATCH
# Rounds start here: where they wrap as numbers with a sign, and as numbers without one.
STARTS = [5, 2**31 - 6, 2**32 - 6, 2**30 - 6, 3 * 2**30 - 6]

pytestmark = [
    pytest.mark.p4c,
    pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH"),
]

# Each is a fault of some step, and is found.
FAULTS = {
    "a repetition is never known": ("unheard_now = kept & rank;", "unheard_now = 1;"),
    "the opener is still missing": (
        "meta.missing = meta.grant.all_workers & ~meta.grant.worker_bit;",
        "meta.missing = meta.grant.all_workers;",
    ),
    "an answer opens a round": (
        "(_, _):                                       claim_nothing();",
        "(_, _):                                       claim_unsigned();",
    ),
    "an older round takes the slot": (
        "kept.low != hdr.agg.job || kept.high < hdr.agg.round)",
        "kept.low != hdr.agg.job || kept.high != hdr.agg.round)",
    ),
    "rounds without a sign near 0": (
        "(KIND_CONTRIBUTE, 0xc0000000 &&& 0xc0000000): claim_signed();",
        "(KIND_CONTRIBUTE, 0xc0000000 &&& 0xc0000000): claim_unsigned();",
    ),
    "the largest next block": (
        "hdr.agg.next_block < kept.low\n",
        "hdr.agg.next_block > kept.low\n",
    ),
    "the smallest exponent": ("next_exponent > kept.high)", "next_exponent < kept.high)"),
    "only the last one's lanes": ("kept = kept | payload;", "kept = payload;"),
    "only the first one's flags": ("kept = kept | meta.sticky;", "kept = kept;"),
    "sums of the first lane only": (
        "sums.high = sums.high + hdr.words.high##N; \\\n",
        "sums.high = hdr.words.high##N; \\\n",
    ),
    "a parent's answer is not kept": ("kept.high = answer;", ""),
}


@dataclass
class Traffic:
    """Random frames of a job: what three ranks and a parent may send.

    Attributes:
        below: there is a parent.
        rounds: the current one of each slot.
        sent: each rank's contribution to a round of a slot: a repetition is the same frame.
        answers: the parent's result of a round of a slot, once it has given one.
        lanes: of a frame.
    """

    rng: random.Random
    below: bool
    lanes: int
    rounds: list[int]
    sent: dict[tuple[int, int, int], tuple[Aggregation, list[int]]] = field(default_factory=dict)
    answers: dict[tuple[int, int], tuple[Aggregation, list[int]]] = field(default_factory=dict)

    def frame(self) -> tuple[int, wire.Endpoint, Aggregation, list[int]]:
        """Return the next one: the port, who sends it, its header and its lanes, or none."""
        slot = self.rng.randrange(SLOTS)
        if all((rank, slot, self.rounds[slot]) in self.sent for rank in range(3)):
            done = not self.below or (slot, self.rounds[slot]) in self.answers
            if done and self.rng.random() < 0.6:
                self.rounds[slot] = (self.rounds[slot] + 1) % 2**32
        late = self.rng.choice([0] * 12 + [1, 2, 3])
        number = (self.rounds[slot] - late) % 2**32
        if self.below and self.rng.random() < 0.25:
            return PARENT_PORT, PARENT, *self._answer(slot, number)
        rank = self.rng.randrange(3)
        if (rank, slot, number) in self.sent:
            header, lanes = self.sent[rank, slot, number]
            # Whose turn it is to ask a parent is kept in another way: one rank asks here.
            if self.below and rank:
                return self.frame()
            some = [
                Flag(0),
                Flag.RETRANSMISSION,
                Flag.TELL_ALL,
                Flag.RETRANSMISSION | Flag.TELL_ALL,
            ]
            again = header.copy()
            again.flags = int(header.flags) | int(self.rng.choice(some))
            return rank + 1, RANKS[rank], again, lanes
        header, lanes = self._contribution(rank, slot, number)
        self.sent[rank, slot, number] = header, lanes
        return rank + 1, RANKS[rank], header, lanes

    def _contribution(self, rank: int, slot: int, number: int) -> tuple[Aggregation, list[int]]:
        lanes = self._lanes() if self.rng.random() < 0.7 else []
        flags = Flag.PAYLOAD if lanes else Flag.PADDED
        if self.rng.random() < 0.1:
            flags |= self.rng.choice([Flag.NONFINITE, Flag.OVERFLOW])
        header = Aggregation(
            kind=FrameKind.CONTRIBUTE,
            flags=int(flags),
            rank=rank,
            job=JOB,
            slot=slot,
            next_exponent=self.rng.randrange(256),
            round=number,
            block=7,
            next_block=self.rng.choice([2, 3, 4, 2**32 - 1]),
            tag=TAG + (self.rng.random() < 0.03),
        )
        return header, lanes

    def _answer(self, slot: int, number: int) -> tuple[Aggregation, list[int]]:
        fields: dict[str, Any] = {
            "rank": CHILD, "job": JOB, "slot": slot, "round": number, "block": 7, "tag": TAG,
            "next_block": 1, "next_exponent": self.rng.randrange(256), "contributors": 5,
        }  # fmt: skip
        if self.rng.random() < 0.3:
            flags = self.rng.choice([Flag(0), Flag.FOR_ONE, Flag.RETRANSMISSION])
            return Aggregation(kind=FrameKind.STATUS, flags=int(flags), **fields), []
        if (slot, number) not in self.answers:
            said = [self.sent.get((rank, slot, number)) for rank in range(3)]
            if not all(said):
                lanes = self._lanes()
                return Aggregation(kind=FrameKind.RESULT, flags=int(Flag.PAYLOAD), **fields), lanes
            # What was said here is in it.
            flags = Flag(0)
            for one in said:
                assert one is not None
                flags |= Flag(int(one[0].flags)) & STICKY
            if len({one[0].tag for one in said if one is not None}) > 1:
                flags |= Flag.MISMATCH
            lanes = self._lanes() if self.rng.random() < 0.7 and not flags & Flag.MISMATCH else []
            flags |= Flag.PAYLOAD if lanes else Flag(0)
            header = Aggregation(kind=FrameKind.RESULT, flags=int(flags), **fields)
            self.answers[slot, number] = header, lanes
        return self.answers[slot, number]

    def _lanes(self) -> list[int]:
        return [self.rng.randrange(-(2**20), 2**20) for _ in range(self.lanes)]


@dataclass(frozen=True)
class Sent:
    """What leaves a switch: what is the same in both programs."""

    port: int
    addresses: tuple[Any, ...]
    kind: int
    flags: Flag
    fields: tuple[int, ...]
    lanes: tuple[int, ...]


def as_bytes(form: Form, sender: wire.Endpoint, header: Aggregation, lanes: list[int]) -> bytes:
    padded = int(header.flags) & (Flag.PAYLOAD | Flag.PADDED)
    words = b"".join(lane.to_bytes(4, "big", signed=True) for lane in lanes)
    payload = words.ljust(form.payload_bytes, b"\0") if padded else b""
    return wire.template(sender, SWITCH, header.copy(), payload)


def read(port: int, data: bytes, count: int) -> Sent:
    frame = Ether(data)
    ip, udp, header = frame["IP"], frame["UDP"], frame[Aggregation]
    flags = Flag(int(header.flags))
    lanes = bytes(header.payload)[: 4 * count] if flags & Flag.PAYLOAD else b""
    assert udp.len == ip.len - 20 == len(data) - 34
    fields = [
        header.next_block,
        header.next_exponent,
        header.contributors,
        header.block,
        header.tag,
    ]
    if flags & Flag.MISMATCH:
        # Block and tag are then any rank's, and other flags are of no use.
        fields, flags = fields[:3], flags & ~(Flag.OVERFLOW | Flag.NONFINITE)
    return Sent(
        port,
        (frame.dst, frame.src, ip.dst, ip.src, ip.ttl, udp.dport, udp.sport),
        header.version << 4 | header.kind,
        flags & ~Flag.PADDED,  # what goes up has room, or needs none
        (header.rank, header.job, header.slot, header.round, *map(int, fields)),
        tuple(
            int.from_bytes(lanes[at : at + 4], "big", signed=True) for at in range(0, len(lanes), 4)
        ),
    )


def differing(tofino2: bytes, start: int, *, below: bool, lanes: int = LANES) -> str:
    """Say where the programs differ first; empty: nowhere.

    Args:
        tofino2: the program for Tofino 2.
        start: the first round.
        below: whether there is a parent.
        lanes: of a frame of `tofino2`.
    """
    rng = random.Random(start)
    form_of_tofino2 = replace(TOFINO2, payload_bytes=4 * lanes)
    switches = [
        Switch(program, 3, below=below, form=form, slots=SLOTS)
        for program, form in ((COMPILED.read_bytes(), V1MODEL), (tofino2, form_of_tofino2))
    ]
    traffic = Traffic(rng, below, lanes, [start] * SLOTS)
    for number in range(500):
        port, sender, header, words = traffic.frame()
        answers = []
        for switch in switches:
            outcome, out = switch.process(port, as_bytes(switch.form, sender, header, words))
            answers.append((outcome, [read(*each, lanes) for each in out]))
        if answers[0] != answers[1]:
            said = "\n".join(map(str, answers))
            return f"first round {start}, frame {number} on port {port}: {header!r}\n{said}"
    return ""


@pytest.mark.long
@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
@pytest.mark.parametrize("start", STARTS)
def test_both_programs_answer_the_same(start: int, below: bool) -> None:
    assert not differing(tofino2_on_v1model.program(), start, below=below)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_step_is_found(fault: str) -> None:
    broken = tofino2_on_v1model.program(FAULTS[fault], *TWO_PAIRS)
    assert any(
        differing(broken, start, below=below, lanes=FEW_LANES)
        for start in STARTS
        for below in (False, True)
    )


@pytest.mark.long
def test_two_pairs_of_lanes_are_enough() -> None:
    """Without a fault there is no difference either."""
    whole = tofino2_on_v1model.program(*TWO_PAIRS)
    for below in (False, True):
        assert not differing(whole, STARTS[0], below=below, lanes=FEW_LANES)


@pytest.mark.long
def test_the_first_rank_that_asks_the_parent_asks_for_all() -> None:
    switch = Switch(tofino2_on_v1model.program(), 3, below=True, form=TOFINO2)

    def outcome(rank: int, flags: int = 0) -> FrameOutcome:
        header = Aggregation(
            kind=FrameKind.CONTRIBUTE, flags=flags, rank=rank, job=JOB, tag=TAG, round=4
        )
        return switch.process(rank + 1, as_bytes(TOFINO2, RANKS[rank], header, []))[0]

    assert [outcome(rank) for rank in range(3)] == [
        FrameOutcome.ROUND_OPENED,
        FrameOutcome.ROUND_JOINED,
        FrameOutcome.SUMS_SENT_UP,
    ]
    again = Flag.RETRANSMISSION
    assert outcome(1, again) == FrameOutcome.SUMS_SENT_UP_AGAIN
    assert outcome(2, again) == FrameOutcome.STATUS_SENT
    assert outcome(0, again) == FrameOutcome.STATUS_SENT
    assert outcome(1, again) == FrameOutcome.SUMS_SENT_UP_AGAIN
    # For itself: it takes no turn.
    assert outcome(2, again | Flag.TELL_ALL) == FrameOutcome.SUMS_SENT_UP_AGAIN
    assert outcome(0, again) == FrameOutcome.STATUS_SENT
