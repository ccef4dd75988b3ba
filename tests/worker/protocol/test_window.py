# SPDX-License-Identifier: Apache-2.0
"""The window: it never stops a job, shortens queues, and leaves alone what is not one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from measured_timers import Timers
from one_process import OneProcess
from p4reduce.errors import ClosedError
from p4reduce.protocol.slots import SlotMachine
from p4reduce.reference.window import FLOOR, INITIAL, TARGET, Window
from p4reduce.statistics import RoundTrips
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation, class_slots
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import engine
from slow_links import Link, SlowLinks

# -- The numbers ---------------------------------------------------------------------------------


HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)


class Periods:
    """A window, and results for it a period at a time; once in Python and once in C."""

    def __init__(self, slots: int, shortest: float = 0.001) -> None:
        self.round_trips = RoundTrips()
        self.window = Window(slots, self.round_trips)
        self.machine = SlotMachine(
            slots=slots, job=1, rank=0, world_size=1, here=HERE, switch=SWITCH
        )
        functions = CHeader("worker/worker.h").functions(engine())
        self._completed, self._heard = functions.p4r_window_completed, functions.p4r_window_heard
        self._measured(np.array([shortest]))
        self.now = 0.0
        self.hear()

    def _measured(self, seconds: npt.NDArray[np.float64]) -> None:
        self.round_trips.add(seconds)
        self.machine.go_on_counting(self.machine.counts, self.round_trips)

    def hear(self) -> None:
        """The switch has sent something."""
        self.window.heard(self.now)
        self._heard(self.machine.state.address, self.now)

    def pass_by(self, round_trip: float, troubled: float = 0.0, bursts: bool = False) -> int:
        """One period. Results come evenly or all at once; a share of the rounds is troubled."""
        count = max(32, self.window.size)
        self._measured(np.full(count, round_trip))
        batches = 1 if bursts else 32
        for _ in range(batches):
            self.now += round_trip / batches
            self.hear()
        self.window.completed(count, int(count * troubled))
        self._completed(self.machine.state.address, count, int(count * troubled))
        assert self.machine.window_size == self.window.size
        return self.window.size


def test_it_grows_twofold_to_all_slots() -> None:
    periods = Periods(500)
    assert periods.window.size == INITIAL == 32
    assert [periods.pass_by(0.002) for _ in range(5)] == [64, 128, 256, 500, 500]


def test_it_is_what_takes_the_target_by_the_rate() -> None:
    """128 results in twice the target are 64 in it; then a queue of half of it or more is left."""
    periods = Periods(128)
    periods.pass_by(0.2 * TARGET)
    assert periods.pass_by(0.4 * TARGET) == 128
    assert periods.pass_by(2 * TARGET) == 64
    assert periods.pass_by(2 * TARGET) == 64  # sent before
    assert [periods.pass_by(share * TARGET) for share in (0.99, 0.51)] == [64, 64]
    assert [periods.pass_by(0.4 * TARGET) for _ in range(3)] == [72, 81, 91]  # by an eighth


def test_it_is_halved_at_most_and_has_a_floor() -> None:
    periods = Periods(32)
    sizes = [periods.pass_by(3.0) for _ in range(12)]
    assert sizes == [16, 16, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4]
    assert sizes[-1] == FLOOR
    assert Periods(2).window.size == 2
    small = Periods(2)
    assert [small.pass_by(3.0) for _ in range(4)] == [2] * 4


def test_losses_in_a_queue_halve_it_however_short_that_is() -> None:
    periods = Periods(32)
    assert periods.pass_by(0.005, troubled=0.2) == 32
    assert periods.pass_by(0.005, troubled=0.3) == 16


def test_losses_without_a_queue_do_not() -> None:
    periods = Periods(32)
    assert [periods.pass_by(0.003, troubled=0.9) for _ in range(5)] == [32] * 5


def test_bursts_are_no_queue() -> None:
    """Ranks that pause for longer than the target make round trips long, not queues."""
    periods = Periods(128)
    assert [periods.pass_by(0.2, bursts=True) for _ in range(3)] == [64, 128, 128]


def test_silence_while_nothing_is_under_way_does_not_count() -> None:
    periods = Periods(128)
    periods.pass_by(0.002)
    periods.window.idle()
    periods.machine.fail(ClosedError("nothing is under way"))
    periods.now += 1000
    periods.hear()
    periods.pass_by(0.002)
    assert periods.window.size == 128
    assert periods.pass_by(2 * TARGET) == 64


def test_timers_may_be_as_long_as_round_trips_need() -> None:
    """Else every frame of a long queue would be repeated, and make it longer."""
    periods = Periods(32)
    timers = Timers(periods.machine)
    for now in range(20):
        timers.measured(0.6, float(now))
    assert timers.seconds == 0.25
    periods.pass_by(0.6)
    timers.measured(0.6, 100.0)
    assert timers.seconds > 0.6
    periods.pass_by(0.01)
    timers.measured(0.6, 200.0)
    assert timers.seconds == 0.25


def test_random_periods_of_many_slots(rng: np.random.Generator) -> None:
    """`pass_by` compares Python with C. Most periods have no queue, so the window gets large."""
    greatest = 0
    for _ in range(40):
        periods = Periods(int(rng.integers(1, 1025)))
        for _ in range(20):
            seconds = TARGET * 2.0 ** rng.uniform(-2, 4) if rng.random() < 0.3 else 0.002
            troubled, bursts = rng.choice([0.0, 0.25, 0.3, 1.0]), rng.random() < 0.2
            greatest = max(greatest, periods.pass_by(float(seconds), float(troubled), bursts))
    assert greatest > 512


# -- The order -----------------------------------------------------------------------------------


def test_the_first_of_the_first_collective_go_first() -> None:
    machine = SlotMachine(slots=6, job=1, rank=0, world_size=2, here=HERE, switch=SWITCH)
    machine.window_size = 2
    for sequence in range(2):
        array = np.ones(3 * 256, np.int32)
        plan = plans.allreduce(array, Operation.SUM, None, array.copy(), world_size=2)
        machine.submit(
            Collective(
                plan.call, plan.source, plan.target, sequence=sequence, slots=6, timeout=60.0
            )
        )
    assert (machine.take_sendable() // 3).tolist() == [0, 1]
    assert machine.take_sendable().tolist() == []
    machine.window_size = 4
    assert (machine.take_sendable() // 3).tolist() == [2, 3]
    machine.window_size = 6
    assert (machine.take_sendable() // 3).tolist() == [4, 5]


# -- Deadlock ------------------------------------------------------------------------------------


class Caller:
    """A rank that calls collectives, some of them at once and some one after the other."""

    def __init__(
        self,
        system: OneProcess,
        rank: int,
        sizes: list[int],
        ahead: list[int],
        priorities: list[int],
    ) -> None:
        self._priorities = priorities
        self._classes = class_slots(system.slots, system.urgent)
        self.results: list[Any] = []
        self.collectives: list[Collective] = []
        self._system, self._rank, self._sizes, self._ahead = system, rank, sizes, ahead

    def call(self) -> None:
        """Call what does not have to wait any more."""
        while len(self.collectives) < len(self._sizes):
            number = len(self.collectives)
            waits_for = number - 1 - self._ahead[number]
            if waits_for >= 0 and not self.collectives[waits_for].done():
                return
            array = np.full(self._sizes[number] * 256, self._rank + 1, np.int32)
            self.results.append(np.empty_like(array))
            plan = plans.allreduce(
                array, Operation.SUM, None, self.results[-1], world_size=self._system.world_size
            ).with_priority(self._priorities[number])
            own = self._classes[self._priorities[number]]
            one = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=number,
                slots=len(own),
                first_slot=own.start,
                timeout=1e9,
            )
            self._system.machines[self._rank].submit(one)
            self.collectives.append(one)


@pytest.mark.long
@pytest.mark.parametrize("urgent", [(), (2,), (1, 2)])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_windows_of_any_sizes_never_stop_a_job(
    rng: np.random.Generator, loss: float, urgent: tuple[int, ...]
) -> None:
    """Each rank has another window, from a single slot on, and another one every few frames; with
    one, two and three classes of collectives.

    Frames arrive in any order, and ranks differ in how far they call ahead. Without losses no timer
    runs out here: if all had to wait, it would be for ever.
    """
    for _ in range(5 if loss else 12):
        system = OneProcess(3, 6, rng, loss, urgent)
        count = int(rng.integers(2, 7))
        sizes = rng.integers(1, 15, count).tolist()
        priorities = rng.integers(0, 1 + len(urgent), count).tolist()
        callers = [
            Caller(system, rank, sizes, rng.integers(0, 4, count).tolist(), priorities)
            for rank in range(3)
        ]
        steps = 0
        while not all(
            len(one.collectives) == count and all(each.done() for each in one.collectives)
            for one in callers
        ):
            for caller, machine in zip(callers, system.machines, strict=True):
                if rng.random() < 0.2:
                    machine.window_size = int(rng.integers(1, 7))
                caller.call()
            steps += 1
            assert steps < 100_000
            if not system.step():
                assert loss, "all wait for each other"
                system.tick()
        for caller in callers:
            for result in caller.results:
                assert (result == 1 + 2 + 3).all()


# -- Links ---------------------------------------------------------------------------------------


def repeated(system: SlowLinks) -> float:
    """Share of the contributions that were sent again."""
    counts = [machine.counts for machine in system.machines]
    again = sum(one.retransmissions for one in counts)
    return again / (sum(one.frames_sent for one in counts) - again)


def test_a_slow_link_is_filled_but_not_its_queue(rng: np.random.Generator) -> None:
    """256 slots are 0.23 s of frames for a link of 10 Mbit/s, longer than timers are at first."""
    links = {name: lambda: Link(rate=1.25e6) for name in ("up", "down")}
    system = SlowLinks(3, 256, rng, **links)
    blocks = 1200
    seconds, results = system.allreduce(blocks)
    assert all((result == 3).all() for result in results)
    assert seconds < 1.15 * blocks * 1102 / 1.25e6
    assert repeated(system) < 0.2
    for machine in system.machines:
        assert 20 < machine.window_size < 100
        assert machine.round_trips.typical(200) < 1.5 * TARGET


def test_a_queue_that_grows_makes_no_timer_run_out(rng: np.random.Generator) -> None:
    """Round trips grow from 0.3 to 16 ms with the window, and each rank pauses again and again."""
    links = {name: lambda: Link(rate=12.5e6, queue=230) for name in ("up", "down")}
    system = SlowLinks(4, 177, rng, pause=0.001, **links)
    for blocks in (200, 1000):
        system.allreduce(blocks)
    assert repeated(system) < 0.02
    assert {machine.window_size for machine in system.machines} == {177}


def test_a_short_queue_does_not_overflow_all_the_time(rng: np.random.Generator) -> None:
    """At the switch's port: 16 frames, where 128 slots' results come at once. Frames in vain are
    much fewer than with all slots, and it takes no longer."""
    blocks, again = 700, {}
    for fixed in (True, False):
        system = SlowLinks(
            2, 128, rng, up=lambda: Link(rate=12.5e6), down=lambda: Link(rate=1.25e6, queue=16)
        )
        for machine in system.machines if fixed else ():
            machine.window_size = machine.state.structure.floor = 128
        seconds, results = system.allreduce(blocks)
        assert all((result == 2).all() for result in results)
        assert seconds < 1.1 * blocks * 1102 / 1.25e6
        again[fixed] = repeated(system)
    assert again[False] < 0.7 * again[True]


@pytest.mark.parametrize("pause", [0.0, 0.03])
def test_random_losses_and_pauses_leave_the_window_alone(
    rng: np.random.Generator, pause: float
) -> None:
    system = SlowLinks(
        2, 64, rng, up=lambda: Link(loss=0.01), down=lambda: Link(loss=0.01), pause=pause
    )
    for _ in range(2):
        system.allreduce(400)
    assert [machine.window_size for machine in system.machines] == [64, 64]
