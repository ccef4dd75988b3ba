# SPDX-License-Identifier: Apache-2.0
"""What a job waits for, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p4reduce.control import control_pb2 as pb

from p4reduce_controller.jobs.job import Job, ranks_text

STUCK_AFTER = 2.0  # seconds that a round is open before a job counts as stuck


@dataclass(frozen=True)
class Stall:
    """Rounds of a job that stay open."""

    seconds: float  # how long the oldest has
    slots: int  # how many, of the switch that has most
    missing: frozenset[int]  # ranks that all of them lack


def sentence(job: Job, stall: Stall | None, now: float) -> str:
    """Say what `job` waits for; empty if nothing holds it up. `now` is of the monotonic clock."""
    if job.state.name == "FORMING":
        return f"Has not begun: {job.missing()}."
    if job.state.name == "FAILED":
        if not job.reformable:
            return f"Failed: {job.reason}."
        return (
            f"Failed: {job.reason}. It continues when "
            f"{ranks_text([member.rank for member in job.active])} call reform()."
        )
    if stall is None or stall.seconds < STUCK_AFTER:
        return ""
    slots = "1 slot" if stall.slots == 1 else f"{stall.slots} slots"
    if not stall.missing:
        return f"{slots} have waited {stall.seconds:.0f} s, for different ranks."
    return (
        f"Has waited {stall.seconds:.0f} s for {ranks_text(sorted(stall.missing))}, "
        f"in {slots}. {_heard(job, sorted(stall.missing), now)}"
    )


def _heard(job: Job, missing: Sequence[int], now: float) -> str:
    """Say whether the missing ranks live."""
    silent = [
        rank for rank in missing if (member := job.members.get(rank)) is None or not member.active
    ]
    if silent:
        return f"{ranks_text(silent).capitalize()} left or was lost."
    oldest = max(now - job.members[rank].heard for rank in missing)
    return (
        f"The last heartbeat came {oldest:.1f} s ago: the process is alive but does not contribute."
    )


def _joined(stalls: Mapping[str, Stall], leaves: Mapping[int, str]) -> Stall:
    """Make one of the stalls of a job's switches.

    A switch above others lacks all ranks of a branch where one is missing; which it is, the leaf
    knows.
    """
    missing = frozenset(
        rank
        for stall in stalls.values()
        for rank in stall.missing
        if (leaf := stalls.get(leaves.get(rank, ""))) is None or rank in leaf.missing
    )
    seconds = max(stall.seconds for stall in stalls.values())
    return Stall(seconds, max(stall.slots for stall in stalls.values()), missing)


class Stalls:
    """Finds rounds that stay open from one sample to the next."""

    def __init__(self) -> None:
        # By incarnation, switch and slot: the round that is open there, and since when.
        self._open: dict[tuple[int, str, int], tuple[int, float]] = {}

    def update(
        self, jobs: Sequence[pb.Job], switches: Mapping[str, pb.Slots | None], clock: float
    ) -> dict[int, Stall]:
        """Take the slots of all switches; return the stalled rounds by incarnation id.

        Rounds of switches whose slots are not there count as open as before.
        """
        before, there = self._open, {job.incarnation for job in jobs}
        unseen = {key for key in before if key[0] in there and switches.get(key[1]) is None}
        self._open = {key: before[key] for key in unseen}
        found: dict[int, dict[str, Stall]] = {}
        for name, slots in switches.items():
            for job in slots.jobs if slots is not None else ():
                waiting = []
                for slot in job.slots:
                    if slot.activity != pb.COLLECTING:
                        continue
                    key = job.incarnation, name, slot.slot
                    round_, since = before.get(key, (slot.round, clock))
                    if round_ != slot.round:
                        since = clock
                    self._open[key] = slot.round, since
                    if since < clock:
                        waiting.append((since, frozenset(slot.missing_ranks)))
                if waiting:
                    missing = frozenset.intersection(*(ranks for _, ranks in waiting))
                    oldest = clock - min(since for since, _ in waiting)
                    stall = Stall(oldest, len(waiting), missing)
                    found.setdefault(job.incarnation, {})[name] = stall
        leaves = {
            job.incarnation: {member.rank: member.switch for member in job.members} for job in jobs
        }
        return {job: _joined(of, leaves.get(job, {})) for job, of in found.items()}

    def repeated(self, incarnation: int, switch: str, slot: int, clock: float) -> bool:
        """Whether a slot's round was open in the last sample too, so ranks repeat it."""
        _, since = self._open.get((incarnation, switch, slot), (0, clock))
        return since < clock
