# SPDX-License-Identifier: Apache-2.0
"""The slot machine with and without C: the same frames lead to the same state, frame by frame."""

from __future__ import annotations

import os
import random
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.machine_code import native_library
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Flag, Kind
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.layer import Aggregation
from p4reduce.wire.rank_sets import Child, Level

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no machine code here")

JOB, RANK, WORLD = 77, 1, 3
HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
TEMPLATES = {
    lanes: wire.template(
        SWITCH, HERE, Aggregation(kind=Kind.RESULT, rank=RANK, job=JOB), bytes(lanes)
    )
    for lanes in (0, 512, 1024)
}
STATE = (
    *("_owner", "_count", "_tag", "_format", "_next_round", "_expected", "_block", "_exponent"),
    *("_announced", "_parts", "_heard", "_level", "_row", "_awaited"),
)
TIMES = "tries", "_sent_at", "_opening"
KINDS = [
    (np.float32, None),
    (np.float64, None),
    (np.float16, None),
    (np.int32, None),
    (np.int8, None),
    (np.float32, "int16"),
    (np.float32, "int8"),
]

# Ranks 0 to 2 on a leaf, 3 to 5 on another one, a root above them.
TREE = (
    Level("leaf-a", (Child((0,)), Child((1,)), Child((2,)))),
    Level("root", (Child((0, 1, 2), "leaf-a"), Child((3, 4, 5), "leaf-b"))),
)

Array = npt.NDArray[Any]


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


