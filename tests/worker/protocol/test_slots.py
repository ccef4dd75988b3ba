# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the protocol, frame by frame, against answers written down here."""

from __future__ import annotations

import gc
import math
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from connected import Connected, pair_of_ends
from p4reduce.errors import (
    ClosedError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.handle import Handle
from p4reduce.protocol.slots import FEW, SlotMachine
from p4reduce.session.engine import Engine
from p4reduce.session.port import WorkerPort
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.transport import FaultPlan, FaultyTransport, Transport
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import NO_BLOCK, Flag, FrameKind
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack, unpack
from scapy.layers.l2 import Ether
from scapy.packet import Packet

JOB, RANK, WORLD = 77, 1, 2
HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
EVERYONE = (1 << WORLD) - 1
ONE = 127  # the biased exponent of 1.0
SCALE = 2.0 ** (30 - 1)  # with world size 2: 2^30 / 2^1, for numbers from 1 to below 2


def allreduce(
    array: npt.NDArray[Any],
    out: npt.NDArray[Any],
    op: Operation = Operation.SUM,
    *,
    sequence: int = 0,
    slots: int = 4,
    timeout: float = 30.0,
    precision: str | None = None,
    seed: int | None = None,
) -> Collective:
    plan = plans.allreduce(array, op, None, out, precision, seed, world_size=WORLD)
    return Collective(
        plan.call,
        plan.source,
        plan.target,
        sequence=sequence,
        slots=slots,
        timeout=timeout,
        lane_format=plan.lane_format,
        noise=plan.noise(RANK, sequence),
    )


class Script:
    """A machine, and the other side of it."""

    def __init__(self, slots: int = 4, rank: int = RANK, few: int = FEW) -> None:
        self.slots = slots
        self.machine = SlotMachine(
            slots=slots, job=JOB, rank=rank, world_size=WORLD, here=HERE, switch=SWITCH, few=few
        )
        self.now = 0.0
        self.sequence = 0
        self.start = time.monotonic()

    def submit(
        self, array: npt.NDArray[Any], op: Operation = Operation.SUM, **options: Any
    ) -> Handle[npt.NDArray[Any]]:
        out = np.full_like(array, 99)
        collective = allreduce(array, out, op, sequence=self.sequence, slots=self.slots, **options)
        self.sequence += 1
        self.machine.submit(collective)
        return Handle([collective], lambda: out)

    def sent(self) -> list[Packet]:
        """The frames that the machine wants sent, dissected."""
        rows = self.machine.take_sendable()
        self.machine.sent(rows, self.now)
        frames = [self.machine.outgoing.get(row) for row in rows]
        for frame in frames:
            assert len(frame) in (wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES)
        return [Ether(frame)[Aggregation] for frame in frames]

    def receive(self, *frames: bytes) -> list[Packet]:
        buffer = FrameBuffer(len(frames))
        for row, frame in enumerate(frames):
            buffer.put(row, frame)
        self.machine.receive(buffer, len(frames), self.now)
        return self.sent()

    def expire(self, now: float) -> list[Packet]:
        self.now = now
        self.machine.expire(now)
        return self.sent()


def answer(to: Packet, lanes: Any = None, **changes: Any) -> bytes:
    """A RESULT for the round of a contribution, by default the one that ends the stripe."""
    fields: dict[str, Any] = {
        name: getattr(to, name) for name in ("rank", "job", "slot", "format", "round", "block")
    }
    fields |= {"kind": FrameKind.RESULT, "tag": to.tag, "contributors": EVERYONE, "flags": 0}
    fields |= {"next_block": NO_BLOCK, "next_exponent": 0} | changes
    payload = b""
    if lanes is not None:
        fields["flags"] |= Flag.PAYLOAD
        lane_format = wire.Format(fields["format"])
        numbers = np.asarray(lanes).astype(lane_type(lane_format))
        payload = pack(numbers, lane_format).tobytes()
    return wire.template(SWITCH, HERE, Aggregation(**fields), payload)


def lanes_of(packet: Packet) -> npt.NDArray[np.int64]:
    payload = np.frombuffer(bytes(packet.payload), np.uint8)
    return unpack(payload, wire.Format(packet.format)).astype(np.int64)


# -- A stripe ------------------------------------------------------------------------------------


def test_a_stripe_from_opening_to_end() -> None:
    script = Script()
    collective = script.submit(np.full(256, 1.5, np.float32))
    (opening,) = script.sent()
    assert (opening.kind, opening.rank, opening.job) == (FrameKind.CONTRIBUTE, RANK, JOB)
    assert (opening.slot, opening.round, opening.flags) == (0, 0, 0)
    assert (opening.block, opening.next_block, opening.next_exponent) == (NO_BLOCK, 0, ONE)
    assert len(opening) == wire.AGG_BYTES

    (data,) = script.receive(answer(opening, next_block=0, next_exponent=ONE))
    assert (data.round, data.block, data.next_block, data.flags) == (1, 0, NO_BLOCK, "PAYLOAD")
    assert (data.tag, data.next_exponent) == (opening.tag, 0)
    assert np.array_equal(lanes_of(data), np.full(256, 1.5 * SCALE))

    assert script.receive(answer(data, np.full(256, 2.5 * SCALE))) == []
    assert collective.done()
    assert np.array_equal(collective.wait(0), np.full(256, 2.5, np.float32))


def test_the_agreed_exponent_is_used_not_the_own_one() -> None:
    script = Script()
    collective = script.submit(np.full(256, 1.0, np.float32))
    (opening,) = script.sent()
    (data,) = script.receive(answer(opening, next_block=0, next_exponent=ONE + 3))
    assert np.array_equal(lanes_of(data), np.full(256, SCALE / 8))
    script.receive(answer(data, np.full(256, 2 * SCALE)))
    assert np.array_equal(collective.wait(0), np.full(256, 16, np.float32))


def test_blocks_of_others_are_answered_without_payload() -> None:
    script = Script(slots=1)
    array = np.zeros(4 * 256, np.int32)
    array[2 * 256 :] = 5
    collective = script.submit(array)
    (opening,) = script.sent()
    assert opening.next_block == 2
    (empty,) = script.receive(answer(opening, next_block=0))
    assert (empty.block, empty.next_block, empty.flags) == (0, 2, 0)
    assert len(empty) == wire.AGG_BYTES
    (data,) = script.receive(answer(empty, np.full(256, 3), next_block=2))
    assert (data.block, data.next_block, data.flags) == (2, 3, "PAYLOAD")
    (last,) = script.receive(answer(data, np.full(256, 7), next_block=3))
    assert (last.block, last.next_block) == (3, NO_BLOCK)
    script.receive(answer(last, np.full(256, 5)))
    assert np.array_equal(collective.wait(0), np.repeat([3, 0, 7, 5], 256))


def test_nonfinite_blocks_travel_without_payload() -> None:
    script = Script()
    array = np.ones(256, np.float32)
    array[9] = np.nan
    collective = script.submit(array)
    (opening,) = script.sent()
    assert opening.next_exponent == wire.NONFINITE_EXPONENT
    (data,) = script.receive(answer(opening, next_block=0, next_exponent=255))
    assert (data.flags, data.next_block) == ("NONFINITE", NO_BLOCK)
    assert len(data) == wire.AGG_BYTES
    script.receive(answer(data, flags=int(Flag.NONFINITE)))
    assert np.isnan(collective.wait(0)).all()


def test_rounds_go_on_over_the_end_of_their_numbers() -> None:
    script = Script(slots=1)
    script.machine.state.next_round[:] = 0xFFFFFFFE
    collective = script.submit(np.ones(3 * 256, np.int32))
    (packet,) = script.sent()
    rounds = [packet.round]
    for block in range(3):
        lanes = None if block == 0 else np.full(256, 2)
        (packet,) = script.receive(answer(packet, lanes, next_block=block))
        rounds.append(packet.round)
    script.receive(answer(packet, np.full(256, 2)))
    assert rounds == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    assert np.array_equal(collective.wait(0), np.full(3 * 256, 2))


# -- Several slots, several collectives ----------------------------------------------------------


def test_stripes_are_dealt_out_in_turn() -> None:
    script = Script(slots=4)
    script.submit(np.ones(3 * 256, np.int32))
    assert [one.slot for one in script.sent()] == [0, 1, 2]
    script.submit(np.ones(2 * 256, np.int32))  # slots 3 and 0, of which 0 is in use
    assert [one.slot for one in script.sent()] == [3]
    script.submit(np.ones(9 * 256, np.int32))  # all four, from slot 1 on
    assert script.sent() == []


def test_a_slot_passes_to_the_next_collective_when_its_stripe_is_done() -> None:
    script = Script(slots=2)
    first = script.submit(np.zeros(2 * 256, np.int32))
    openings = script.sent()
    second = script.submit(np.zeros(2 * 256, np.int32))
    assert script.sent() == []
    (opening,) = script.receive(answer(openings[1]))
    assert (opening.slot, opening.round) == (1, 1)
    assert opening.tag != openings[1].tag
    assert not first.done()
    script.receive(answer(opening))
    assert not second.done()
    (opening,) = script.receive(answer(openings[0]))
    assert first.done()
    script.receive(answer(opening))
    assert second.done()


def test_results_of_two_collectives_in_one_batch() -> None:
    script = Script(slots=2)
    first = script.submit(np.full(256, 3, np.int32))
    second = script.submit(np.full(10, 1.0, np.float32))
    openings = script.sent()
    data = script.receive(
        answer(openings[1], next_block=0, next_exponent=ONE), answer(openings[0], next_block=0)
    )
    by_slot = {one.slot: one for one in data}
    script.receive(answer(by_slot[0], np.full(256, 6)), answer(by_slot[1], np.full(256, 2 * SCALE)))
    assert np.array_equal(first.wait(0), np.full(256, 6))
    assert np.array_equal(second.wait(0), np.full(10, 2, np.float32))


# -- Formats of lanes ----------------------------------------------------------------------------

FORMATS = {np.int32: 0, np.int16: 1, np.int8: 2}


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_integers_are_lanes_as_they_are(dtype: type, rng: np.random.Generator) -> None:
    script = Script(slots=1)
    lanes = wire.Format(FORMATS[dtype]).lanes
    limits = np.iinfo(dtype)
    array = rng.integers(limits.min, limits.max, lanes + 3, dtype, endpoint=True)
    collective = script.submit(array)
    (opening,) = script.sent()
    assert (opening.format, opening.next_exponent) == (FORMATS[dtype], 0)
    (data,) = script.receive(answer(opening, next_block=0))
    assert data.format == FORMATS[dtype]
    assert np.array_equal(lanes_of(data), array[:lanes])
    (last,) = script.receive(answer(data, lanes_of(data)[::-1], next_block=1))
    assert np.array_equal(lanes_of(last), np.concatenate([array[lanes:], np.zeros(lanes - 3)]))
    script.receive(answer(last, lanes_of(last)))
    assert np.array_equal(
        collective.wait(0), np.concatenate([array[lanes - 1 :: -1], array[lanes:]])
    )


@pytest.mark.parametrize(
    ("precision", "limit"),
    [("int16", 32767 // 2), ("int8", 127 // 2), ("int4", 7 // 2)],
)
def test_floats_in_narrow_lanes(precision: str, limit: int) -> None:
    """The limit stands for the power of two above the largest, which is 4 here."""
    script = Script()
    array = np.full(wire.Format[precision.upper()].lanes, 2.0, np.float32)
    array[:4] = [4 / limit, -1.0, 0.0, 3 / 128]
    collective = script.submit(array, precision=precision)
    (opening,) = script.sent()
    (data,) = script.receive(answer(opening, next_block=0, next_exponent=ONE + 1))
    lanes = lanes_of(data)
    assert (lanes[0], lanes[2]) == (1, 0)
    for at, exact in ((1, -limit / 4), (3, limit * 3 / 512)):
        assert lanes[at] in (math.floor(exact), math.ceil(exact))
    script.receive(answer(data, np.full(len(lanes), limit)))
    assert np.array_equal(collective.wait(0), np.full(len(array), 4.0, np.float32))


def test_random_rounding_happens_once() -> None:
    """What a timer sends again are the very same bytes; and a seed gives them again."""
    sent = []
    for _ in range(2):
        script = Script()
        script.submit(np.linspace(0.1, 1.9, 1024, dtype=np.float32), precision="int8", seed=5)
        (opening,) = script.sent()
        (data,) = script.receive(answer(opening, next_block=0, next_exponent=ONE))
        (again,) = script.expire(0.2)
        assert again.flags == "PAYLOAD+RETRANSMISSION"
        assert bytes(again.payload) == bytes(data.payload)
        sent.append(bytes(data.payload))
    assert sent[0] == sent[1]


def test_formats_side_by_side(rng: np.random.Generator) -> None:
    """In one batch: whole results, and halves, of all formats."""
    script = Script(slots=6)
    arrays = {
        slot: rng.integers(-50, 50, wire.Format(lane_format).lanes).astype(dtype)
        for slot, (dtype, lane_format) in enumerate([*FORMATS.items()] * 2)
    }
    collectives = {slot: script.submit(array) for slot, array in arrays.items()}
    data = script.receive(*(answer(one, next_block=0) for one in script.sent()))
    assert [one.format for one in data] == [0, 1, 2, 0, 1, 2]
    frames = []
    for one in data:
        sums = 2 * lanes_of(one)
        if one.slot < 3:
            frames.append(answer(one, sums))
        else:
            half = len(sums) // 2
            frames.append(answer(one, sums[half:], flags=int(Flag.SECOND_HALF)))
            frames.append(answer(one, sums[:half], flags=int(Flag.FIRST_HALF)))
    rng.shuffle(frames)
    script.receive(*frames)
    for slot, collective in collectives.items():
        assert np.array_equal(collective.wait(0), 2 * arrays[slot]), slot


@pytest.mark.parametrize("alone", [True, False])
def test_answers_of_another_format_do_not_count(alone: bool) -> None:
    """Whether they come in a batch that is plain otherwise, or not."""
    script = Script(slots=2)
    collective = script.submit(np.ones(2 * 512, np.int16))
    openings = script.sent()
    data = script.receive(*(answer(one, next_block=n) for n, one in enumerate(openings)))
    good = [answer(one, np.full(512, 3)) for one in data]
    wrong = answer(data[0], np.full(256, 7), format=0)
    batch = [wrong] if alone else [wrong, good[1]]
    script.receive(*batch)
    assert script.machine.counts.invalid == 1
    script.receive(*good)
    assert np.array_equal(collective.wait(0), np.full(1024, 3, np.int16))


def test_a_mismatch_of_formats_is_one() -> None:
    """The answer has the format of the rank that came first."""
    script = Script()
    collective = script.submit(np.ones(512, np.float32), precision="int16")
    (opening,) = script.sent()
    script.receive(answer(opening, flags=int(Flag.MISMATCH), tag=1, format=0))
    with pytest.raises(MismatchError, match="precision"):
        collective.wait(0)


# -- What should not count -----------------------------------------------------------------------


def test_duplicates_of_results_count_once() -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    first = answer(opening, next_block=0)
    (data,) = script.receive(first, first, first)
    assert script.receive(first) == []
    last = answer(data, np.full(256, 2))
    script.receive(last, last)
    assert script.receive(last) == []
    assert np.array_equal(collective.wait(0), np.full(256, 2))
    counts = script.machine.counts
    assert (counts.duplicates, counts.stale, counts.invalid) == (3, 2, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"job": JOB + 1},
        {"rank": RANK + 1},
        {"slot": 4},
        {"slot": 0xFFFF},
        {"tag": 1},
        {"format": 1},
        {"block": 3},
        {"next_block": 1},
        {"next_block": NO_BLOCK - 1},
        {"version": 2},
        {"kind": FrameKind.CONTRIBUTE},
        {"kind": FrameKind.HELLO},
        {"kind": 15},
        {"flags": int(Flag.PAYLOAD)},
        {"flags": int(Flag.FIRST_HALF)},
        {"flags": int(Flag.FIRST_HALF | Flag.SECOND_HALF)},
        {"flags": int(Flag.PADDED)},
    ],
)
def test_answers_that_do_not_fit_are_counted_and_ignored(changes: dict[str, int]) -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    assert script.receive(answer(opening, **changes)) == []
    assert script.machine.counts.invalid == 1
    (data,) = script.receive(answer(opening, next_block=0))
    script.receive(answer(data, np.full(256, 2)))
    assert np.array_equal(collective.wait(0), np.full(256, 2))


@pytest.mark.parametrize("byte", range(6))
def test_answers_from_another_mac_address_do_not_count(byte: int) -> None:
    """By that alone a forged one differs: all the rest can be had by others. With others in a
    batch and without."""
    script = Script()
    collective = script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    (data,) = script.receive(answer(opening, next_block=0))
    forged = bytearray(answer(data, np.full(256, 1337)))
    forged[6 + byte] ^= 1
    assert script.receive(bytes(forged)) == []
    assert not collective.done()
    script.receive(bytes(forged), answer(data, np.full(256, 2)))
    assert script.machine.counts.invalid == 2
    assert np.array_equal(collective.wait(0), np.full(256, 2))


@pytest.mark.parametrize("older", [True, False])
def test_results_of_other_rounds_are_stale(older: bool) -> None:
    script = Script()
    script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    other = 0xFFFFFFFF if older else 1
    assert script.receive(answer(opening, round=other, next_block=0)) == []
    assert script.machine.counts.stale == 1


def test_garbage_and_truncated_frames_do_no_harm(rng: np.random.Generator) -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    good = answer(opening, next_block=0)
    for _ in range(60):
        frames = [rng.bytes(int(rng.integers(1, 2046))) for _ in range(30)]
        frames += [good[: int(rng.integers(1, len(good)))] for _ in range(30)]
        for _ in range(30):  # one byte of Ethernet's source or type, IPv4 or UDP is wrong
            broken = bytearray(good)
            at = int(rng.choice([*range(6, 12), 12, 13, 14, 23, 26, 29, 30, 33, 34, 35, 36, 37]))
            broken[at] ^= int(rng.integers(1, 256))
            frames.append(bytes(broken))
        assert script.receive(*frames) == []
    assert script.machine.counts.invalid == 60 * 90
    (data,) = script.receive(good)
    script.receive(answer(data, np.full(256, 2)))
    assert np.array_equal(collective.wait(0), np.full(256, 2))


# -- Halves --------------------------------------------------------------------------------------

FIRST, SECOND = int(Flag.FIRST_HALF), int(Flag.SECOND_HALF)
SUMS = np.arange(256) * 3 - 100


@pytest.mark.parametrize(
    "parts",
    [
        "12",
        "21",
        "1 2",
        "2 1",
        "11 2",
        "1 12",
        "2 w",
        "w",
        "1w",
        "12w",
        "w12",
        "2112",
        "1 1 1 2 2",
    ],
)
@pytest.mark.parametrize("size", [256, 100, 200])
def test_halves_in_any_order_make_a_whole(parts: str, size: int) -> None:
    script = Script()
    collective = script.submit(np.zeros(size, np.int32))
    (opening,) = script.sent()
    (empty,) = script.receive(answer(opening, next_block=0))
    frames = {
        "1": answer(empty, SUMS[:128], flags=FIRST),
        "2": answer(empty, SUMS[128:], flags=SECOND),
        "w": answer(empty, SUMS),
    }
    for batch in parts.split():
        script.receive(*(frames[part] for part in batch))
    assert np.array_equal(collective.wait(0), SUMS[:size])
    assert script.machine.counts.collectives == 1


def test_one_half_is_not_enough() -> None:
    script = Script()
    collective = script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    (empty,) = script.receive(answer(opening, next_block=0))
    half = answer(empty, SUMS[:128], flags=FIRST)
    assert script.receive(half, half) == []
    assert script.receive(half) == []
    assert not collective.done()
    assert script.machine.counts.duplicates == 2


def test_a_half_says_which_one_it_is() -> None:
    script = Script()
    collective = script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    (empty,) = script.receive(answer(opening, next_block=0))
    script.receive(answer(empty, SUMS[128:], flags=SECOND))
    for flags in (0, FIRST | SECOND):
        assert script.receive(answer(empty, SUMS[:128], flags=flags)) == []
    assert not collective.done()
    assert script.machine.counts.invalid == 2


def test_a_half_does_not_count_for_the_next_round() -> None:
    script = Script(slots=1)
    collective = script.submit(np.zeros(2 * 256, np.int32))
    (opening,) = script.sent()
    (empty,) = script.receive(answer(opening, next_block=0))
    script.receive(answer(empty, SUMS[:128], flags=FIRST))
    (second,) = script.receive(answer(empty, SUMS, next_block=1))
    script.receive(answer(second, SUMS[128:], flags=SECOND))
    assert not collective.done()
    script.receive(answer(second, SUMS[:128], flags=FIRST))
    assert np.array_equal(collective.wait(0), np.tile(SUMS, 2))


# -- Timers --------------------------------------------------------------------------------------


def test_the_same_packet_is_repeated() -> None:
    script = Script()
    script.submit(np.full(256, 7, np.int32))
    (opening,) = script.sent()
    (again,) = script.expire(0.06)
    assert again.flags == "RETRANSMISSION"
    again.flags = opening.flags
    assert bytes(again) == bytes(opening)

    (data,) = script.receive(answer(opening, next_block=0))
    (once,) = script.expire(0.2)
    (twice,) = script.expire(1.0)
    assert once.flags == twice.flags == "PAYLOAD+RETRANSMISSION"
    for repeated in (once, twice):
        repeated.flags = data.flags
        assert bytes(repeated) == bytes(data)
    assert script.machine.counts.retransmissions == 3
    assert (
        script.machine.counts.bytes_sent
        == 2 * wire.EMPTY_FRAME_BYTES + 3 * wire.PAYLOAD_FRAME_BYTES
    )


def test_a_packet_without_payload_is_repeated_padded_where_lanes_may_come_back() -> None:
    script = Script()
    script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    (empty,) = script.receive(answer(opening, next_block=0))
    (again,) = script.expire(0.2)
    assert again.flags == "RETRANSMISSION+PADDED"
    assert len(again) == wire.AGG_BYTES + 1024
    again.flags = empty.flags
    assert bytes(again)[: wire.AGG_BYTES] == bytes(empty)
    bare, whole = wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES
    assert script.machine.counts.bytes_sent == 2 * bare + whole


def test_flags_of_a_repeated_packet_are_gone_in_the_next_round() -> None:
    script = Script(slots=1)
    script.submit(np.full(3 * 256, 7, np.int32))
    (opening,) = script.sent()
    script.expire(0.06)
    (data,) = script.receive(answer(opening, next_block=0))
    assert data.flags == "PAYLOAD"
    script.expire(0.5)
    (data,) = script.receive(answer(data, SUMS, next_block=1))
    assert data.flags == "PAYLOAD"


def test_timers_of_slots_do_not_touch_each_other() -> None:
    script = Script(slots=2)
    script.submit(np.full(2 * 256, 7, np.int32))
    openings = script.sent()
    script.now = 0.04
    (data,) = script.receive(answer(openings[1], next_block=1))  # restarts slot 1's timer only
    (again,) = script.expire(0.055)
    assert (again.slot, again.round) == (0, 0)
    assert script.expire(0.06) == []
    (again,) = script.expire(0.2)
    assert (again.slot, again.round) == (1, 1)
    assert data.round == 1


def outstanding(slots: int, **options: int) -> tuple[Script, list[Packet]]:
    """A script at 0.01 s with a contribution under way in each slot, all sent at 0."""
    script = Script(slots, **options)
    script.submit(np.full(3 * slots * 256, 7, np.int32))
    openings = script.sent()
    sent = script.receive(*(answer(one, next_block=one.slot) for one in openings))
    script.now = 0.01
    return script, sorted(sent, key=lambda one: int(one.slot))


def test_when_nothing_comes_one_frame_asks_for_all() -> None:
    """A rank is late: what the others have sent is with the switch."""
    script, sent = outstanding(4)
    (again,) = script.expire(0.06)
    assert (again.slot, again.flags) == (0, "PAYLOAD+RETRANSMISSION")
    status = answer(sent[0], kind=FrameKind.STATUS, contributors=1 << RANK)
    assert script.receive(status) == []
    assert script.expire(0.11) == []
    again = script.expire(0.17)  # twice as long later
    assert [one.slot for one in again] == [0, 1]
    assert script.machine.counts.retransmissions == 3


def test_what_one_frame_has_found_lost_is_repeated_in_all_slots_at_once() -> None:
    script, sent = outstanding(4)
    assert len(script.expire(0.06)) == 1
    repeated = answer(sent[0], SUMS, next_block=4, flags=int(Flag.RETRANSMISSION))
    (following,) = script.receive(repeated)
    assert (following.slot, following.block) == (0, 4)
    assert {one.slot for one in script.expire(0.061)} == {1, 2, 3}


def test_what_came_late_by_itself_lets_the_others_wait() -> None:
    script, sent = outstanding(4)
    assert len(script.expire(0.06)) == 1
    (following,) = script.receive(answer(sent[0], SUMS, next_block=4))
    assert following.slot == 0
    assert script.expire(0.09) == []
    assert script.receive(*(answer(one, SUMS, next_block=4 + one.slot) for one in sent[1:]))
    assert script.machine.counts.retransmissions == 1


def test_while_answers_come_each_lost_frame_is_repeated() -> None:
    script, sent = outstanding(4)
    script.now = 0.045
    script.receive(answer(sent[3], SUMS, next_block=7))
    assert {one.slot for one in script.expire(0.06)} == {0, 1, 2}


def test_what_stands_in_a_queue_is_not_repeated() -> None:
    """Nothing that was sent later has been answered, and answers come. Once they do not, one frame
    asks for all."""
    script, sent = outstanding(4)
    for number, now in enumerate((0.045, 0.085)):
        script.now = now
        script.receive(answer(sent[number], SUMS, next_block=4 + number))
        assert script.expire(now + 0.02) == []
    assert script.machine.counts.retransmissions == 0
    assert script.expire(0.08) == []
    quiet = 0.085 + script.machine.timeout_seconds / 2
    assert script.expire(quiet - 0.001) == []
    (again,) = script.expire(quiet + 0.001)
    assert (again.slot, again.flags) == (2, "PAYLOAD+RETRANSMISSION")


def test_answers_to_opening_rounds_say_nothing_of_blocks() -> None:
    script, _ = outstanding(2)
    figures = script.machine.state.structure
    figures.opening_timeout.answered_up_to = 1.0
    figures.timeout.answered_at = figures.heard_switch_at = 0.05
    assert script.expire(0.06) == []
    figures.timeout.answered_up_to = 1.0
    script.machine.state.due[:] = 0.06
    assert {one.slot for one in script.expire(0.061)} == {0, 1}


def test_a_new_link_repeats_what_stands_in_a_queue() -> None:
    script, sent = outstanding(4)
    script.now = 0.045
    script.receive(answer(sent[0], SUMS, next_block=4))
    script.machine.resume(script.now)
    assert len(script.expire(0.046)) == 4


# -- Who asks, where more ranks are at a switch than may all ask for themselves ------------------


def test_the_first_rank_asks_for_all() -> None:
    script, sent = outstanding(1, rank=0, few=1)
    (again,) = script.expire(0.06)
    assert int(again.flags) == Flag.PAYLOAD | Flag.RETRANSMISSION | Flag.TELL_ALL
    (following,) = script.receive(answer(sent[0], SUMS, next_block=1))
    assert int(following.flags) == Flag.PAYLOAD


def test_the_others_ask_if_the_first_one_does_not() -> None:
    script, _ = outstanding(4, few=1)
    assert script.expire(0.09) == []
    (again,) = script.expire(0.11)  # twice as long
    assert (again.slot, again.flags) == (0, "PAYLOAD+RETRANSMISSION")


def test_few_ranks_all_ask() -> None:
    (again,) = outstanding(1, rank=0)[0].expire(0.06)
    assert again.flags == "PAYLOAD+RETRANSMISSION"
    (again,) = outstanding(1, rank=1)[0].expire(0.06)
    assert again.flags == "PAYLOAD+RETRANSMISSION"


def test_who_was_heard_need_not_ask() -> None:
    """Nor for its other slots, as nothing else comes either."""
    script, sent = outstanding(4, few=1)
    script.now = 0.06
    assert script.receive(status(sent[0], 1 << RANK)) == []
    assert script.expire(0.25) == []
    assert [one.slot for one in script.expire(0.27)] == [0, 1]


def test_while_answers_come_the_other_slots_need_not_wait() -> None:
    script, sent = outstanding(4, few=1)
    script.now = 0.055
    script.receive(answer(sent[3], SUMS, next_block=7))
    script.now = 0.06
    assert script.receive(status(sent[0], 1 << RANK)) == []
    assert {one.slot for one in script.expire(0.101)} == {1, 2}


@pytest.mark.parametrize("few", [1, FEW])
def test_who_was_not_heard_repeats_at_once(few: int) -> None:
    script, sent = outstanding(4, few=few)
    script.now = 0.04
    assert script.receive(status(sent[2], 0b01)) == []
    assert script.machine.next_due < script.now
    (again,) = script.expire(script.now)
    assert (again.slot, again.flags) == (2, "PAYLOAD+RETRANSMISSION")


def test_who_has_only_just_sent_may_not_have_been_heard_yet() -> None:
    script, sent = outstanding(4)
    assert script.receive(status(sent[2], 0b01)) == []  # at 0.01 s, of a timeout of 0.05
    assert script.expire(0.04) == []


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("heard", [0b01, 0b11])
def test_others_being_a_round_ahead_tells_that_a_result_was_lost(ahead: int, heard: int) -> None:
    script, sent = outstanding(4, few=1)
    script.now = 0.04
    told = answer(sent[2], kind=FrameKind.STATUS, contributors=heard, round=sent[2].round + ahead)
    assert script.receive(told) == []
    again = [one.slot for one in script.expire(0.041)]
    assert again == ([2] if heard == 0b01 and ahead < 2 else [])


# -- Backing off -----------------------------------------------------------------------------------


def test_timers_back_off_and_stop_with_the_result() -> None:
    script = Script()
    collective = script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    times = [step for step in range(1, 2000) if script.expire(step * 0.001)]
    gaps = np.diff(times)
    assert gaps[:3] == pytest.approx([100, 200, 250], abs=1)
    assert gaps[-1] == pytest.approx(250, abs=1)
    script.receive(answer(opening))
    assert collective.done()
    assert script.expire(100.0) == []
    assert script.machine.next_due == np.inf


def repeated_round() -> tuple[Script, Packet]:
    """A script at 0.07 s and the contribution that was sent at 0 and again at 0.06."""
    script = Script()
    script.submit(np.ones(2 * 256, np.int32))
    openings = script.sent()
    data, _ = script.receive(*(answer(one, next_block=n) for n, one in enumerate(openings)))
    assert script.expire(0.06)
    script.now = 0.07
    return script, data


def test_results_that_a_timer_brought_are_no_samples() -> None:
    script, data = repeated_round()
    before = script.machine.timeout_seconds
    script.receive(answer(data, SUMS, flags=int(Flag.RETRANSMISSION)))
    assert script.machine.timeout_seconds == before
    assert script.machine.round_trips.count == 0


def test_results_that_came_of_themselves_are_samples_from_the_first_frame_on() -> None:
    """Though it was repeated meanwhile; so that a timer that is too short gets longer."""
    script, data = repeated_round()
    script.receive(answer(data, SUMS))
    assert script.machine.round_trips.count == 1
    assert script.machine.round_trips.percentiles(50) == (0.07,)
    assert script.machine.timeout_seconds == pytest.approx(0.07 + 4 * 0.035)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("at_once", [True, False])
def test_needless_repetitions_are_counted(order: tuple[int, int], at_once: bool) -> None:
    """The result and the one that a timer asked for, together or apart."""
    script, data = repeated_round()
    frames = [answer(data, SUMS), answer(data, SUMS, flags=int(Flag.RETRANSMISSION))]
    frames = [frames[n] for n in order]
    for batch in [frames] if at_once else [[frame] for frame in frames]:
        script.receive(*batch)
    counts = script.machine.counts
    late_first = order == (1, 0) and not at_once
    assert counts.spurious == (0 if late_first else 1)
    assert script.machine.round_trips.count == (0 if late_first else 1)
    assert counts.stale + counts.duplicates == 1


def test_status_shows_a_repetition_to_be_needless() -> None:
    script, data = repeated_round()
    script.receive(status(data, 1 << RANK))
    assert script.machine.counts.spurious == 0  # the network had doubled the frame
    script.receive(answer(data, kind=FrameKind.STATUS, flags=int(Flag.RETRANSMISSION)))
    assert script.machine.counts.spurious == 1


def test_a_rank_that_is_late_by_its_timer_says_so() -> None:
    """Once, on the contribution after the repeated result; its payload is as always."""
    script = Script(slots=1)
    script.submit(np.full(3 * 256, 7, np.int32))
    (opening,) = script.sent()
    (data,) = script.receive(answer(opening, next_block=0))
    script.expire(0.06)
    again = int(Flag.RETRANSMISSION)
    (data,) = script.receive(answer(data, SUMS, next_block=1, flags=again))
    assert data.flags == "PAYLOAD+RETRANSMISSION"
    # The next answer has the flag because of that, but nobody is late any more.
    (data,) = script.receive(answer(data, SUMS, next_block=2, flags=again))
    assert data.flags == "PAYLOAD"


def test_a_result_that_others_timers_brought_makes_nobody_late() -> None:
    script = Script(slots=1)
    script.submit(np.full(2 * 256, 7, np.int32))
    (opening,) = script.sent()
    (data,) = script.receive(answer(opening, next_block=0))
    (data,) = script.receive(answer(data, SUMS, next_block=1, flags=int(Flag.RETRANSMISSION)))
    assert data.flags == "PAYLOAD"
    assert script.machine.round_trips.count == 0


def test_a_repetition_sent_after_the_result_starts_no_timer() -> None:
    script = Script()
    collective = script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    script.now = 0.06
    script.machine.expire(script.now)
    late = script.machine.take_sendable()  # the transport is full
    script.receive(answer(opening))
    script.machine.sent(late, script.now)
    assert collective.done()
    assert script.machine.next_due == np.inf
    assert script.expire(100.0) == []


def test_progress_elsewhere_shortens_long_waits() -> None:
    script = Script(slots=2)
    script.submit(np.full(2 * 256, 7, np.int32))
    openings = script.sent()
    for now in (0.06, 0.2, 0.5, 0.8):
        script.expire(now)
    script.receive(answer(openings[0], next_block=0))
    due = script.machine.next_due - script.now
    assert due <= script.machine.timeout_seconds + 1e-9


# -- Errors --------------------------------------------------------------------------------------


def test_mismatch_ends_everything() -> None:
    script = Script(slots=2)
    first = script.submit(np.ones(256, np.int32))
    second = script.submit(np.ones(256, np.int32))
    openings = script.sent()
    assert script.receive(answer(openings[1], flags=int(Flag.MISMATCH), tag=1)) == []
    for collective in (first, second, script.submit(np.ones(1, np.int32))):
        with pytest.raises(MismatchError, match="allreduce 1"):
            collective.wait(0)
    assert script.sent() == []


def status(to: Packet, heard: int) -> bytes:
    return answer(to, kind=FrameKind.STATUS, contributors=heard)


def test_status_tells_who_is_missing_at_the_deadline() -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32), timeout=5.0)
    (opening,) = script.sent()
    script.now = time.monotonic()
    assert script.receive(status(opening, 1 << RANK)) == []
    script.expire(time.monotonic() + 10)
    with pytest.raises(P4ReduceTimeoutError, match="slot 0 waits for rank 0") as error:
        collective.wait(0)
    assert error.value.missing == (0,)
    assert error.value.slot == 0
    assert script.machine.counts.statuses == 1


