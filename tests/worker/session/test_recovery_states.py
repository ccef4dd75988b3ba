# SPDX-License-Identifier: Apache-2.0
"""Every transition of a recovery's table, walked by recoveries whose surroundings act at random."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from p4reduce.errors import (
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session import recovery
from p4reduce.session.membership import Seat
from p4reduce.session.recovery import Recovery
from p4reduce.session.recovery_states import ENDS, TRANSITIONS, Event, State, after
from p4reduce.wire.format import Endpoint

NOWHERE = Endpoint("02:00:00:00:00:01", "10.77.0.1", 1)
MOST_RUNS = 500
ROOT = Path(__file__).resolve().parents[3]


class Chance:
    """What the surroundings of a recovery do, drawn anew each time that they are asked."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0


class Surroundings:
    """The session, the seeker, the fallback switches, the agreement and the ring, by chance."""

    slots, urgent_slots, home, completed = 32, 0, 0, 6
    neighbourhood: Any = None

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.membership: Any = SimpleNamespace(who="rank 0", place=None)
        self.connect: Any = None
        self.broken: P4ReduceError | None = None
        self.fallback: Any = SimpleNamespace(after=0.0, listener=None) if chance.one_in(2) else None
        self.fallback_switches: Any = (
            None
            if chance.one_in(3)
            else SimpleNamespace(
                after=0.0, name=str, candidates=lambda home, homeless: [1], left=tuple
            )
        )
        self.is_over = False
        self.outcomes: list[str] = []

    def over(self) -> bool:
        self.is_over = self.is_over or self.chance.one_in(12)
        if self.is_over and self.broken is None:
            self.broken = P4ReduceError("closed")
        return self.is_over

    def under_way(self) -> list[Any]:
        late = self.chance.one_in(8)
        call = SimpleNamespace(
            deadline=0.0 if late else float("inf"), started=0.0, description="allreduce 1"
        )
        return [call]

    def machine(self, attached: Any) -> Any:
        return None

    def resume(self, found: Any, before: Any) -> None:
        if self.chance.one_in(3):
            raise SwitchUnreachableError("lost at once")
        self.outcomes.append("resumed")

    def give_up(self, error: P4ReduceError) -> None:
        self.outcomes.append(f"gave up: {error}")

    def __getattr__(self, name: str) -> Any:
        if name in {"halted", "moved", "moved_to", "unsettled", "without_switch"}:
            return lambda *_: None
        raise AttributeError(name)

    def halt(self, timeout: float) -> Any:
        if self.chance.one_in(2):
            raise P4ReduceTimeoutError("not yet", seconds=timeout)
        return "slots"


def recover(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[tuple[State, Event, State]]:
    chance = Chance(seed)
    around = Surroundings(chance)
    attached = SimpleNamespace(
        seat=SimpleNamespace(incarnation=2), transport=SimpleNamespace(close=lambda: None)
    )

    class FakeSeeker:
        awaited, switch_there, unheard = "a switch", False, False

        def __init__(self, *_: Any) -> None:
            self.all_lost, self.incarnation = chance.one_in(2), 0
            self.failed = P4ReduceError("no such job") if chance.one_in(6) else None

        def start(self) -> None: ...
        def cancel(self, timeout: float) -> None: ...

        def take(self) -> Any:
            found = recovery.Found(cast(Any, attached.transport), cast(Any, attached), 5)
            return found if self.found_at_last or chance.one_in(3) else None

        found_at_last = False

    class FakeMove:
        def __init__(self, others: Any, seat: Any, place: Any, check: Any) -> None:
            self._check = check

        def take_seat(self, at: int, slots: int, urgent: int) -> Any:
            self._check()
            if chance.one_in(3):
                raise SwitchUnreachableError("nobody there")
            if chance.one_in(6):
                raise WorkerLostError("rank 2 left", ranks=(2,))
            return SimpleNamespace(at=at, membership=around.membership, attached=attached)

    class FakeAgreement:
        engine: Any = None

        def __init__(self, *_: Any) -> None:
            self.deserted = chance.one_in(2)

        def reach(self, check: Any) -> int:
            check()
            if chance.one_in(2):
                raise SwitchUnreachableError("lost as well")
            return 5

        def give_up(self) -> None: ...

    class FakeRing:
        def __init__(self, host: Any, neighbours: Any, listener: Any, of: Any, left: Any) -> None:
            self._left = left

        def run(self) -> int:
            self._left("a rank", 1)
            FakeSeeker.found_at_last = True
            return 5

        def wake(self) -> None: ...

    for name, fake in (
        *(("Seeker", FakeSeeker), ("Move", FakeMove), ("Agreement", FakeAgreement)),
        *(("RingRun", FakeRing), ("leave_behind", lambda *_, **__: None)),
        *(("_HomeLook", lambda *_, **__: lambda: None), ("_ELSEWHERE_PAUSE", 0.0)),
        *(("_HOME_AGAIN", 0.0), ("_LONGEST_WAIT", 0.001), ("_RING_PAUSE", 0.0)),
    ):
        monkeypatch.setattr(recovery, name, fake)
    steps: list[tuple[State, Event, State]] = []

    def noted(state: State, event: Event) -> State:
        to = after(state, event)
        steps.append((state, event, to))
        return to

    monkeypatch.setattr(recovery, "after", noted)
    running = Recovery(
        cast(Any, around),
        cast(Any, SimpleNamespace(halt=around.halt, udp_port=0)),
        Seat(1, 0, 3, 1, NOWHERE, NOWHERE),
        "a test",
    )
    running.start()
    running.stop(60.0)
    assert running.state in ENDS, f"seed {seed}: {steps}"
    said = running.state is not State.UNWANTED
    assert len(around.outcomes) == said, f"seed {seed}: {around.outcomes}"
    assert not any("no transition" in outcome for outcome in around.outcomes), f"seed {seed}"
    return steps


def test_every_transition_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recovery ends in one way that the session hears of once; all of the table is used."""
    left = {(state, event) for state, moves in TRANSITIONS.items() for event in moves}
    for seed in range(MOST_RUNS):
        left -= {(state, event) for state, event, _ in recover(monkeypatch, seed)}
        if not left:
            return
    raise AssertionError(f"never seen: {left}")


def test_what_is_not_in_the_table_is_an_error() -> None:
    with pytest.raises(P4ReduceError, match="HALTING, which has no transition for AGREED"):
        after(State.HALTING, Event.AGREED)


def test_the_drawing_is_the_tables() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    drawing = tool["drawings"]()["recovery"]
    assert drawing in tool["drawn"]((ROOT / "docs" / "faults.md").read_text())
    assert drawing.count("-->") == 1 + sum(
        event not in {Event.FAILED, Event.UNWANTED}
        for moves in TRANSITIONS.values()
        for event in moves
    )
