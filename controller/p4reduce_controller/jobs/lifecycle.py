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

from collections.abc import Callable, Iterable

from p4reduce_controller.jobs import leases, presence, silence
from p4reduce_controller.jobs.attaching import Entrance
from p4reduce_controller.jobs.holdings import Holdings
from p4reduce_controller.jobs.job import (
    DEFAULT_SLOTS,
    MAX_WORLD_SIZE,
    SLOTS,
    Attachment,
    Cause,
    Job,
    JobState,
    Member,
    MemberState,
    RefusedError,
    count_text,
    ranks_text,
)
from p4reduce_controller.jobs.request_checks import MAX_ADDRESS, check_name, check_number, printable
from p4reduce_controller.jobs.roster import Clocks, Listener, Roster
from p4reduce_controller.values.token_hash import TokenHash


class Jobs(Roster):
    """All jobs of one switch.

    `clock` gives seconds for leases (monotonic), `wall_clock` those for people; `next_incarnation`
    an id that was never used. `lease` is in seconds, `stations` the MAC addresses that belong to a
    port, whoever comes.
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
        stations: Iterable[tuple[int, int]] = (),
    ) -> None:
        super().__init__(
            listener,
            Holdings(switch_ip),
            Clocks(clock, wall_clock, next_incarnation),
            lease=lease,
        )
        self.lease = lease
        self.hellos_refused = 0
        self._listener = listener
        self._default_slots = default_slots
        self._entrance = Entrance(frozenset(ports), switch_mac, switch_ip, dict(stations))
        self._clock = clock
        self._closed: tuple[Cause, str] | None = None

    @property
    def slots_free(self) -> int:
        """How many of the switch's slots no job has."""
        return self.holdings.slots_free

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
        check_name(name)
        check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        if slots:  # 0: the controller's default
            check_number("number of slots", slots, 1, SLOTS)
        self._check_unused(name)
        job = self.make(name, world_size, slots or self._default_slots, by_operator=by_operator)
        job.token = token
        self._listener.changed(job)
        return job

    def _check_unused(self, name: str) -> None:
        job = self.latest(name)
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
        *,
        own_address: bool = True,
        local: bool = False,
    ) -> tuple[Job, Member]:
        """Register a rank, making the job, with `token`, if there is none alive.

        Whether the rank may join one that there is has been seen to. Raises RefusedError.
        """
        self._check_open()
        check_name(name)
        check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        if not 0 <= rank < world_size:
            raise RefusedError(
                Cause.INVALID, f"rank {rank} is not below the world size {world_size}"
            )
        [host_number] = self.holdings.host_numbers(1)
        try:
            job = self.living(name)
            if job is None:
                job = self.create(name, world_size, slots, token, by_operator=False)
            self._check_fits(job, rank, world_size, slots)
        except BaseException:
            self.holdings.free_host_numbers([host_number])
            raise
        host = printable(host)  # it ends up in terminals
        member = self.admit(job, rank, host, pid, host_number, printable(ring_address, MAX_ADDRESS))
        member.own_address, member.local = own_address, local
        self._listener.changed(job)
        return job, member

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

    # -- Attaching ---------------------------------------------------------------------

    def hello(self, incarnation: int, rank: int, nonce: int, attachment: Attachment) -> None:
        """Bind a rank to where its HELLO came from.

        Anyone can send one, so a wrong one is an event and never an exception.
        """
        job = self.of(incarnation)
        try:
            job, member = self.member(incarnation, rank, nonce)
        except RefusedError as error:
            self.refuse_hello(job, f"from {attachment}: {error}")
            return
        ip = self.holdings.suggested_ip(member)
        refusal = self._entrance.objection(job, member, attachment, self.all, suggested_ip=ip)
        if refusal:
            member.refusal = refusal
            self.refuse_hello(job, f"rank {rank}: {refusal}")
            return
        leases.begin(member, self._clock(), self.lease)
        if member.state is not MemberState.JOINED:
            return  # the same again
        member.state, member.attachment, member.refusal = MemberState.ATTACHED, attachment, ""
        self._listener.event("rank-attached", job, f"rank {rank} at {attachment}")
        if job.complete:
            self._configure(job)
        self._listener.changed(job)

    def refuse_hello(self, job: Job | None, text: str) -> None:
        """Count and tell."""
        self.hellos_refused += 1
        self._listener.event("hello-refused", job, text)

    def _configure(self, job: Job) -> None:
        try:
            self.holdings.take_multicast(job)
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
            leases.begin(member, self._clock(), self.lease)
        self._listener.event("job-running", job, count_text(job.world_size))
        self._listener.settled(job)
        self._listener.changed(job)

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
        leases.heard(job, member, now, self.lease)
        member.cut = None
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
        leases.begin(member, self._clock(), self.lease)

    def begin_attending(self, member: Member) -> None:
        """A call stays open as long as the rank's process lives."""
        presence.begin(member)

    def end_attending(self, job: Job, member: Member) -> None:
        """It has ended, but not by us."""
        reason = presence.end(member, self._clock(), self.lease)
        if reason and member.active and job.members.get(member.rank) is member:
            self._lose(job, member, reason)

    def expire(self) -> None:
        """Find the ranks whose process has ended, or whose lease ran out."""
        now = self._clock()
        for job in self.all:
            if job.over and not job.reformable:
                continue
            for member in job.active:
                if reason := presence.run_out(member, now, self.lease):
                    self._lose(job, member, reason)
            for member, reason in leases.run_out(job, now, self.lease).items():
                self._lose(job, member, reason)

    def stood_still(self) -> None:
        """Heartbeats may have come that nobody looked at: all get a full lease."""
        for job in self.all:
            leases.extend(job, self._clock() + self.lease)

    def revive(self, job: Job) -> None:
        """Take back those who were declared lost, if nobody is left who goes on without them."""
        if not job.deserted or self.latest(job.name) is not job:
            return
        for member in job.members.values():
            if member.state is MemberState.LOST:
                member.state = MemberState.ATTACHED
                leases.begin(member, self._clock(), self.lease)
        self._listener.event("ranks-back", job, f"{ranks_text(job.ranks(MemberState.ATTACHED))}")
        self._listener.changed(job)

    def _lose(self, job: Job, member: Member, reason: str) -> None:
        self._listener.event("rank-lost", job, reason)
        if job.state is JobState.FORMING:
            self._take_off(job, member, reason, MemberState.LOST)
            return
        member.state = MemberState.LOST
        if job.state is JobState.RUNNING:
            self.fail(job, Cause.RANK_LOST, reason)
        self._remove_if_deserted(job)
        self._listener.changed(job)

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
        self._listener.changed(job)

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
        self._listener.changed(job)
        if job.configuring or job.elastic:
            # The switch is being told of this very rank: too late to have another one instead.
            # And to an elastic job nobody else will come; those who are left can form it again.
            member.state = state
            self.fail(job, Cause.RANK_LOST, reason)
            return
        del job.members[member.rank]
        job.departed[member.rank] = reason
        self.holdings.free_host_numbers([member.host_number])
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

    def close(self, reason: str) -> None:
        """We are going: end all jobs, and take no more."""
        self._closed = (Cause.SHUTDOWN, reason)
        for job in self.all:
            if job.alive or job.reformable:
                self._end(job, JobState.ENDED, Cause.SHUTDOWN, reason)
            self._remove(job)

    # -- The switch's coming and going -----------------------------------------------------

    def switch_lost(self, reason: str) -> None:
        """The switch is gone, and all that it had in its registers."""
        why = f"the switch was lost: {reason}"
        self._closed = (Cause.SWITCH_LOST, why)
        for job in self.all:
            if job.state is JobState.FORMING:
                # It had nothing there yet. Its ranks send HELLO until the job runs, so they
                # attach again when the switch is back.
                self._detach(job)
            else:
                self.fail(job, Cause.SWITCH_LOST, why)
                self._remove(job)
        self._listener.changed(*self.all)

    def _detach(self, job: Job) -> None:
        if job.configuring:
            job.configuring = False
            self.holdings.free_multicast(job)
        for member in job.active:
            member.state, member.attachment = MemberState.JOINED, None

    def switch_back(self) -> None:
        """The switch is there, with all that it should have."""
        self._closed = None
        for job in self.all:
            if job.configuring:
                self._listener.configure(job)  # what came of the first attempt is undone
        self._listener.changed()

    def resume(self) -> None:
        """Go on with what was restored, now that the switch is there."""
        for job in self.all:
            if job.state is JobState.FORMING and job.complete:
                self._configure(job)
                self._listener.changed(job)

    def release(self, job: Job) -> None:
        """Nothing of the job is on the switch any more: its numbers are free."""
        job.released = True
        self.holdings.release(job)
        self._listener.changed(job)

    def _end(self, job: Job, state: JobState, cause: Cause | None, reason: str) -> None:
        waited_for = job.state is JobState.FORMING
        job.state, job.cause, job.reason = state, cause, reason
        job.configuring = False
        kind = "job-failed" if state is JobState.FAILED else "job-ended"
        self._listener.event(kind, job, reason)
        if waited_for:
            self._listener.settled(job)
        self._listener.changed(job)

    def _remove_if_deserted(self, job: Job) -> None:
        if not job.active:
            self._remove(job)

    def _remove(self, job: Job) -> None:
        if not job.over:
            job.over = True
            self._listener.remove(job)

    # -- For reforming.py ------------------------------------------------------------------

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

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RefusedError(*self._closed)