def test_a_switch_that_answers_nothing_is_unreachable() -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32), timeout=5.0)
    script.sent()
    for extra in range(1, 7):
        script.expire(time.monotonic() + extra)
    with pytest.raises(SwitchUnreachableError, match="answered nothing"):
        collective.wait(0)


def test_a_rank_that_left_is_asked_for_at_once() -> None:
    script = Script()
    collective = script.submit(np.ones(256, np.int32))
    (opening,) = script.sent()
    script.machine.ranks_left((0,), 0.01)
    (again,) = script.expire(0.01)
    assert "RETRANSMISSION" in str(again.flags)
    script.receive(status(opening, 1 << RANK))
    with pytest.raises(WorkerLostError, match="rank 0 left"):
        collective.wait(0)


def test_a_rank_that_left_after_taking_part_is_not_missed() -> None:
    script = Script()
    collective = script.submit(np.zeros(256, np.int32))
    (opening,) = script.sent()
    script.machine.ranks_left((0,), 0.01)
    script.expire(0.01)
    script.receive(answer(opening))
    assert np.array_equal(collective.wait(0), np.zeros(256))


# -- The thread ----------------------------------------------------------------------------------


@pytest.fixture(params=["link", "Python"])
def near(request: pytest.FixtureRequest) -> Callable[[socket.socket], Transport]:
    """What C moves frames by: a link, or calls of a transport in Python."""
    if request.param == "link":
        return Connected
    return lambda end: FaultyTransport(Connected(end), FaultPlan())


