# SPDX-License-Identifier: Apache-2.0
"""Answers that no switch gives: a worker takes or counts them, and never breaks or waits for ever.

Nothing protects a sum from whoever can put frames of the right job on the worker's own port; the
engine's thread must live all the same, and each call must end by its deadline.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import AGG_OFFSET, NO_BLOCK, FrameKind
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.layer import Aggregation

pytestmark = pytest.mark.fuzz

JOB, RANK, WORLD, SLOTS = 77, 1, 3, 4
HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
EVERYONE = (1 << WORLD) - 1
TIMEOUT = 30.0
# version and kind, flags, rank, job, slot, format, next exponent, round, block, next block, tag,
# contributors
HEADER = struct.Struct(">BBHIHBBIIIIQ")
TEMPLATES = {
    lanes: wire.template(SWITCH, HERE, Aggregation(kind=FrameKind.RESULT), bytes(lanes))
    for lanes in (0, 512, 1024)
}
EDGES = (0, 1, 2, 3, 4, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def random_plan(rng: Any) -> CollectivePlan[Any]:
    size = rng.choice((0, 1, 255, 256, 257, 2000))
    dtype = rng.choice((np.int32, np.float32, np.float64, np.float16))
    array = np.arange(size).astype(dtype)
    array[rng.randrange(size + 1) :] = 0
    out = np.empty_like(array)
    precision = None if dtype is np.int32 else rng.choice((None, "int16", "int8", "int4"))
    return plans.allreduce(
        array, Operation.SUM, None, out, precision, 1 if precision else None, world_size=WORLD
    )


class Machine:
    """A worker's slots with a few collectives at a time, and what it has asked for last."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng
        self.machine = SlotMachine(
            slots=SLOTS, job=JOB, rank=RANK, world_size=WORLD, here=HERE, switch=SWITCH
        )
        self.now = time.monotonic()
        self.sequence = 0
        self.open: list[Collective] = []
        self.asked = [[0] * 12 for _ in range(SLOTS)]

    def count_ended(self, ended: Counter[str]) -> None:
        """Take in how collectives have ended."""
        for collective in self.open:
            if collective.done():
                assert collective.error is None or isinstance(collective.error, P4ReduceError)
                ended[type(collective.error).__name__] += 1
        self.open = [each for each in self.open if not each.done()]

    def work(self, ended: Counter[str]) -> None:
        """Begin collectives, and send what is to be sent."""
        self.count_ended(ended)
        while len(self.open) < 3:
            plan = random_plan(self.rng)
            collective = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=self.sequence,
                slots=SLOTS,
                timeout=TIMEOUT,
                lane_format=plan.lane_format,
                noise=plan.noise(RANK, self.sequence),
            )
            self.sequence += 1
            self.open.append(collective)
            self.machine.submit(collective)
        rows = self.machine.take_sendable()
        self.machine.sent(rows, self.now)
        for row in rows:
            header = list(HEADER.unpack_from(self.machine.outgoing.get(row), AGG_OFFSET))
            self.asked[header[4] % SLOTS] = header

    def answer(self) -> bytes:
        """What the switch might say about some slot, with none to three fields of it wrong."""
        rng = self.rng
        _, flags, _, _, slot, lane_format, _, iteration, block, _, tag, _ = rng.choice(self.asked)
        lanes = 1024 if block != NO_BLOCK and rng.random() < 0.7 else 0
        flags = wire.Flag.PAYLOAD if lanes else 0
        if lanes and rng.random() < 0.3:
            lanes = 512
            flags |= rng.choice((wire.Flag.FIRST_HALF, wire.Flag.SECOND_HALF))
        next_block = rng.choice((NO_BLOCK, block + SLOTS & NO_BLOCK, slot, slot + SLOTS))
        kind = 0x10 | rng.choice(
            (FrameKind.RESULT, FrameKind.RESULT, FrameKind.RESULT, FrameKind.STATUS)
        )
        fields = [kind, flags, RANK, JOB, slot, lane_format, 127, iteration, block, next_block, tag]
        fields.append(EVERYONE if kind == 0x11 else rng.randrange(EVERYONE))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            at = rng.randrange(len(fields))
            if at != 3 or rng.random() < 0.1:
                bits = (8, 8, 16, 32, 16, 8, 8, 32, 32, 32, 32, 64)[at]
                fields[at] = rng.choice((*EDGES, rng.getrandbits(64), fields[at] + 1)) % (1 << bits)
        frame = bytearray(TEMPLATES[lanes])
        HEADER.pack_into(frame, AGG_OFFSET, *fields)
        if lanes:
            frame[AGG_OFFSET + HEADER.size :] = rng.randbytes(lanes)
        if rng.random() < 0.05:
            del frame[rng.randrange(1, len(frame)) :]
        return bytes(frame)


# Exponents that are not those of the numbers make lanes that mean nothing.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_answers_that_no_switch_gives(fuzz: Any) -> None:
    ended: Counter[str] = Counter()
    for _ in fuzz.rounds(25):
        machine = Machine(fuzz.random)
        for _ in range(30):
            machine.work(ended)
            frames = [machine.answer() for _ in range(fuzz.random.choice((1, 2, 8, 40)))]
            buffer = FrameBuffer(len(frames))
            for row, frame in enumerate(frames):
                buffer.put(row, frame)
            machine.machine.receive(buffer, len(frames), machine.now)
            machine.now += fuzz.random.choice((0.0, 1e-4, 0.01, 1.0))
            machine.machine.expire(machine.now)
        # Whatever they were told, all calls end; with a sum or with an error of ours.
        machine.now += 2 * TIMEOUT
        for _ in range(3):
            machine.machine.expire(machine.now)
        assert all(collective.done() for collective in machine.open)
        machine.count_ended(ended)
    assert ended["NoneType"] > 0, f"it does not get far in: {ended}"
    assert len(ended) > 1, f"it does not get far in: {ended}"
