# SPDX-License-Identifier: Apache-2.0
"""Jobs and their ranks, from the first that joins to the last that leaves.

    FORMING --(all ranks attached, switch configured)--> RUNNING --(all left)--> ENDED
       |                                                    |
       +--(deleted, or all gave up)--> ENDED                +--(a rank lost)--> FAILED
       +--(refused by the switch, or it is gone)--> FAILED                        |
                                                                                  |
    FORMING (a new job of that name) <--(reforming.py: the survivors go on)-------+

Knows nothing of gRPC or P4Runtime: what is to happen outside goes to a `Listener`. Not
thread-safe: the daemon calls it from one thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from p4reduce_controller import silence
from p4reduce_controller.attaching import Entrance
from p4reduce_controller.holdings import Holdings
from p4reduce_controller.job import (
    DEFAULT_SLOTS,
    MAX_WORLD_SIZE,
    SLOTS,
    Attachment,
    Cause,
    Job,
    JobState,
    Member,
    MemberState,
    NewPlace,
    RefusedError,
    Succession,
    count_text,
    ranks_text,
)
from p4reduce_controller.token_hash import TokenHash

MAX_NAME = 100
SECRET_BYTES = 32
MAX_ADDRESS = 262  # a host name's 255, a colon, a port
PAST_JOBS = 200  # ended ones that are remembered, for late heartbeats and for people


class Listener(Protocol):
    """What the jobs ask of the world around them. Must not call back into `Jobs`."""

    def event(self, kind: str, job: Job | None, text: str) -> None:
        """Tell people."""

    def configure(self, job: Job) -> None:
        """Put the job on the switch, then call `Jobs.configured` or `Jobs.fail`."""

    def settled(self, job: Job) -> None:
        """The job is no longer forming: wake those who wait for it."""

    def remove(self, job: Job) -> None:
        """Take the job off the switch, then call `Jobs.release`."""

    def changed(self) -> None:
        """Something about the jobs is no longer as it was."""


class Jobs:
    """All jobs of one switch.

    `clock` gives seconds for leases (monotonic), `wall_clock` those for people; `next_incarnation`
    an id that was never used. `lease` is in seconds.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        lease: float,
        ports: Iterable[int],
        switch_mac: int,
        switch_ip: int,
        next_incarnation: Callable[[], int],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        default_slots: int = DEFAULT_SLOTS,
    ) -> None:
        self.lease = lease
        self._default_slots = default_slots
        self.hellos_refused = 0
        self._listener = listener
        self._entrance = Entrance(frozenset(ports), switch_mac, switch_ip)
        self._next_incarnation = next_incarnation
        self._clock = clock
        self._wall_clock = wall_clock
        self._holdings = Holdings(switch_ip)
        self._by_incarnation: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}  # the latest life of each name
        self._closed: tuple[Cause, str] | None = None

    # -- Looking -----------------------------------------------------------------------

    @property
    def all(self) -> list[Job]:
        """The living and the remembered, oldest first."""
        return list(self._by_incarnation.values())

    @property
    def slots_free(self) -> int:
        """How many of the switch's slots no job has."""
        return self._holdings.slots_free

    def named(self, name: str) -> Job:
        """Return the latest life of a name. Raises RefusedError."""
        job = self._by_name.get(name)
        if job is None:
            raise RefusedError(Cause.UNKNOWN, f"there is no job {name!r}")
        return job

    def living(self, name: str) -> Job | None:
        """Return the job that has the name now."""
        job = self._by_name.get(name)
        return job if job is not None and job.alive else None

    def member(self, incarnation: int, rank: int, nonce: int) -> tuple[Job, Member]:
        """Return who proves by `nonce` to be a rank. Raises RefusedError."""
        job = self._by_incarnation.get(incarnation)
        if job is None:
            raise RefusedError(Cause.UNKNOWN, f"there is no job with incarnation id {incarnation}")
        member = job.members.get(rank)
        if member is None:
            raise RefusedError(
                Cause.UNKNOWN,
                f"rank {rank} is not in job {job.name!r} "
                "(it never joined, left while the job was forming, or its lease ran out)",
            )
        if member.nonce != nonce:
            raise RefusedError(
                Cause.WRONG_NONCE, f"that is not the nonce of rank {rank} of job {job.name!r}"
            )
        return job, member

    # -- Joining -----------------------------------------------------------------------

    def create(
        self,
        name: str,
        world_size: int,
        slots: int,
        token: TokenHash | None = None,
        *,
        by_operator: bool = True,
    ) -> Job:
        """Make a job; `slots` 0 means the default. Raises RefusedError."""
        self._check_open()
        _check_name(name)
        _check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        _check_number("number of slots", slots, 0, SLOTS)
        self._check_unused(name)
        job = self._make(name, world_size, slots, by_operator)
        job.token = token
        self._listener.changed()
        return job

    def _check_unused(self, name: str) -> None:
        job = self._by_name.get(name)
        if job is None:
            return
        if job.alive:
            raise RefusedError(Cause.TAKEN, f"there is a job {name!r} already")
        if job.reformable:
            survivors = ranks_text([member.rank for member in job.active])
            raise RefusedError(
                Cause.WRONG_STATE,
                f"job {name!r} has failed ({job.reason}), and {survivors} may form it again. "
                "A new job of that name can begin when all have left, or it is deleted",
            )

    def _make(self, name: str, world_size: int, slots: int, by_operator: bool) -> Job:
        range_ = self._holdings.slots(slots or self._default_slots, name)
        try:
            incarnation = self._next_incarnation()
        except (OSError, ValueError, OverflowError) as error:
            self._holdings.free_slots(range_)
            raise RefusedError(
                Cause.NO_INCARNATION, f"no incarnation id for job {name!r}: {error}"
            ) from error
        job = Job(
            name,
            incarnation,
            world_size,
            range_,
            self._wall_clock(),
            by_operator,
            secrets.token_bytes(SECRET_BYTES),
        )
        self._by_incarnation[job.incarnation] = job
        self._by_name[name] = job
        self._forget_past()
        slots_text = f"slots {range_.start}-{range_.stop - 1}"
        self._listener.event("job-created", job, f"{count_text(world_size)}, {slots_text}")
        return job

    def join(
        self,
        name: str,
        rank: int,
        world_size: int,
        slots: int,
        host: str,
        pid: int,
        ring_address: str = "",
        token: TokenHash | None = None,
    ) -> tuple[Job, Member]:
        """Register a rank, making the job, with `token`, if there is none alive.

        Whether the rank may join one that there is has been seen to. Raises RefusedError.
        """
        self._check_open()
        _check_name(name)
        _check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        if not 0 <= rank < world_size:
            raise RefusedError(
                Cause.INVALID, f"rank {rank} is not below the world size {world_size}"
            )
        [host_number] = self._holdings.host_numbers(1)
        try:
            job = self.living(name)
            if job is None:
                job = self.create(name, world_size, slots, token, by_operator=False)
            self._check_fits(job, rank, world_size, slots)
        except BaseException:
            self._holdings.free_host_numbers([host_number])
            raise
        host = _printable(host)  # it ends up in terminals
        member = self._admit(
            job, rank, host, pid, host_number, _printable(ring_address, MAX_ADDRESS)
        )
        self._listener.changed()
        return job, member

    def _admit(
        self, job: Job, rank: int, host: str, pid: int, host_number: int, ring_address: str
    ) -> Member:
        member = Member(
            rank,
            secrets.randbits(64),
            host,
            pid,
            host_number,
            self._clock() + self.lease,
            ring_address=ring_address,
        )
        job.members[rank] = member
        job.departed.pop(rank, None)
        self._listener.event("rank-joined", job, f"{member}")
        return member

    def _check_fits(self, job: Job, rank: int, world_size: int, slots: int) -> None:
        if job.world_size != world_size:
            raise RefusedError(
                Cause.INVALID,
                f"world size {world_size} does not fit job {job.name!r}, "
                f"which has {job.world_size}",
            )
        if slots not in (0, len(job.slots)):
            raise RefusedError(
                Cause.INVALID,
                f"{slots} slots do not fit job {job.name!r}, which has {len(job.slots)}",
            )
        taken = job.members.get(rank)
        if taken is not None and taken.active:
            raise RefusedError(Cause.TAKEN, f"{taken} is in job {job.name!r} already")
        if job.state is not JobState.FORMING:
            still = ranks_text([member.rank for member in job.active])
            raise RefusedError(
                Cause.WRONG_STATE,
                f"job {job.name!r} has been running: {taken} left, but {still} did not yet. "
                "A new job of that name can begin when all have left, or it is deleted",
            )

    def suggested_addresses(self, job: Job, member: Member) -> tuple[int, int]:
        """Return a MAC and an IPv4 address for a worker whose transport has none."""
        return self._holdings.suggested_addresses(job, member)

    # -- Attaching ---------------------------------------------------------------------

    def hello(self, incarnation: int, rank: int, nonce: int, attachment: Attachment) -> None:
        """Bind a rank to where its HELLO came from.

        Anyone can send one, so a wrong one is an event and never an exception.
        """
        job = self._by_incarnation.get(incarnation)
        try:
            job, member = self.member(incarnation, rank, nonce)
        except RefusedError as error:
            self.refuse_hello(job, f"from {attachment}: {error}")
            return
        refusal = self._entrance.objection(job, member, attachment, self.all)
        if refusal:
            member.refusal = refusal
            self.refuse_hello(job, f"rank {rank}: {refusal}")
            return
        member.lease_ends = max(member.lease_ends, self._clock() + self.lease)
        if member.state is not MemberState.JOINED:
            return  # the same again
        member.state, member.attachment, member.refusal = MemberState.ATTACHED, attachment, ""
        self._listener.event("rank-attached", job, f"rank {rank} at {attachment}")
        if job.complete:
            self._configure(job)
        self._listener.changed()

    def refuse_hello(self, job: Job | None, text: str) -> None:
        """Count and tell."""
        self.hellos_refused += 1
        self._listener.event("hello-refused", job, text)

    def _configure(self, job: Job) -> None:
        try:
            self._holdings.take_multicast(job)
        except RefusedError as error:
            self.fail(job, error.cause, str(error))
            return
        job.configuring = True
        self._listener.configure(job)

    def configured(self, job: Job) -> None:
        """The switch has all of the job: it runs."""
        if not job.configuring:
            return  # failed meanwhile
        job.configuring = False
        job.state = JobState.RUNNING
        for member in job.members.values():
            member.lease_ends = self._clock() + self.lease
        self._listener.event("job-running", job, count_text(job.world_size))
        self._listener.settled(job)
        self._listener.changed()

    # -- Staying -----------------------------------------------------------------------

    def heartbeat(
        self,
        incarnation: int,
        rank: int,
        nonce: int,
        *,
        completed: int = 0,
        unanswered: float = 0.0,
        heard: float = 0.0,
    ) -> Job:
        """Renew a rank's lease, and hear how it is. Raises RefusedError.

        `completed` is the number of collectives of which it has the result; the switch has
        answered nothing for `unanswered` seconds, and answered the last time `heard` seconds ago.
        """
        job, member = self.member(incarnation, rank, nonce)
        if not member.active:
            return job
        now = self._clock()
        member.lease_ends = now + self.lease
        member.completed = max(member.completed, completed)
        member.report = silence.report(now, unanswered, heard)
        if job.state is JobState.RUNNING:
            reason = silence.cut_off(job, member, now, self.lease)
            if reason:
                self._lose(job, member, reason)
        return job

    def begin_waiting(self, member: Member) -> None:
        """A call waits for the job to run: the connection stands in for heartbeats."""
        member.waiting += 1

    def end_waiting(self, member: Member) -> None:
        """The call is over, one way or another: the lease counts again."""
        member.waiting -= 1
        member.lease_ends = self._clock() + self.lease

    def expire(self) -> None:
        """Find the ranks whose lease ran out."""
        now = self._clock()
        for job in self.all:
            if job.over and not job.reformable:
                continue
            for member in list(job.members.values()):
                if member.active and not member.waiting and member.lease_ends <= now:
                    reason = f"{member} was lost: no heartbeat for {self.lease:g} s"
                    self._lose(job, member, reason)

    def _lose(self, job: Job, member: Member, reason: str) -> None:
        self._listener.event("rank-lost", job, reason)
        if job.state is JobState.FORMING:
            self._take_off(job, member, reason, MemberState.LOST)
            return
        member.state = MemberState.LOST
        if job.state is JobState.RUNNING:
            self.fail(job, Cause.RANK_LOST, reason)
        self._remove_if_deserted(job)
        self._listener.changed()

    # -- Leaving -----------------------------------------------------------------------

    def leave(self, incarnation: int, rank: int, nonce: int) -> None:
        """A rank needs nothing more. Raises RefusedError; to leave twice is no error."""
        job, member = self.member(incarnation, rank, nonce)
        if not member.active:
            return
        self._listener.event("rank-left", job, f"{member}")
        if job.state is JobState.FORMING:
            self._take_off(job, member, f"{member} left while the job was forming")
            return
        member.state = MemberState.LEFT
        if job.state is JobState.RUNNING and not job.active:
            self._end(job, JobState.ENDED, None, "all ranks left")
        self._remove_if_deserted(job)
        self._listener.changed()

    def give_up(self, job: Job, member: Member, reason: str) -> None:
        """A rank no longer waits for the job to run: its place is free again.

        `reason` says what the rank did, like "gave up after 30 s".
        """
        if job.state is JobState.FORMING and job.members.get(member.rank) is member:
            self._listener.event("rank-left", job, f"{member} {reason}")
            self._take_off(job, member, f"{member} {reason}")

    def _take_off(
        self, job: Job, member: Member, reason: str, state: MemberState = MemberState.LEFT
    ) -> None:
        """Free a place in a job that is still forming."""
        self._listener.changed()
        if job.configuring or job.elastic:
            # The switch is being told of this very rank: too late to have another one instead.
            # And to an elastic job nobody else will come; those who are left can form it again.
            member.state = state
            self.fail(job, Cause.RANK_LOST, reason)
            return
        del job.members[member.rank]
        job.departed[member.rank] = reason
        self._holdings.free_host_numbers([member.host_number])
        if not job.members and not job.by_operator:
            self._end(job, JobState.ENDED, Cause.RANK_LOST, f"nobody is left of it: {reason}")
            self._remove(job)

    def delete(self, name: str, reason: str = "deleted by an operator") -> Job:
        """End a job whatever it is doing. Raises RefusedError if it is over already."""
        job = self.named(name)
        if job.over and not job.reformable:
            raise RefusedError(
                Cause.UNKNOWN, f"job {name!r} is over already: {job.reason or 'it ended'}"
            )
        self._end(job, JobState.ENDED, Cause.DELETED, reason)
        self._remove(job)
        return job

    def fail(self, job: Job, cause: Cause, reason: str) -> None:
        """The job cannot go on.

        One that ran stays on the switch until its ranks have left; one that did not goes at once,
        as those who wait for it are told now.
        """
        if not job.alive:
            return
        ran = job.state is JobState.RUNNING
        self._end(job, JobState.FAILED, cause, reason)
        if not ran or cause is Cause.SWITCH_LOST:
            self._remove(job)

    def close(self, cause: Cause, reason: str) -> None:
        """The switch is gone, or we are going: end all jobs, and take no more."""
        self._closed = (cause, reason)
        for job in self.all:
            if cause is Cause.SWITCH_LOST:
                self.fail(job, cause, reason)
            elif job.alive or job.reformable:
                self._end(job, JobState.ENDED, cause, reason)
            if not job.over:
                self._remove(job)

    def release(self, job: Job) -> None:
        """Nothing of the job is on the switch any more: its numbers are free."""
        job.released = True
        self._holdings.release(job)
        self._listener.changed()

    def _end(self, job: Job, state: JobState, cause: Cause | None, reason: str) -> None:
        waited_for = job.state is JobState.FORMING
        job.state, job.cause, job.reason = state, cause, reason
        job.configuring = False
        kind = "job-failed" if state is JobState.FAILED else "job-ended"
        self._listener.event(kind, job, reason)
        if waited_for:
            self._listener.settled(job)
        self._listener.changed()

    def _remove_if_deserted(self, job: Job) -> None:
        if not job.active:
            self._remove(job)

    def _remove(self, job: Job) -> None:
        if not job.over:
            job.over = True
            self._listener.remove(job)

    # -- Going on after a failure (what reforming.py needs) ---------------------------------

    @property
    def open(self) -> bool:
        """Whether new jobs can be made."""
        return self._closed is None

    @property
    def why_closed(self) -> str:
        """Why they cannot."""
        return self._closed[1] if self._closed else ""

    def let_go(self, job: Job) -> None:
        """Take a failed job off the switch although ranks of it are still there."""
        self._remove(job)

    def found_again(
        self,
        old: Job,
        world_size: int,
        places: dict[int, int],
        ring_addresses: dict[int, str],
        resume_from: int,
        elastic: bool,
    ) -> Job:
        """Make a new job of a failed one's name and slots, and move those ranks into it.

        `places` maps old rank to new; `ring_addresses` is by old rank. An `elastic` job fails when
        a rank is lost that it was founded with, even before it runs. Raises RefusedError; nothing
        has happened then.
        """
        host_numbers = self._holdings.host_numbers(len(places))
        try:
            job = self._make(old.name, world_size, len(old.slots), old.by_operator)
        except BaseException:
            self._holdings.free_host_numbers(host_numbers)
            raise
        job.elastic = elastic
        job.token = old.token
        new_places = {}
        for (rank, place), host_number in zip(sorted(places.items()), host_numbers, strict=True):
            member = old.members[rank]
            member.state = MemberState.LEFT
            address = _printable(ring_addresses[rank], MAX_ADDRESS)
            new = self._admit(job, place, member.host, member.pid, host_number, address)
            new_places[rank] = NewPlace(place, new.nonce)
        old.successor = Succession(job.incarnation, new_places, resume_from)
        self._listener.event(
            "job-reformed",
            old,
            f"as incarnation {job.incarnation}, {count_text(world_size)}, "
            f"from collective {resume_from} on",
        )
        self._listener.changed()
        return job

    def new_member(self, old: Job, rank: int) -> tuple[Job, Member]:
        """Return what became of a rank of `old`, which has a successor. Raises RefusedError.

        If its place in the new job was taken off it before it was told of it, it gets it back.
        """
        succession = old.successor
        assert succession is not None
        what = f"job {old.name!r} was formed again as incarnation {succession.incarnation}"
        job, place = self._by_incarnation.get(succession.incarnation), succession.places[rank]
        if job is None:
            raise RefusedError(Cause.UNKNOWN, f"{what}, which is long over")
        member = job.members.get(place.rank)
        if member is not None and member.nonce == place.nonce:
            return job, member
        if member is not None or job.state is not JobState.FORMING:
            raise RefusedError(
                Cause.WRONG_STATE,
                f"{what}, where rank {place.rank} has lost its place: "
                f"{job.departed.get(place.rank) or job.reason or 'another has it now'}",
            )
        before = old.members[rank]
        [host_number] = self._holdings.host_numbers(1)
        member = self._admit(
            job, place.rank, before.host, before.pid, host_number, before.ring_address
        )
        succession.places[rank] = NewPlace(place.rank, member.nonce)
        self._listener.changed()
        return job, member

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RefusedError(*self._closed)

    def _forget_past(self) -> None:
        past = [job for job in self._by_incarnation.values() if job.over]
        for job in past[: max(0, len(past) - PAST_JOBS)]:
            del self._by_incarnation[job.incarnation]
            if self._by_name.get(job.name) is job:
                del self._by_name[job.name]


def _printable(text: str, longest: int = MAX_NAME) -> str:
    return "".join(filter(str.isprintable, text))[:longest]


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise RefusedError(
            Cause.INVALID,
            f"{name[: MAX_NAME + 1]!r} is no job name: 1 to {MAX_NAME} printable characters, "
            "no space at either end",
        )


def _check_number(what: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise RefusedError(Cause.INVALID, f"{what} {value} is not within {lowest} and {highest}")