def test_engine_runs_the_machine_over_a_socket(
    near: Callable[[socket.socket], Transport],
) -> None:
    ends = pair_of_ends()
    script = Script()
    engine = Engine(script.machine, WorkerPort.alone(near(ends[0]), RANK))
    far = ends[1]
    far.settimeout(120.0)
    array = np.full(10, 1.0, np.float32)
    collective = allreduce(array, array, Operation.MEAN)
    engine.submit(collective)
    opening = Ether(far.recv(2048))[Aggregation]
    far.send(answer(opening, next_block=0, next_exponent=ONE))
    while True:
        data = Ether(far.recv(2048))[Aggregation]
        if data.round == 1:  # the opening may have been repeated
            break
    far.send(b"garbage")
    far.send(answer(data, np.full(256, 3 * SCALE)))
    collective.wait(20.0)
    assert np.array_equal(array, np.full(10, 1.5, np.float32))
    assert engine.statistics().invalid == 1
    engine.stop(10.0)
    with pytest.raises(ClosedError):
        engine.submit(collective)
    far.close()


def test_engine_ends_when_the_switch_hangs_up(
    near: Callable[[socket.socket], Transport],
) -> None:
    ends = pair_of_ends()
    script = Script()
    engine = Engine(script.machine, WorkerPort.alone(near(ends[0]), RANK))
    array = np.ones(10, np.float32)
    collective = allreduce(array, array, Operation.SUM)
    engine.submit(collective)
    ends[1].recv(2048)
    ends[1].close()
    with pytest.raises(SwitchUnreachableError, match="hung up"):
        collective.wait(20.0)
    with pytest.raises(SwitchUnreachableError, match="hung up"):
        engine.submit(collective)
    engine.stop(10.0)


