# SPDX-License-Identifier: Apache-2.0
"""The engine that ships beside the specification: the same frames in, the same frames out."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from p4reduce.protocol.slot_state import IDLE
from p4reduce.protocol.slots import SlotMachine
from p4reduce.reference.machine import ReferenceMachine
from p4reduce.session.machine import Machine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation, class_slots
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import NO_BLOCK, Flag, FrameKind
from p4reduce.wire.frames import FrameBuffer
from scapy.layers.l2 import Ether
from scapy.packet import Packet

JOB, RANK, WORLD = 77, 1, 3
HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
EVERYONE = (1 << WORLD) - 1
STEPS = 40
DTYPES = (np.int8, np.int16, np.int32, np.float16, np.float32, np.float64)
LANES = struct.Struct(">256i")


class Both:
    """A rank twice: as it ships, and as it is specified."""

    def __init__(self, slots: int, urgent: Sequence[int] = ()) -> None:
        arguments: dict[str, Any] = {
            "slots": slots,
            "urgent": urgent,
            "job": JOB,
            "rank": RANK,
            "world_size": WORLD,
            "here": HERE,
            "switch": SWITCH,
        }
        self.shipped = SlotMachine(**arguments)
        self.specified = ReferenceMachine(**arguments)
        self.machines: tuple[Machine, Machine] = (self.shipped, self.specified)
        self.slots = slots
        self.classes = class_slots(slots, urgent)
        self.now = 0.0
        self.calls: list[tuple[Collective, Collective]] = []
        self.results: list[list[Any]] = []
        self.latest: dict[int, Packet] = {}
        self.held: dict[int, bytes] = {}  # what only the specification has sent yet, by slot

    def submit(self, array: Any, op: Operation, precision: str | None, priority: int = 0) -> None:
        sequence, pair, outs = len(self.calls), [], []
        slots = self.classes[priority]
        for machine in self.machines:
            out = np.full_like(array, 99)
            seed = None if precision is None else 1
            plan = plans.allreduce(array, op, None, out, precision, seed, world_size=WORLD)
            plan = plan.with_priority(priority)
            collective = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=sequence,
                slots=len(slots),
                first_slot=slots.start,
                timeout=30.0,
                lane_format=plan.lane_format,
                noise=plan.noise(RANK, sequence),
            )
            collective.started, collective.deadline = 0.0, 30.0
            machine.submit(collective)
            pair.append(collective)
            outs.append(out)
        self.calls.append((pair[0], pair[1]))
        self.results.append(outs)

    def receive(self, frame: bytes) -> None:
        buffer = FrameBuffer(1)
        buffer.put(0, frame)
        self.shipped.receive(buffer, 1, self.now)
        self.specified.receive(frame, self.now)

    def expire(self) -> None:
        """The specification repeats what the engine repeated: their choice is not compared."""
        before = self.shipped.state.tries.copy()
        self.shipped.expire(self.now)
        worker = self.specified
        for slot in np.flatnonzero(self.shipped.state.tries > before).tolist():
            worker.repeat(worker.slots[slot])
        self._compare(self._frames_of_engine(), self._frames_of_specification())
        if self.now >= 30.0:
            for each in worker.slots:
                each.due = np.inf
            worker.tick(self.now)

    def _frames_of_engine(self) -> dict[int, bytes]:
        """What the engine sends, by slot."""
        rows = self.shipped.take_sendable()
        self.shipped.sent(rows, self.now)
        frames = [self.shipped.outgoing.get(row) for row in rows]
        return {Ether(frame)[Aggregation].slot: frame for frame in frames}

    def _frames_of_specification(self) -> dict[int, bytes]:
        """What the specification sends, by slot."""
        outbox = self.specified.outbox
        frames = {slot: bytes(frame) for slot, frame in outbox.items()}
        for slot in frames:
            self.specified.sent(slot, self.now)
        outbox.clear()
        return frames

    def _compare(self, shipped: dict[int, bytes], specified: dict[int, bytes]) -> None:
        """The engine may keep frames of lower classes back ("Window"), and changes none of them."""
        self.held |= specified
        wanted = {slot: self.held.pop(slot, b"") for slot in shipped}
        assert {slot: _said(frame) for slot, frame in shipped.items()} == {
            slot: _said(frame) for slot, frame in wanted.items()
        }
        assert shipped == wanted
        state = self.shipped.state
        awaits = state.expected != IDLE
        self.held = {slot: frame for slot, frame in self.held.items() if awaits[slot]}
        assert all(state.waiting[slot] for slot in self.held)
        busy = [one for one in self.classes if awaits[one.start : one.stop].any()]
        assert all(slot < busy[-1].start for slot in self.held)
        for slot, frame in shipped.items():
            self.latest[slot] = Ether(frame)[Aggregation]

    def check(self) -> None:
        """All that can be seen of both is the same."""
        self._compare(self._frames_of_engine(), self._frames_of_specification())
        if self.shipped.broken is None:  # else who was asked again last is not the same
            assert asdict(self.shipped.counts) == asdict(self.specified.counts)
        assert self.shipped.heard_switch_at == self.specified.heard_switch_at
        assert self.shipped.idle == self.specified.idle
        for (one, other), (out, wanted) in zip(self.calls, self.results, strict=True):
            assert one.done() == other.done()
            assert str(one.error) == str(other.error)
            assert type(one.error) is type(other.error)
            np.testing.assert_array_equal(out, wanted)


def _said(frame: bytes) -> str:
    return repr(Ether(frame)[Aggregation])


def answer(rng: random.Random, to: Packet, slots: int) -> bytes:
    """What the switch might say to a contribution, mostly rightly."""
    kind = rng.choice((FrameKind.RESULT,) * 5 + (FrameKind.STATUS,))
    flags = rng.choice((0, 0, 0, Flag.RETRANSMISSION))
    fields = {name: getattr(to, name) for name in ("rank", "job", "slot", "format", "round")}
    fields |= {"block": to.block, "tag": to.tag, "contributors": EVERYONE}
    after = 0 if to.block == NO_BLOCK else to.block + 1
    next_block = rng.choice([*[to.next_block] * 6, NO_BLOCK, after % 64, after % 64 + 1])
    exponent = to.next_exponent
    if next_block != NO_BLOCK and exponent != 255:
        exponent = rng.choice((exponent, exponent, min(exponent + 3, 254), 255))
    fields |= {"next_block": next_block, "next_exponent": exponent}
    lanes = b""
    if kind == FrameKind.STATUS:
        flags |= rng.choice((0, 0, Flag.PADDED))
        fields |= {"contributors": rng.randrange(EVERYONE + 1), "next_exponent": 0}
    elif to.block != NO_BLOCK and rng.random() < 0.9:
        flags |= Flag.PAYLOAD | rng.choice((0,) * 8 + (Flag.OVERFLOW, Flag.NONFINITE))
        lanes = rng.randbytes(1024)
        if rng.random() < 0.3:
            flags |= rng.choice((Flag.FIRST_HALF, Flag.SECOND_HALF))
            lanes = lanes[:512]
    if rng.random() < 0.15:  # something is wrong
        what = rng.choice(("round", "round", "tag", "format", "block", "job", "rank", "slot"))
        fields[what] = (int(fields[what]) + rng.choice((1, -1))) % 4
    if rng.random() < 0.01:
        flags |= Flag.MISMATCH
    frame = wire.template(SWITCH, HERE, Aggregation(kind=kind, flags=int(flags), **fields), lanes)
    return frame if rng.random() < 0.97 else frame[: rng.randrange(1, len(frame))]


def numbers(rng: random.Random) -> Any:
    dtype = np.dtype(rng.choice(DTYPES))
    width = 1024 // (dtype.itemsize if dtype.kind == "i" else 4)
    size = rng.choice((0, 1, width, 3 * width + 7, 6 * width))
    values = np.random.default_rng(rng.randrange(1 << 32)).normal(size=size) * 50
    array = values.astype(dtype)
    for block in range(0, size, width):
        if rng.random() < 0.3:
            array[block : block + width] = 0
    if dtype.kind == "f" and size and rng.random() < 0.1:
        array[rng.randrange(size)] = np.nan
    return array


@given(
    seed=st.integers(0, (1 << 32) - 1),
    slots=st.sampled_from(((1, ()), (2, ()), (4, ()), (3, (1, 1)), (6, (2, 2)))),
)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_each_step_leads_to_the_same(seed: int, slots: tuple[int, Sequence[int]]) -> None:
    rng, both = random.Random(seed), Both(*slots)
    for step in itertools.count():
        if step == STEPS or both.shipped.broken is not None:
            break
        what = rng.choice(("submit", "receive", "receive", "receive", "receive", "expire"))
        note(f"{step}: {what} at {both.now:g}")
        if what == "submit" and len(both.calls) < 8:
            array = numbers(rng)
            precision = (
                rng.choice((None, None, "int16", "int8", "int4"))
                if array.dtype.kind == "f"
                else None
            )
            if precision is not None:
                array = np.nan_to_num(array)
            op = rng.choice((Operation.SUM, Operation.MEAN)) if array.dtype.kind == "f" else None
            priority = rng.randrange(len(both.classes))
            both.submit(array, op or Operation.SUM, precision, priority)
        elif what == "receive" and both.latest:
            frame = answer(rng, rng.choice(list(both.latest.values())), both.slots)
            note(f"   {frame[42:78].hex()}")
            both.receive(frame)
        elif what == "expire":
            both.now += rng.choice((0.001, 0.3, 0.3, 0.3, 31.0 if rng.random() < 0.05 else 0.3))
            both.expire()
        both.check()


def test_a_rank_that_left_is_named_by_both() -> None:
    both = Both(2)
    both.submit(np.ones(1000, np.float32), Operation.SUM, None)
    both.check()
    for machine in both.machines:
        machine.ranks_left((2,), both.now)
    both.expire()
    to = both.latest[0]
    fields = {name: getattr(to, name) for name in ("rank", "job", "slot", "format", "round")}
    header = Aggregation(kind=FrameKind.STATUS, contributors=0b011, tag=to.tag, **fields)
    both.receive(wire.template(SWITCH, HERE, header))
    both.check()
    assert "rank 2 left the job" in str(both.calls[0][0].error)
