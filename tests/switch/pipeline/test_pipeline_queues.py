# SPDX-License-Identifier: Apache-2.0
"""Egress queues: what leaves, in which order, and what egress is told (programs/queues.p4)."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.clone_sessions import CloneSession
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.queue_settings import QueueSettings
from pipeline_programs import AGGREGATION, ENGINES, config, make

pytestmark = pytest.mark.usefixtures("engine")

PROBE = struct.Struct(">HBBBBIIII")
START_NS = 5_000_000_000
MS = 1_000_000
GROUP = 0x8000


@dataclass(frozen=True)
class Seen:
    """What came out: the probe's own fields and those of the queue, in microseconds and frames."""

    port: int
    tag: int
    enqueued: int
    before: int
    waited: int
    behind: int


class Clocked:
    """A pipeline whose clock the test sets."""

    def __init__(self, **queues: Any) -> None:
        self.now_ns = START_NS
        self.pipeline: Pipeline = make(
            config("queues"), clock=lambda: self.now_ns, queues=QueueSettings(**queues)
        )

    def send(self, to: int, tag: int, priority: int = 0, clone: int = 0, turns: int = 0) -> Any:
        frame = PROBE.pack(to, priority, clone, turns, tag, 0, 0, 0, 0) + b"payload"
        return seen(self.pipeline.process(9, frame))

    def after(self, ns: int) -> list[Seen]:
        """What comes out once this time has passed."""
        self.now_ns += ns
        return seen(self.pipeline.release())

    @property
    def stats(self) -> dict[str, int]:
        return {k: v for k, v in self.pipeline.stats.as_dict().items() if v}


def seen(frames: list[tuple[int, bytes]]) -> list[Seen]:
    found = []
    for port, frame in frames:
        _, _, _, _, tag, enqueued, before, waited, behind = PROBE.unpack_from(frame)
        assert frame[PROBE.size :] == b"payload"
        found.append(Seen(port, tag, enqueued, before, waited, behind))
    return found


def test_without_a_rate_nothing_waits() -> None:
    switch = Clocked()
    assert switch.send(3, tag=1) == [Seen(3, 1, 0, 0, 0, 0)]
    switch.now_ns += 1_234_567
    assert switch.send(3, tag=2) == [Seen(3, 2, 1234, 0, 0, 0)]
    assert switch.stats == {"frames_in": 2, "frames_out": 2}


def test_a_burst_at_a_slow_queue() -> None:
    switch = Clocked(rate=1000, depth=4)
    assert switch.send(3, tag=0) == [Seen(3, 0, 0, 0, 0, 0)]
    for tag in range(1, 8):  # four wait, three find the queue full
        assert switch.send(3, tag) == []
    assert switch.after(MS - 1) == []
    assert switch.after(1) == [Seen(3, 1, 0, 0, 1000, 3)]
    assert switch.send(3, tag=9) == []  # there is room again
    assert switch.after(3 * MS) == [
        Seen(3, 2, 0, 1, 4000, 3),
        Seen(3, 3, 0, 2, 4000, 2),
        Seen(3, 4, 0, 3, 4000, 1),
    ]
    assert switch.after(MS) == [Seen(3, 9, 1000, 3, 4000, 0)]
    assert switch.after(1000 * MS) == []
    assert switch.stats == {"frames_in": 9, "frames_out": 6, "dropped_queue": 3}