def test_what_was_ended_unfinished_does_not_make_others_patient() -> None:
    """Since then its loop has not run, as if the process had been stopped; but nothing waited."""
    near, far = pair_of_ends()
    shares = [
        share := WorkerPort.alone(Connected(near), RANK),
        share.port.share(),
        share.port.share(),
    ]
    engines = [Engine(Script().machine, one) for one in shares if one is not None]
    lost, *others = [allreduce(np.ones(10), np.ones(10), timeout=3.0) for _ in engines]
    engines[1].submit(lost)
    far.recv(2048)
    engines[1].fail(P4ReduceError("a test ends it"))
    with pytest.raises(P4ReduceError, match="a test"):
        lost.wait(20.0)
    time.sleep(1.1)  # longer than any wait takes that nothing interrupts
    for engine, collective in zip(engines[::2], others, strict=True):
        collective.started = time.monotonic()
        collective.deadline = before = collective.started + 3.0
        engine.submit(collective)
        far.recv(2048)
        assert collective.deadline == before
    for engine in engines:
        engine.stop(10.0)
    far.close()


def test_a_machine_that_nobody_has_any_more_is_freed() -> None:
    """Its frames take most of a megabyte, and each communicator makes one."""
    machine = Script().machine
    gone = weakref.ref(machine)
    del machine
    gc.collect()
    assert gone() is None
