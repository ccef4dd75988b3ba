# SPDX-License-Identifier: Apache-2.0
"""Small simulations of whole jobs; `make scale` has the one of 4,096 ranks."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict

import pytest

from bench.scale import cost, simulation
from bench.scale.links import Faults, Links, Place
from bench.scale.ranks import Tensor
from bench.scale.shape import Shape
from bench.scale.simulation import Simulation, StuckError, WrongSumError

TENSORS = (Tensor("float32", 12, 0.3), Tensor("int32", 5), Tensor("float32", 3))
FAULTS = Faults(loss=0.05, duplication=0.05, reordering=0.2)
NONE = Faults()


@pytest.mark.parametrize("fanouts", [(1,), (5,), (20,), (3, 4), (2, 2, 3)])
def test_every_sum_is_exact_whatever_links_do(fanouts: tuple[int, ...]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    job = Simulation(Shape(fanouts), 4, FAULTS, seed)
    outcomes = [job.run(TENSORS)]
    assert outcomes[0].ranks == Shape(fanouts).ranks
    # All frames of a small job may get through; the next run has other ones.
    while not outcomes[-1].lost and len(outcomes) < 50:
        outcomes.append(job.run(TENSORS))
    assert outcomes[-1].lost > 0


def test_a_network_without_faults_carries_the_least_there_is() -> None:
    outcome = Simulation(Shape((6,)), 4, NONE, 1).run((Tensor("int32", 10),))
    # Four stripes are opened, then ten blocks; each contribution has a result.
    assert outcome.contributions == 6 * (4 + 10)
    assert outcome.repeated == 0
    assert outcome.frames == 2 * outcome.contributions
    assert outcome.octets == 2 * 6 * (4 * 78 + 10 * 1102)


def test_few_ranks_repeat_what_one_of_them_has_lost() -> None:
    """Where many are at a switch, one of them asks for all; see docs/protocol.md, "Who asks"."""
    outcome = Simulation(Shape((16, 2)), 4, Faults(loss=0.01), 1).run((Tensor("int32", 12),))
    assert outcome.lost > 0
    assert outcome.repeated < 0.3


def test_the_same_seed_is_the_same_run() -> None:
    def figures() -> dict[str, object]:
        found = asdict(Simulation(Shape((4,)), 4, FAULTS, 3).run(TENSORS))
        return {name: value for name, value in found.items() if not name.endswith("_cpu")}

    assert figures() == figures()


@pytest.mark.long
def test_jobs_in_turns_do_not_know_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the processor are those of a clock that jumps: 1 s whenever it is looked at."""
    ticks = itertools.count()
    monkeypatch.setattr(simulation.time, "process_time", lambda: float(next(ticks)))
    alone = Simulation(Shape((3, 2)), 4, FAULTS, 3).run(TENSORS)
    made = []

    def small(number: int) -> Simulation:
        made.append(number)
        return Simulation(Shape((2,)), 4, NONE, number)

    found = cost.in_turns(Simulation(Shape((3, 2)), 4, FAULTS, 3), small, TENSORS)
    assert found.large.frames == alone.frames
    assert found.large.run_cpu == pytest.approx(alone.run_cpu)  # nothing of the small ones
    assert made == list(range(len(found.small)))
    assert len(found.small) == -(-round(alone.run_cpu) // int(cost.EVERY))
    each = sum(one.run_cpu for one in found.small) / sum(one.contributions for one in found.small)
    needed = found.large.run_cpu / found.large.contributions
    assert found.by_needed == pytest.approx(needed / each)
    assert found.by_sent < found.by_needed  # as something was repeated, in the large one alone


def test_several_calls_of_run_go_on_with_the_same_job() -> None:
    job = Simulation(Shape((2, 2)), 4, FAULTS, 4)
    job.run(TENSORS)
    job.run(TENSORS)


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tampering(Links):
        def send(self, node: int, copies: object) -> None:
            some = list(copies)  # type: ignore[call-overload]
            tampered = [
                (port, frame[:-1] + bytes([frame[-1] ^ 1]) if len(frame) == 1102 else frame)
                for port, frame in some
            ]
            super().send(node, tampered if node == 1 else some)

    monkeypatch.setattr(simulation, "Links", Tampering)
    with pytest.raises(WrongSumError, match=r"wrong sum of tensor 0 \(seed 5\)"):
        Simulation(Shape((3,)), 4, NONE, 5).run((Tensor("int32", 4),))


def test_a_job_that_does_not_get_on_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Links):
        def send(self, node: int, copies: object) -> None:
            super().send(node, [] if node == 1 else copies)  # type: ignore[arg-type]

    monkeypatch.setattr(simulation, "Links", Cut)
    monkeypatch.setattr(simulation, "MOST_TICKS", 100)
    with pytest.raises(StuckError, match=r"2 of 2 ranks .* \(seed 6\)"):
        Simulation(Shape((2,)), 4, NONE, 6).run((Tensor("int32", 4),))


def test_links_lose_and_duplicate_as_often_as_they_are_told() -> None:
    ends = {Place(0, 0): Place(1, 1), Place(1, 1): Place(0, 0)}
    links = Links(ends, Faults(0.25, 0.1, 0.5), seed=7)
    links.send(0, [(0, b"x")] * 10_000)
    arrived = [len(links.arrivals().get(1, [])) for _ in range(6)]
    assert links.frames == 10_000
    assert links.octets == 10_000
    assert links.lost == pytest.approx(2500, rel=0.1)
    assert sum(arrived) == pytest.approx(7500 * 1.1, rel=0.05)
    assert [bool(number) for number in arrived] == [True] * 4 + [False] * 2  # late by up to three
    with pytest.raises(ValueError, match="loss is 1"):
        Faults(loss=1)


def test_the_shape_of_a_tree() -> None:
    shape = Shape((3, 2))
    assert shape.ranks == 6
    assert [list(level) for level in shape.levels] == [[0, 1, 2, 3, 4, 5], [6, 7], [8]]
    assert shape.root == 8
    assert shape.children(7) == [3, 4, 5]
    assert shape.parent(4) == Place(7, 2)
    assert shape.parent(7) == Place(8, 2)
    assert (shape.uplink(4), shape.uplink(7)) == (0, 4)
    assert shape.ends()[Place(8, 1)] == Place(6, 4)
    leaf, root = shape.levels_above(7)
    assert leaf.ranks(0b101) == (3, 5)
    assert root.ranks(0b10) == (3, 4, 5)
    assert [child.switch for child in root.children] == ["s000006", "s000007"]
    with pytest.raises(ValueError, match="1 to 64"):
        Shape((65,))
    with pytest.raises(ValueError, match="no parent"):
        shape.parent(8)
