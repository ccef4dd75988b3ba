# SPDX-License-Identifier: Apache-2.0
"""All known jobs: the living, and for a while those that are over."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from p4reduce_controller.jobs import leases
from p4reduce_controller.jobs.holdings import Holdings
from p4reduce_controller.jobs.job import Job, JobMember, count_text
from p4reduce_controller.jobs.job_states import JobEvent
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError

SECRET_BYTES = 32
PAST_JOBS = 200  # ended ones that are remembered, for late heartbeats and for people


class JobListener(Protocol):
    """Acts on the decisions about jobs. It must not call `Jobs` before it returns."""

    def on_event(self, kind: str, job: Job | None, text: str) -> None:
        """Publish an event."""

    def configure(self, job: Job) -> None:
        """Install the job on its switches, then call `Jobs.on_configured` or `Jobs.fail`.

        If a switch is lost meanwhile, only `Jobs.on_part_lost` or `Jobs.on_part_back` is called.
        """

    def on_settled(self, job: Job) -> None:
        """The job is no longer forming: wake the calls that wait for it."""

    def remove(self, job: Job) -> None:
        """Remove the job from its switches, then call `Jobs.release`."""

    def look(self, job: Job) -> None:
        """Check whether the switches have a running job's entries, then call `Jobs.on_looked`."""

    def withdraw(self, job: Job) -> None:
        """Remove what `configure` has installed so far, before any later request.

        The job stays in formation.
        """

    def on_changed(self, *jobs: Job) -> None:
        """These jobs, or all if none is named, have changed."""


def suggested_mac() -> int:
    """Return a locally administered MAC address that cannot be predicted: 40 bits are random."""
    return 0x02 << 40 | secrets.randbits(40)


@dataclass(frozen=True)
class Clocks:
    """The clocks, and the source of unique ids."""

    monotonic: Callable[[], float]  # seconds, for leases
    wall: Callable[[], float]  # seconds since the epoch, for people
    next_incarnation: Callable[[], int]  # an id that was never used


class Roster:
    """Makes jobs and members, and finds them."""

    def __init__(
        self, listener: JobListener, holdings: Holdings, clocks: Clocks, *, lease: float
    ) -> None:
        self.holdings = holdings
        self._listener = listener
        self._clocks = clocks
        self._lease = lease
        self._by_incarnation: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}  # the latest life of each name

    # -- Looking -----------------------------------------------------------------------

    @property
    def all(self) -> list[Job]:
        """Living and remembered jobs, oldest first."""
        return list(self._by_incarnation.values())

    def latest(self, name: str) -> Job | None:
        """Return the latest job of a name; None if none is remembered."""
        return self._by_name.get(name)

    def of(self, incarnation: int) -> Job | None:
        """Return the job of an incarnation id; None if none is remembered."""
        return self._by_incarnation.get(incarnation)

    def named(self, name: str) -> Job:
        """Return the latest job of a name. Raises JobRefusedError."""
        job = self._by_name.get(name)
        if job is None:
            raise JobRefusedError(Cause.UNKNOWN, f"there is no job {name!r}")
        return job

    def living(self, name: str) -> Job | None:
        """Return the job that has the name now."""
        job = self._by_name.get(name)
        return job if job is not None and job.alive else None

    def member(self, incarnation: int, rank: int, nonce: int) -> tuple[Job, JobMember]:
        """Return the member with this nonce. Raises JobRefusedError."""
        job = self._by_incarnation.get(incarnation)
        if job is None:
            raise JobRefusedError(
                Cause.UNKNOWN, f"there is no job with incarnation id {incarnation}"
            )
        member = job.members.get(rank)
        if member is None:
            raise JobRefusedError(
                Cause.UNKNOWN,
                f"rank {rank} is not in job {job.name!r} "
                "(it never joined, left while the job was forming, or its lease ran out)",
            )
        if member.nonce != nonce:
            raise JobRefusedError(
                Cause.WRONG_NONCE, f"that is not the nonce of rank {rank} of job {job.name!r}"
            )
        return job, member

    # -- Making ------------------------------------------------------------------------

    def make(
        self,
        name: str,
        world_size: int,
        slots: int,
        tree: str,
        switches: Iterable[str],
        *,
        by_operator: bool,
    ) -> Job:
        """Make a job with a free name, and give it slots on these switches of the tree.

        Raises JobRefusedError, and changes nothing then.
        """
        shares = self.holdings.take_slots(switches, slots, name)
        try:
            incarnation = self._clocks.next_incarnation()
        except (OSError, ValueError, OverflowError) as error:
            self.holdings.free_slots(shares)
            raise JobRefusedError(
                Cause.NO_INCARNATION, f"no incarnation id for job {name!r}: {error}"
            ) from error
        secret = secrets.token_bytes(SECRET_BYTES)
        job = Job(name, incarnation, world_size, slots, self._clocks.wall(), by_operator, secret)
        job.tree, job.shares = tree, shares
        self._add(job)
        self._forget_past()
        range_ = job.root.slots
        at = f"slots {range_.start}-{range_.stop - 1}" if range_ else f"{slots} slots"
        self._listener.on_event("job-created", job, f"{count_text(world_size)}, {at}")
        return job

    def admit(
        self, job: Job, rank: int, host: str, pid: int, host_number: int, ring_address: str
    ) -> JobMember:
        """Put a rank into a job that has room for it."""
        member = JobMember(
            rank,
            secrets.randbits(64),
            host,
            pid,
            host_number,
            ring_address=ring_address,
            mac=suggested_mac(),
        )
        leases.begin(member, self._clocks.monotonic(), self._lease)
        job.admit(member)
        job.departed.pop(rank, None)
        self._listener.on_event("rank-joined", job, f"{member}")
        return member

    def _add(self, job: Job) -> None:
        self._by_incarnation[job.incarnation] = job
        self._by_name[job.name] = job

    def _forget_past(self) -> None:
        past = [job for job in self._by_incarnation.values() if job.over and not job.reformable]
        for job in past[: max(0, len(past) - PAST_JOBS)]:
            del self._by_incarnation[job.incarnation]
            if self._by_name.get(job.name) is job:
                del self._by_name[job.name]

    # -- Over a restart of the controller -----------------------------------------------

    def worth_keeping(self) -> list[Job]:
        """Return the jobs that must survive a restart, oldest first."""
        needed = {job for job in self.all if not job.over or job.reformable}
        for job in reversed(self.all):  # a successor is younger
            # Its ranks may not know yet where they continue.
            if job.successor is not None and self.of(job.successor.incarnation) in needed:
                needed.add(job)
        return [job for job in self.all if job in needed]

    def restore(self, jobs: list[Job]) -> None:
        """Take over the jobs of the job table, each with a full lease.

        Raises ValueError if two of them hold the same numbers.
        """
        for job in jobs:
            if job.incarnation in self._by_incarnation:
                raise ValueError(f"incarnation {job.incarnation} occurs twice")
            if job.configuring:
                # Nobody knows how far that came, so it is done again.
                job.step(JobEvent.SWITCH_LOST)
                for share in job.shares.values():
                    share.replica_ids, share.groups = [], []
            if not job.over:
                self.holdings.claim(job)
            elif not job.released:
                job.step(JobEvent.RELEASED)  # what was left of it is taken off with the take-up
            for member in job.members.values():
                leases.begin(member, self._clocks.monotonic(), self._lease)
            self._add(job)