class Twins:
    """Two machines, one with C and one without, that are told the same."""

    def __init__(self, slots: int, rng: np.random.Generator, tree: bool = False) -> None:
        few = int(rng.choice([1, 8]))  # whether another rank's turn to ask is before this one's
        self.rng = rng
        self.slots = slots
        self.tree = tree
        self.world = 2 * WORLD if tree else WORLD
        self.machines = [
            SlotMachine(
                slots=slots,
                job=JOB,
                rank=RANK,
                world_size=self.world,
                here=HERE,
                switch=SWITCH,
                levels=TREE if tree else None,
                native=native,
                few=few,
            )
            for native in (True, False)
        ]
        self.now = 1.0
        self.sequence = 0
        self.outs: list[list[Array]] = []
        self.collectives: list[list[Collective]] = []
        self.asked: dict[int, bytes] = {}  # by slot: the latest frame
        self.said: dict[bytes, tuple[int, int, int]] = {}  # what does not vary, by slot and round
        self.old: list[bytes] = []  # answers that were given

    def submit(self) -> None:
        """Begin a collective of any kind and size."""
        rng = self.rng
        dtype, precision = KINDS[rng.integers(len(KINDS))]
        size = int(rng.choice([5, 100_000] if self.tree else [0, 5, 256, 3000, 20000]))
        array = (rng.standard_normal(size) * 100).astype(dtype)
        if self.tree:  # with blocks that only other ranks have
            array[np.repeat(rng.random(size // 256 + 1) < 0.5, 256)[:size]] = 0
        else:
            array[rng.random(size) < rng.choice([0.0, 0.999, 1.0])] = 0
        if rng.random() < 0.2 and size and np.issubdtype(dtype, np.floating):
            array[rng.integers(size)] = np.nan
        both, outs = [], []
        for machine in self.machines:
            out = np.full_like(array, 7)
            plan = plans.allreduce(
                array, Operation.SUM, None, out, precision, 1, world_size=self.world
            )
            collective = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=self.sequence,
                slots=self.slots,
                timeout=1e6,
                lane_format=plan.lane_format,
                noise=plan.noise(RANK, self.sequence),
            )
            collective.deadline = 1e9
            machine.submit(collective)
            both.append(collective)
            outs.append(out)
        self.sequence += 1
        self.collectives.append(both)
        self.outs.append(outs)

    def send(self) -> None:
        """Send what is to be sent: the same frames from both."""
        sent = []
        for machine in self.machines:
            rows = machine.take_sendable()
            machine.sent(rows, self.now)
            sent.append([machine.outgoing.get(row) for row in rows])
        assert sorted(sent[0]) == sorted(sent[1])
        for frame in sent[0]:
            self.asked[int.from_bytes(frame[50:52], "big")] = frame

    def answer(self, slot: int | None = None) -> bytes:
        """Some answer to the latest contribution of a slot, mostly what the switch would say."""
        rng = self.rng
        asked = self.asked[int(rng.choice(list(self.asked))) if slot is None else slot]
        header = np.frombuffer(asked, ">u4", 9, wire.AGG_OFFSET).astype(np.uint32)
        block, following = int(header[4]), int(header[5])
        width = wire.Format(int(header[2]) >> 8 & 0xFF).lanes
        count = self._count(int(header[2]) >> 16)
        others = 0.6 if self.tree else 0.1  # how often
        if rng.random() < others and following != wire.NO_BLOCK and following >= self.slots:
            following -= self.slots  # another rank has the one before
            if block != wire.NO_BLOCK and following <= block:
                following += self.slots
        flags, lanes, kind = 0, 0, Kind.RESULT
        if block != wire.NO_BLOCK:
            flags, lanes = int(Flag.PAYLOAD), 1024
            draw = rng.random()
            if draw < 0.1:
                flags, lanes = flags | int(rng.choice([Flag.FIRST_HALF, Flag.SECOND_HALF])), 512
            elif draw < 0.12:
                flags, lanes = int(rng.choice([0, Flag.NONFINITE])), 0
            elif draw < 0.13:
                flags |= int(Flag.OVERFLOW)
        again = int(Flag.RETRANSMISSION) if rng.random() < 0.1 else 0
        if rng.random() < 0.05:
            kind, flags, lanes = Kind.STATUS, 0, 0
        if self.tree and rng.random() < 0.15:
            kind, flags, lanes = Kind.STATUS, 0, 0
            flags |= int(Flag.PADDED) if rng.random() < 0.7 else 0
        own = following if following != wire.NO_BLOCK else block
        if not self.tree and own != wire.NO_BLOCK and rng.random() < 0.02:
            # Of the slot's own stripe: two slots with one block would write it in any order.
            beyond = count // self.slots + 2
            following = own % self.slots + self.slots * int(rng.integers(beyond))
            following = following if rng.random() < 0.5 else wire.NO_BLOCK
        exponent = int(header[2]) & 0xFF if following != wire.NO_BLOCK else 0
        exponent = 255 if exponent == 255 else min(exponent + int(rng.integers(3)), 254)
        # Of two answers about one round, halves above all, both say the same.
        key = asked[50:58]
        following, exponent, again = self.said.setdefault(key, (following, exponent, again))
        if kind is Kind.STATUS:
            exponent = int(rng.integers(3)) if self.tree else 0
            header[3] += np.uint32(rng.random() < 0.3)  # what others say of the round after
        header[0] = 0x10000000 | kind << 24 | (flags | again) << 16 | RANK
        header[2] = header[2] & 0xFFFFFF00 | exponent
        header[5] = following
        header[7:] = 0, int(rng.integers(1, 1 << WORLD)) if kind is Kind.STATUS else 7
        frame = bytearray(TEMPLATES[lanes])
        frame[wire.AGG_OFFSET : wire.PAYLOAD_OFFSET] = header.astype(">u4").tobytes()
        lane = np.dtype(f">i{1024 // width}")
        limit = np.iinfo(lane).max // 2
        sums = rng.integers(-limit, limit, lanes // lane.itemsize).astype(lane)
        frame[wire.PAYLOAD_OFFSET :] = sums.tobytes()
        if rng.random() < 0.02:
            place = int(rng.integers(wire.PAYLOAD_OFFSET))
            # Not in the exponent agreed: numbers beyond it are not for lanes. Not so that a slot is
            # told another one's block next: low bytes of that, and of an opening's slot.
            kept = (11, 22, 23, 9) if block == wire.NO_BLOCK else (11, 22, 23)
            if place - wire.AGG_OFFSET not in kept:
                frame[place] ^= 1 << int(rng.integers(8))
        return bytes(frame)

    def _count(self, slot: int) -> int:
        return int(self.machines[1]._count[slot])

    def receive_plain(self) -> None:
        """Take a batch of whole results, one for each of some slots, as they should be."""
        frames = []
        for slot in self.rng.permutation(list(self.asked))[: self.rng.integers(1, 40)].tolist():
            asked = self.asked.pop(slot)
            header = np.frombuffer(asked, ">u4", 9, wire.AGG_OFFSET).astype(np.uint32)
            flags = int(Flag.PAYLOAD) if header[4] != wire.NO_BLOCK else 0
            frame = bytearray(TEMPLATES[1024 if flags else 0])
            header[0] = 0x10000000 | Kind.RESULT << 24 | flags << 16 | RANK
            frame[wire.AGG_OFFSET : wire.PAYLOAD_OFFSET] = header.astype(">u4").tobytes()
            frames.append(bytes(frame))
        self._take(frames)

    def receive_beside(self, what: str) -> None:
        """Take results of all slots, in any order, with one among them that ends everything."""
        frames = []
        slots = list(self.asked)
        bad = slots[int(self.rng.integers(len(slots)))]
        for slot in slots:
            header = np.frombuffer(self.asked[slot], ">u4", 9, wire.AGG_OFFSET).astype(np.uint32)
            flags = int(Flag.PAYLOAD) if header[4] != wire.NO_BLOCK else 0
            kind = Kind.RESULT
            if slot == bad and what == "mismatch":
                flags |= int(Flag.MISMATCH)
            elif slot == bad:
                kind, flags = Kind.STATUS, 0
                header[7:] = 0, 1 << RANK  # only this one was heard
            frame = bytearray(TEMPLATES[1024 if flags & Flag.PAYLOAD else 0])
            header[0] = 0x10000000 | kind << 24 | flags << 16 | RANK
            header[2] &= 0xFFFFFF00 if kind is Kind.STATUS else 0xFFFFFFFF
            frame[wire.AGG_OFFSET : wire.PAYLOAD_OFFSET] = header.astype(">u4").tobytes()
            frames.append(bytes(frame))
        self.rng.shuffle(frames)  # type: ignore[arg-type]  # a list is a sequence
        self._take(frames)

    def receive(self) -> None:
        """Take a batch, with frames in it that came before."""
        frames = [self.answer() for _ in range(int(self.rng.choice([1, 2, 8, 40])))]
        frames += [
            self.old[int(self.rng.integers(len(self.old)))]
            for _ in range(int(self.rng.integers(3)))
            if self.old
        ]
        frames += self.ask_for_room()
        self.rng.shuffle(frames)  # type: ignore[arg-type]  # a list is a sequence
        self.old = [*self.old[-20:], *frames[:5]]
        self._take(frames)

    def ask_for_room(self) -> list[bytes]:
        """What a switch of a tree says to some contributions without lanes, once or twice."""
        machine = self.machines[1]
        bare = (machine._expected >= 0) & (machine._row % 3 == 0) & (machine._block >= 0)
        frames = []
        for slot in np.flatnonzero(bare & self.tree & (self.rng.random(self.slots) < 0.5)):
            frame = bytearray(TEMPLATES[0])
            header = machine.outgoing.header[machine._row[slot]].copy()
            header[0] = 0x10000000 | Kind.STATUS << 24 | Flag.PADDED << 16 | RANK
            header[2] &= 0xFFFFFF00
            header[7:] = 0, 7
            frame[wire.AGG_OFFSET :] = header.astype(">u4").tobytes()
            frames += [bytes(frame)] * int(self.rng.integers(1, 3))
        return frames

    def _take(self, frames: list[bytes]) -> None:
        for machine in self.machines:
            buffer = FrameBuffer(len(frames))
            for row, frame in enumerate(frames):
                buffer.put(row, frame)
            with np.errstate(all="ignore"):
                machine.receive(buffer, len(frames), self.now)

    def wait(self) -> None:
        """Let time pass and timers run out."""
        self.now += float(self.rng.choice([0.0, 1e-4, 0.01, 0.3]))
        for machine in self.machines:
            machine.expire(self.now)

    def compare_estimates(self) -> None:
        """Whether both have the same estimates, timers and window."""
        one, other = self.machines
        for name in ("timeout", "opening_timeout"):
            figures = [getattr(machine.timers, name).figures for machine in self.machines]
            assert figures[0] == pytest.approx(figures[1], rel=1e-12), name
        assert one.timers._due == pytest.approx(other.timers._due, rel=1e-12)
        numbers, times = one.gate.window.figures
        assert numbers == other.gate.window.figures[0]
        assert times == pytest.approx(other.gate.window.figures[1], rel=1e-12)

    def forget_estimates(self) -> None:
        """Give both the same: several samples at once may be taken in one order or the other."""
        one, other = self.machines
        other.timers.timeout.figures = one.timers.timeout.figures
        other.timers.opening_timeout.figures = one.timers.opening_timeout.figures
        other.timers._due[:] = one.timers._due
        other.gate.window.figures = one.gate.window.figures

    @property
    def broken(self) -> bool:
        errors = [machine.broken for machine in self.machines]
        assert (errors[0] is None) == (errors[1] is None)
        return errors[0] is not None

    def compare(self) -> None:
        """Whether both are in the same state, have the same sums and have counted the same."""
        one, other = self.machines
        for name in STATE:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for name in TIMES:
            assert np.array_equal(getattr(one.timers, name), getattr(other.timers, name)), name
        assert one.timers.flags == other.timers.flags
        runs = [np.isfinite(machine.timers._due) for machine in self.machines]
        assert np.array_equal(*runs)
        assert one.timers.round_trips.count == other.timers.round_trips.count
        trips = [sorted(machine.timers.round_trips.seconds) for machine in self.machines]
        assert trips[0] == trips[1]
        assert np.array_equal(one.gate._waiting, other.gate._waiting)
        assert np.array_equal(one.gate._order, other.gate._order)
        assert one.gate.holds_back == other.gate.holds_back
        assert asdict(one.counts) == asdict(other.counts)
        live = one._row[one._expected >= 0]
        assert [one.outgoing.get(row) for row in live] == [other.outgoing.get(row) for row in live]
        for (first, second), outs in zip(self.collectives, self.outs, strict=True):
            assert first.done() == second.done()
            assert type(first.error) is type(second.error)
            assert first.overflowed == second.overflowed
            assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("tree", [False, True], ids=["one-switch", "tree"])
@pytest.mark.parametrize("slots", [1, 4, 48])
def test_random_answers_lead_to_the_same_state(
    slots: int, tree: bool, rng: np.random.Generator
) -> None:
    regular = padded = 0
    for _ in range(4 if tree else 3):
        twins = Twins(slots, rng, tree)
        for _ in range(30):
            while sum(not one[0].done() for one in twins.collectives) < 3:
                twins.submit()
            twins.send()
            twins.receive()
            if twins.broken:
                break
            twins.compare()
            twins.forget_estimates()
            twins.wait()
            twins.compare()
        regular += twins.machines[0].counts.blocks_received
        padded += twins.machines[0].counts.padded
    assert regular > 0, "it does not get far in"
    assert padded > 0 or not tree or slots == 1, "no switch asks for room"


@pytest.mark.parametrize("what", ["mismatch", "left"])
@pytest.mark.parametrize("tree", [False, True], ids=["one-switch", "tree"])
def test_beside_what_ends_everything_nothing_counts(
    what: str, tree: bool, rng: np.random.Generator
) -> None:
    """What is in one batch with it leads to nothing in either: no sum and no next round."""
    for rounds in range(4):
        twins = Twins(8, rng, tree)
        while len(twins.asked) < 8 or len(twins.collectives) < 2:
            twins.submit()
            twins.send()
        for _ in range(rounds):
            twins.receive_plain()
            twins.send()
        if not twins.asked:
            continue
        if what == "left":
            for machine in twins.machines:
                machine.ranks_left((2,), twins.now)
        begun = twins.machines[0]._next_round.copy()
        received = twins.machines[0].counts.blocks_received
        twins.receive_beside(what)
        assert twins.broken
        twins.compare()
        assert np.array_equal(twins.machines[0]._next_round, begun)
        assert twins.machines[0].counts.blocks_received == received


@pytest.mark.parametrize("left", [(2,), (4,), (2, 4)], ids=["here", "elsewhere", "both"])
def test_ranks_of_a_tree_that_left(left: tuple[int, ...], rng: np.random.Generator) -> None:
    """Both machines end by the same status, if by any."""
    broken = 0
    for _ in range(10):
        twins = Twins(8, rng, tree=True)
        for turn in range(30):
            if turn == 3:
                for machine in twins.machines:
                    machine.ranks_left(left, twins.now)
            while not twins.broken and sum(not one[0].done() for one in twins.collectives) < 3:
                twins.submit()
            if twins.broken:
                break
            twins.send()
            twins.receive()
            twins.compare()
            twins.forget_estimates()
        broken += twins.broken
        errors = [machine.broken for machine in twins.machines]
        assert str(errors[0]) == str(errors[1])
    assert broken


@pytest.mark.parametrize("slots", [1, 48])
def test_timers_and_window_learn_the_same(slots: int, rng: np.random.Generator) -> None:
    twins = Twins(slots, rng)
    for _ in range(40):
        while not twins.asked:
            twins.submit()
            twins.send()
        twins.now += float(rng.choice([1e-4, 1e-3, 0.01]))
        twins.receive_plain()
        twins.compare()
        twins.compare_estimates()
        twins.now += float(rng.choice([0.0, 1e-4, 0.1]))
        for machine in twins.machines:
            machine.expire(twins.now)
        twins.send()
        twins.compare_estimates()
    assert twins.machines[0].timers.round_trips.count > 0


def test_a_collective_that_begins_in_another_slot_is_another_to_c() -> None:
    """What C knows it by says where its first stripe is, which its latest start has decided."""
    machines = [
        SlotMachine(
            slots=2, job=JOB, rank=RANK, world_size=WORLD, here=HERE, switch=SWITCH, native=native
        )
        for native in (True, False, True, False)
    ]
    lone, behind = machines[:2], machines[2:]

    def call(blocks: int, sequence: int) -> Collective:
        array = np.ones(256 * blocks, np.int32)
        plan = plans.allreduce(array, Operation.SUM, None, array.copy(), world_size=WORLD)
        return Collective(
            plan.call, plan.source, plan.target, sequence=sequence, slots=2, timeout=1e6
        )

    for first, second in zip(lone, behind, strict=True):
        again = call(2, 1)
        first.submit(again)
        assert again.offset == 0
        again.placed = False
        second.submit(call(1, 0))
        second._end_stripes(second._collectives[0], np.array([0]))
        second.submit(again)
        assert again.offset == 1
    for name in STATE:
        assert np.array_equal(*(getattr(machine, name) for machine in behind)), name
    assert np.array_equal(*(machine.gate._order for machine in behind))
    assert behind[0]._announced.tolist() == [1, 0]
