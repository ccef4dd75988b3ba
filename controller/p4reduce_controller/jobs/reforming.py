# SPDX-License-Identifier: Apache-2.0
"""Re-forming: the ranks of a failed job ask for a new one and are placed in it.

When all live ranks have asked, the old job's entries are removed from the switch. A new job is made
with the same name, number of slots, and all of these ranks. The old job's slots were freed when its
entries were gone. If another job has taken them meanwhile, the ranks are refused (EXHAUSTED).
"""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_controller.jobs.job import (
    Asked,
    Job,
    JobMember,
    MemberState,
    NewPlace,
    Reformation,
    Succession,
    count_text,
    ranks_text,
)
from p4reduce_controller.jobs.job_states import JobEvent, JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.request_checks import MAX_ADDRESS, printable
from p4reduce_controller.jobs.roster import JobListener


@dataclass(frozen=True)
class ReformedPlace:
    """A rank's place in the new job."""

    job: Job
    member: JobMember
    resume_from: int


class Reforming:
    """All jobs that are being formed again."""

    def __init__(self, jobs: Jobs, listener: JobListener) -> None:
        self._jobs = jobs
        self._listener = listener

    def ask(
        self,
        job: Job,
        member: JobMember,
        world_size: int,
        completed: int,
        ring_address: str,
        *,
        intact: bool = False,
    ) -> Reformation:
        """Note what a rank asks for; suspend its lease until `withdraw`. Raises JobRefusedError.

        With `intact` it accepts only a job of all former ranks. If the job runs then, it fails: the
        rank has continued without the switch, and its slots are out of step.
        """
        if job.successor is not None and member.rank in job.successor.places:
            if not self._came_to_nothing(job, job.successor):
                asked_before = Reformation(job)  # and did not get the answer
                asked_before.settled.set()
                return asked_before
            self._jobs.take_back(job, job.successor.places)
        left = job.ranks(MemberState.LEFT)
        if job.state is JobState.RUNNING and left and not intact:
            # It can reduce nothing any more, and here is one who does not wait for it to end.
            verb = "has" if len(left) == 1 else "have"
            reason = f"{ranks_text(left)} {verb} left, and {member} wants to continue without"
            self._jobs.fail(job, Cause.RANK_LOST, reason)
        elif job.state is JobState.RUNNING and intact and not left:
            reason = f"{member} has gone on without the switch, and asks for a new job"
            self._jobs.fail(job, Cause.SWITCH_LOST, reason)
        if member.state is MemberState.LOST:
            self._jobs.revive(job)
        _check(job, member)
        if world_size:
            self._jobs.check_world_size(world_size, job.tree)
        if intact:
            _check_intact(job)
        if job.reformation is None:
            job.reformation = Reformation(job)
        reformation = job.reformation
        for rank, other in reformation.asked.items():
            if other.world_size != world_size and rank != member.rank:
                raise JobRefusedError(
                    Cause.INVALID,
                    f"world size {world_size} does not fit what {job.members[rank]} asked for, "
                    f"which is {other.world_size}",
                )
        calls = reformation.asked[member.rank].calls if member.rank in reformation.asked else 0
        reformation.asked[member.rank] = Asked(
            world_size, completed, ring_address, intact, calls + 1
        )
        self._jobs.begin_waiting(member)
        return reformation

    def _came_to_nothing(self, old: Job, succession: Succession) -> bool:
        """Whether all ranks gave up their places in the new job before it ran.

        That also happens if the new job's switch is lost and stays away for long.
        """
        new = self._jobs.of(succession.incarnation)
        return (
            new is not None
            and new.state is JobState.ENDED
            and new.cause is Cause.RANK_LOST
            and self._jobs.latest(old.name) is new
        )

    def withdraw(self, reformation: Reformation, member: JobMember) -> None:
        """The rank's call is over, so its lease counts again."""
        asked = reformation.asked.get(member.rank)
        if asked is None:
            return
        self._jobs.end_waiting(member)
        asked.calls -= 1
        if not asked.calls and not reformation.settled.is_set():
            del reformation.asked[member.rank]
            if not reformation.asked:
                reformation.job.reformation = None

    def place(self, reformation: Reformation, member: JobMember) -> ReformedPlace:
        """Return a rank's place in the new job once it is known. Raises JobRefusedError."""
        if reformation.refusal is not None:
            raise reformation.refusal
        old = reformation.job
        succession = old.successor
        if succession is None or member.rank not in succession.places:
            # It left while it asked: all who were there then have a place.
            raise JobRefusedError(Cause.OUT, f"{member} has left job {old.name!r}")
        job, new = self._new_member(old, succession, member)
        return ReformedPlace(job, new, succession.resume_from)

    def _new_member(
        self, old: Job, succession: Succession, member: JobMember
    ) -> tuple[Job, JobMember]:
        """Return what became of a rank. It may have lost its place before it heard of it."""
        what = f"job {old.name!r} was formed again as incarnation {succession.incarnation}"
        job, place = self._jobs.of(succession.incarnation), succession.places[member.rank]
        if job is None:
            raise JobRefusedError(Cause.UNKNOWN, f"{what}, which is long over")
        new = job.members.get(place.rank)
        if new is not None and new.nonce == place.nonce:
            return job, new
        if new is not None or job.state is not JobState.FORMING:
            raise JobRefusedError(
                Cause.WRONG_STATE,
                f"{what}, where rank {place.rank} has lost its place: "
                f"{job.departed.get(place.rank) or job.reason or 'another has it now'}",
            )
        [host_number] = self._jobs.holdings.host_numbers(1)
        new = self._move(member, job, place.rank, host_number, member.ring_address)
        succession.places[member.rank] = NewPlace(place.rank, new.nonce)
        self._listener.on_changed(old, job)
        return job, new

    def _move(
        self, member: JobMember, job: Job, rank: int, host_number: int, address: str
    ) -> JobMember:
        """Put a rank of the old job into the new one."""
        new = self._jobs.admit(job, rank, member.host, member.pid, host_number, address)
        new.own_address, new.local, new.switch = member.own_address, member.local, member.switch
        return new

    def waits_for(self, reformation: Reformation) -> str:
        """Say what is missing, for a message."""
        awaited = reformation.awaited()
        if awaited:
            verb = "has" if len(awaited) == 1 else "have"
            return f"{', '.join(map(str, awaited))} {verb} not asked for it"
        closed = self._jobs.why_closed_for(reformation.job)
        if closed is not None:
            return str(closed)
        return "the switch is still letting the failed one go"

    def advance(self) -> None:
        """Take all steps that are possible now. Call it after each change of a job."""
        for job in self._jobs.all:
            reformation = job.reformation
            if reformation is None:
                continue
            try:
                self._advance(reformation)
            except JobRefusedError as error:
                reformation.refusal = error
            if reformation.refusal is not None or job.successor is not None:
                job.reformation = None
                reformation.settled.set()

    def _advance(self, reformation: Reformation) -> None:
        job = reformation.job
        if not job.reformable:
            raise JobRefusedError(
                job.cause or Cause.WRONG_STATE,
                f"job {job.name!r} will not be formed again: {job.reason}",
            )
        if any(asked.intact for asked in reformation.asked.values()):
            _check_intact(job)
        if reformation.awaited():
            return
        if not job.released:
            self._jobs.forget(job)
        elif self._jobs.why_closed_for(job) is None:
            self._found(reformation)

    def _found(self, reformation: Reformation) -> None:
        old = reformation.job
        survivors = [member.rank for member in old.active]
        asked = [reformation.asked[rank] for rank in survivors]
        world_size = asked[0].world_size or len(survivors)
        if world_size < len(survivors):
            raise JobRefusedError(
                Cause.INVALID,
                f"world size {world_size} has no room for all of {ranks_text(survivors)}",
            )
        # Ranks that keep their numbers keep their shares of the data, and replacements take the
        # missing numbers. In a smaller job not all numbers exist.
        keep = world_size >= old.world_size
        places = {rank: rank if keep else index for index, rank in enumerate(survivors)}
        host_numbers = self._jobs.holdings.host_numbers(len(survivors))
        try:
            job = self._jobs.make(
                old.name,
                world_size,
                old.slot_count,
                old.tree,
                old.shares,
                by_operator=old.by_operator,
            )
        except BaseException:
            self._jobs.holdings.free_host_numbers(host_numbers)
            raise
        job.elastic = not asked[0].world_size
        job.intact = any(each.intact for each in asked)
        job.token, job.urgent_slots = old.token, old.urgent_slots
        new_places = {}
        for member, host_number in zip(old.active, host_numbers, strict=True):
            address = printable(reformation.asked[member.rank].ring_address, MAX_ADDRESS)
            rank = places[member.rank]
            new = self._move(member, job, rank, host_number, address)
            new_places[member.rank] = NewPlace(rank, new.nonce)
            member.state = MemberState.LEFT
        resume_from = min(each.completed for each in asked)
        old.step(JobEvent.REFORMED)
        old.successor = Succession(job.incarnation, new_places, resume_from)
        self._listener.on_event(
            "job-reformed",
            old,
            f"as incarnation {job.incarnation}, {count_text(world_size)}, "
            f"from collective {resume_from} on",
        )
        self._listener.on_changed(old, job)


def _check_intact(job: Job) -> None:
    gone = job.vacant
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        raise JobRefusedError(
            Cause.RANK_LOST,
            f"job {job.name!r} cannot continue as it was: {ranks_text(gone)} {verb} gone",
        )


def _check(job: Job, member: JobMember) -> None:
    """Refuse ranks that cannot continue."""
    if job.state is not JobState.FAILED:
        if job.cause is not None:
            raise JobRefusedError(job.cause, f"job {job.name!r} is over: {job.reason}")
        raise JobRefusedError(
            Cause.WRONG_STATE,
            f"job {job.name!r} is {job.state.name.lower()}; only one that failed is formed again",
        )
    if member.state is MemberState.LOST:
        raise JobRefusedError(
            Cause.OUT,
            f"{member} was declared lost, as no heartbeat of it came in time; the others continue "
            "without it, and it may join their new job if that has room",
        )
    if not member.active:
        raise JobRefusedError(Cause.OUT, f"{member} has left job {job.name!r}")
