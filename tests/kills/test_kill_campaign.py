# SPDX-License-Identifier: Apache-2.0
"""Random parts are killed, stopped and brought back at random moments, trial after trial.

A trial is good if no sum was wrong, every rank has ended, and each was told what had happened. A
rank that is lost is named to all others. Whatever else is killed and brought back costs time alone.
`KILLS=100 SEED=7 pytest tests/kills -m long -s` has a hundred trials in each place, and
`KILL_PLACES=udp,tree` in those alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kill_systems import CONTROLLER, PLACES, Broken, KillRanks, Place, running
from p4reduce_lab.switches import bmv2

KILLS = int(os.environ.get("KILLS") or 6)
ASKED = os.environ.get("KILL_PLACES")
TIMEOUT = 90.0  # seconds, of a collective
SILENT = TIMEOUT / 2  # seconds beyond `away` that a step may take
LEASE = 10.0  # seconds, the controller's default

pytestmark = [pytest.mark.long, pytest.mark.timeout(600 + 300 * KILLS)]


@dataclass
class Trial:
    """One trial: what is done, and what ranks may be lost by it.

    Attributes:
        did: what was done, with the moments.
        lost: ranks that were killed.
        away: for how many seconds something was away, or about to come back.
    """

    broken: Broken
    ranks: KillRanks
    draw: random.Random
    did: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    away: float = 0.0

    def say(self, what: str) -> None:
        """Note what is done."""
        self.did.append(what)

    def pause(self, most: float) -> None:
        """Let a random time go by."""
        seconds = self.draw.uniform(0.0, most)
        self.say(f"{seconds:.3f} s")
        time.sleep(seconds)

    def kill(self, name: str) -> None:
        """End a switch or the controller, by one of two signals."""
        number = self.draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        # A controller that is told to end ends its jobs.
        number = signal.SIGKILL if name == CONTROLLER else number
        self.say(f"{number.name} to {name}")
        self.broken.kill(name, number)

    def start(self, name: str) -> None:
        """Bring it back."""
        self.say(f"start {name}")
        self.broken.start(name)

    def a_switch(self) -> str:
        """Draw one."""
        return self.draw.choice(sorted(self.broken.switches))

    def a_rank(self) -> int:
        """Draw one that was not lost."""
        return self.draw.choice([n for n in range(self.ranks.count) if n not in self.lost])


def switch_again(trial: Trial) -> None:
    """A switch, killed and brought back, once to three times."""
    for _ in range(trial.draw.randint(1, 3)):
        name = trial.a_switch()
        trial.kill(name)
        trial.pause(1.5)
        trial.start(name)
        trial.pause(1.0)


def all_switches(trial: Trial) -> None:
    """All switches, brought back in another order."""
    names = sorted(trial.broken.switches)
    for one in trial.draw.sample(names, len(names)):
        trial.kill(one)
        trial.pause(0.3)
    for one in trial.draw.sample(names, len(names)):
        trial.start(one)
        trial.pause(0.5)


def controller_again(trial: Trial) -> None:
    """The controller, killed and brought back."""
    trial.kill(CONTROLLER)
    trial.pause(1.0)
    trial.start(CONTROLLER)
    trial.pause(1.0)


def both_again(trial: Trial) -> None:
    """A switch and the controller, in any order."""
    names = [trial.a_switch(), CONTROLLER]
    for one in trial.draw.sample(names, 2):
        trial.kill(one)
        trial.pause(0.5)
    for one in trial.draw.sample(names, 2):
        trial.start(one)
        trial.pause(0.5)


def stopped(trial: Trial) -> None:
    """A switch or the controller, stopped for less than a lease."""
    name = trial.draw.choice([trial.a_switch(), CONTROLLER])
    trial.say(f"SIGSTOP to {name}")
    with trial.broken.stopped(name):
        trial.pause(LEASE / 4)
    trial.say("SIGCONT")


def rank_stopped(trial: Trial) -> None:
    """A rank, stopped for less than a lease."""
    rank = trial.a_rank()
    trial.say(f"SIGSTOP to rank {rank}")
    trial.ranks.signal(rank, signal.SIGSTOP)
    trial.pause(LEASE / 4)
    trial.ranks.signal(rank, signal.SIGCONT)
    trial.say("SIGCONT")


def rank_killed(trial: Trial) -> None:
    """A rank, killed for good."""
    rank = trial.a_rank()
    trial.say(f"SIGKILL to rank {rank}")
    trial.lost.append(rank)
    trial.ranks.signal(rank, signal.SIGKILL)
    trial.pause(1.0)


def rank_and_switch(trial: Trial) -> None:
    """A rank, killed for good, and a switch meanwhile."""
    works = [rank_killed, switch_again]
    for work in trial.draw.sample(works, 2):
        work(trial)


FAULTS: list[Callable[[Trial], None]] = [
    switch_again,
    rank_killed,
    controller_again,
    all_switches,
    both_again,
    rank_and_switch,
    stopped,
    rank_stopped,
]


def trouble(trial: Trial, records: list[dict[str, Any] | None], torch: bool) -> list[str]:
    """Return what is wrong with how the ranks ended."""
    wrong = [f"rank {rank} hangs" for rank in trial.ranks.hang()]
    for rank, record in enumerate(records):
        if rank in trial.lost:
            continue
        if record is None:
            wrong.append(f"rank {rank} has told nothing")
            continue
        if record["code"] != 0:
            wrong.append(f"rank {rank} ended with code {record['code']}")
        wrong += [f"rank {rank}: a wrong sum in {where}" for where in record["wrong"]]
        told = [record["text"], *record.get("told", ())]
        named = all(any(f"rank {one}" in text for text in told) for one in trial.lost)
        if not named or (torch and trial.lost and record["error"] is None):
            wrong.append(f"rank {rank} does not name {trial.lost}: {record}")
        elif torch and trial.lost:
            pass  # torch has no going on without a rank
        elif record["error"] is not None:
            wrong.append(f"rank {rank}: {record['error']}: {record['text']}")
        elif sorted(set(record["lost"])) != sorted(trial.lost):
            wrong.append(f"rank {rank} has heard that {record['lost']} were lost: {trial.lost}")
        seconds, step = record["longest"]
        if seconds > SILENT + trial.away:
            wrong.append(f"rank {rank}: {seconds:.1f} s in step {step}")
    return wrong


def disturb(trial: Trial, fault: Callable[[Trial], None], torch: bool) -> None:
    """Break something while the ranks sum, and bring it back. Raises if something hangs."""
    for rank in range(trial.ranks.count):
        trial.ranks.wait_for_step(rank, 2)
    trial.pause(0.5)
    began = time.monotonic()
    try:
        fault(trial)
        trial.broken.repair()
    finally:
        trial.away = time.monotonic() - began
    if not (torch and trial.lost):
        rank = trial.a_rank()
        trial.ranks.wait_for_step(rank, trial.ranks.steps(rank) + 3)


def one_trial(
    broken: Broken, place: Place, draw: random.Random, number: int, directory: Path
) -> list[str]:
    """Run ranks, break something, bring it back, and judge."""
    broken.repair()
    fault = FAULTS[number % len(FAULTS)]
    ranks = KillRanks(place, broken.system, directory, TIMEOUT)
    trial = Trial(broken, ranks, draw)
    wrong = []
    try:
        try:
            disturb(trial, fault, place.torch)
        except Exception as error:  # printed below, with what the processes wrote
            wrong.append(f"{type(error).__name__}: {error}")
        ranks.end()
        records = ranks.wait(3 * TIMEOUT)
        wrong += trouble(trial, records, place.torch)
        told = [record for record in records if record is not None]
        longest = max((record["longest"][0] for record in told), default=0.0)
        again = max((record["recoveries"] for record in told), default=0)
        print(
            f"trial {number}: {fault.__name__} ({'; '.join(trial.did)}): away {trial.away:.1f} s, "
            f"longest step {longest:.1f} s, {again} recoveries: {'; '.join(wrong) or 'well'}",
            flush=True,
        )
        if wrong:
            print("\n".join(ranks.written(rank) for rank in range(ranks.count)))
            print(broken.logs(), flush=True)
        return [f"trial {number}, {fault.__name__}: {text}" for text in wrong]
    finally:
        ranks.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.bmv2, pytest.mark.root] if place.switch == "bmv2" else [],
        )
        for name, place in PLACES.items()
    ],
)
def test_whatever_is_killed_no_sum_is_wrong_and_nothing_hangs(name: str, tmp_path: Path) -> None:
    place = PLACES[name]
    if ASKED and name not in ASKED.split(","):
        pytest.skip(f"KILL_PLACES={ASKED}")
    if place.torch:
        pytest.importorskip("torch", reason="needs torch: pip install 'p4reduce[torch]'")
    if place.switch == "bmv2" and (obstacle := bmv2.unavailable()):
        pytest.skip(obstacle)
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    wrong: list[str] = []
    with running(place) as broken:
        for number in range(KILLS):
            draw = random.Random(f"{seed} {name} {number}")
            wrong += one_trial(broken, place, draw, number, tmp_path / f"{name}-{number}")
    assert not wrong, f"{len(wrong)} of {KILLS} trials, seed {seed}:\n" + "\n".join(wrong)