def test_what_is_late_does_not_make_the_next_late() -> None:
    switch = Clocked(rate=1000)
    for tag in range(4):
        switch.send(3, tag)
    assert [frame.tag for frame in switch.after(2 * MS + MS // 2)] == [1, 2]
    assert [frame.tag for frame in switch.after(MS // 2)] == [3]


def test_a_queue_that_was_idle_has_saved_nothing() -> None:
    switch = Clocked(rate=1000)
    switch.send(3, tag=0)
    switch.after(100 * MS)
    assert [frame.tag for frame in switch.send(3, tag=1)] == [1]
    assert switch.send(3, tag=2) == []
    assert [frame.tag for frame in switch.after(MS)] == [2]


def test_higher_priorities_go_first() -> None:
    switch = Clocked(priorities=8, rate=1000)
    order = [3, 0, 7, 5, 7, 0, 3, 5]
    for tag, priority in enumerate(order):
        switch.send(1, 100 + tag, priority)  # the first of each priority leaves at once
    # Each priority has a rate of its own, so one of each is due; the highest leaves first.
    assert [frame.tag for frame in switch.after(MS)] == [104, 107, 106, 105]
    for tag, priority in enumerate(order * 3):
        switch.send(2, tag, priority)
    released = [order[frame.tag % 8] for frame in switch.after(10 * MS)]
    assert released == sorted(released, reverse=True)
    assert len(released) == 20


def test_ports_have_queues_of_their_own() -> None:
    switch = Clocked(depth=1, port_depths={2: 3}, rate=1000, port_rates={2: 500, 3: 0})
    for tag in range(5):
        for port in (1, 2):
            switch.send(port, tag)
        assert len(switch.send(3, tag)) == 1
    assert [(f.port, f.tag) for f in switch.after(MS)] == [(1, 1)]
    assert [(f.port, f.tag) for f in switch.after(MS)] == [(2, 1)]
    assert [(f.port, f.tag) for f in switch.after(4 * MS)] == [(2, 2), (2, 3)]
    assert switch.stats["dropped_queue"] == 3 + 1


def test_a_depth_of_nothing_drops_all() -> None:
    switch = Clocked(port_depths={1: 0})
    assert switch.send(1, tag=1) == []
    assert len(switch.send(2, tag=1)) == 1
    assert switch.stats["dropped_queue"] == 1


def test_a_priority_without_a_queue_drops() -> None:
    """As simple_switch: "Priority out of range, dropping packet"."""
    switch = Clocked(priorities=3)
    assert [len(switch.send(1, tag=1, priority=p)) for p in range(8)] == [1] * 3 + [0] * 5
    assert switch.stats["dropped_priority"] == 5
    assert [len(Clocked().send(1, tag=1, priority=p)) for p in (0, 1)] == [1, 0]


def test_replicas_queue_one_by_one() -> None:
    switch = Clocked(rate=1000)
    switch.pipeline.multicast.insert(5, [Replica(p, i) for i, p in enumerate((1, 2, 1, 1, 2))])
    assert switch.send(GROUP | 5, tag=0) == [Seen(1, 0, 0, 0, 0, 2), Seen(2, 0, 0, 0, 0, 1)]
    assert [(f.port, f.before) for f in switch.after(2 * MS)] == [(1, 1), (2, 1), (1, 2)]


def test_clones_from_egress_queue() -> None:
    """Their metadata is zero, so they go to the queue of priority 0."""
    switch = Clocked(priorities=2, rate=1000)
    switch.pipeline.clone_sessions.insert(7, CloneSession((Replica(4, 1), Replica(4, 2))))
    found = switch.send(1, tag=1, priority=1, clone=7)
    assert [(f.port, f.tag) for f in found] == [(1, 1), (4, 101)]
    assert switch.after(MS) == [Seen(4, 101, 0, 1, 1000, 0)]
    assert switch.stats == {"frames_in": 1, "frames_out": 3}


def test_recirculated_frames_queue_again() -> None:
    switch = Clocked(rate=1000)
    assert switch.send(1, tag=1, turns=3) == []
    assert switch.after(MS) == []
    assert switch.after(MS) == []
    assert switch.after(MS) == [Seen(1, 1, 2000, 0, 1000, 0)]
    assert switch.stats == {"frames_in": 1, "frames_out": 1}


def test_frames_in_circles_hold_nobody_up() -> None:
    """No call runs egress more than 1,024 times; what is left runs in the next one."""
    switch = Clocked(rate=0, depth=20)
    switch.pipeline.multicast.insert(5, [Replica(1, number) for number in range(20)])
    assert switch.send(GROUP | 5, tag=1, turns=255) == []
    calls = 1  # 256 times twenty frames run through egress
    while not (found := switch.after(0)):
        calls += 1
    assert calls + 1 == 256 * 20 // 1024
    assert len(found) == 20
    assert switch.stats["dropped_queue"] == 255 * 20 * 19


def test_programs_without_queues_have_none() -> None:
    assert not make(AGGREGATION.read_bytes()).has_queues
    assert make(AGGREGATION.read_bytes(), queues=QueueSettings(rate=10)).has_queues
    assert not make(config("tables")).has_queues
    assert make(config("queues")).has_queues


def test_a_program_that_knows_no_queues_has_them_where_they_are_set() -> None:
    now = START_NS
    settings = QueueSettings(rate=1000)
    pipeline = make(config("flow"), clock=lambda: now, queues=settings)
    plain = make(config("flow"))
    wanted = [plain.process(1, bytes([n]) * 60) for n in range(40)]
    found = []
    for n in range(40):
        frames = pipeline.process(1, bytes([n]) * 60)
        now += 100 * MS
        found.append(frames + pipeline.release())
    assert sum(map(len, wanted)) > 0
    assert [sorted(frames) for frames in found] == [sorted(frames) for frames in wanted]


@pytest.mark.parametrize(
    "wrong",
    [
        {"priorities": 0},
        {"priorities": 9},
        {"depth": -1},
        {"depth": 1 << 19},
        {"rate": 10**9 + 1},
        {"port_depths": {1: -1}},
        {"port_rates": {1: -1}},
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not within"):
        QueueSettings(**wrong)


def test_both_engines_alike() -> None:
    """Random frames at random times, on both engines, with random queues."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    for _ in range(4):
        run_both(choose)


def run_both(choose: random.Random) -> None:
    settings = QueueSettings(
        priorities=choose.randint(1, 8),
        depth=choose.randint(0, 6),
        rate=choose.choice((0, 100, 1000, 1500)),
        port_depths={1: choose.randint(0, 6)},
        port_rates={2: choose.choice((0, 10, 700))},
    )
    now = START_NS
    both = [
        engine(config("queues"), clock=lambda: now, queues=settings) for engine in ENGINES.values()
    ]
    for pipeline in both:
        pipeline.multicast.insert(5, [Replica(p, i) for i, p in enumerate((1, 2, 1, 3))])
        pipeline.clone_sessions.insert(7, CloneSession((Replica(2, 1), Replica(3, 2))))
    for number in range(300):
        frame = PROBE.pack(
            choose.choice((1, 2, 3, 88, GROUP | 5, GROUP | 6)),
            choose.randrange(8),
            choose.choice((0, 0, 0, 7)),
            choose.choice((0, 0, 1, 3)),
            number % 100,
            *(0,) * 4,
        )
        one, other = (pipeline.process(1, frame) for pipeline in both)
        assert one == other, f"frame {number} of {settings}"
        now += choose.choice((0, 0, 1000, MS // 3, 5 * MS))
        one, other = (pipeline.release() for pipeline in both)
        assert one == other, f"after frame {number} of {settings}"
    assert both[0].stats.as_dict() == both[1].stats.as_dict()
