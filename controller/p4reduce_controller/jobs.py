# SPDX-License-Identifier: Apache-2.0
"""Jobs and their ranks, from the first that joins to the last that leaves.

    FORMING --(all ranks attached, switch configured)--> RUNNING --(all left)--> ENDED
       |                                                    |
       +--(deleted, or all gave up)--> ENDED                +--(a rank lost)--> FAILED
       +--(refused by the switch, or it is gone)--> FAILED

Knows nothing of gRPC or P4Runtime: what is to happen outside goes to a `Listener`. Not
thread-safe: the daemon calls it from one thread.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from p4reduce_controller.addresses import format_ip, format_mac, is_host, is_station
from p4reduce_controller.allocator import ExhaustedError, IdAllocator, RangeAllocator

MAX_WORLD_SIZE = 64
SLOTS = 1024
DEFAULT_SLOTS = 32
MAX_NAME = 100
PAST_JOBS = 200  # ended ones that are remembered, for late heartbeats and for people

# Replicas of the flood group have id 0, and group 1 is the flood group itself. BMv2 keeps the
# groups from 2^15 on to itself.
REPLICA_IDS = (1, 0xFFFF)
GROUP_IDS = (2, 0x7FFF)
REPLICAS_A_RANK = 3  # one of the whole result, two of its halves


class JobState(enum.Enum):
    """Where a job is in its life; the values are those of control.proto."""

    FORMING = 1
    RUNNING = 2
    FAILED = 3
    ENDED = 4


class MemberState(enum.Enum):
    """Where a rank is in its life."""

    JOINED = "joined"  # has a nonce
    ATTACHED = "attached"  # its HELLO came through the switch
    LEFT = "left"
    LOST = "lost"  # its lease ran out


class Cause(enum.Enum):
    """Why a request was refused, or why a job is over."""

    INVALID = enum.auto()
    TAKEN = enum.auto()
    EXHAUSTED = enum.auto()
    UNKNOWN = enum.auto()
    WRONG_NONCE = enum.auto()
    WRONG_STATE = enum.auto()
    SWITCH_REFUSED = enum.auto()
    SWITCH_LOST = enum.auto()
    RANK_LOST = enum.auto()
    DELETED = enum.auto()
    SHUTDOWN = enum.auto()
    NO_INCARNATION = enum.auto()


class RefusedError(Exception):
    """A request that cannot be granted."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Attachment:
    """Where a rank's HELLO came from. All its frames must come from there, and results go there."""

    port: int
    mac: int
    ip: int
    udp_port: int

    def __str__(self) -> str:
        mac, ip = format_mac(self.mac), format_ip(self.ip)
        return f"port {self.port}, {mac}, {ip}:{self.udp_port}"


@dataclass(eq=False)
class Member:
    """One rank of a job."""

    rank: int
    nonce: int
    host: str
    pid: int
    host_number: int  # unique among the living; makes the suggested addresses
    lease_ends: float
    state: MemberState = MemberState.JOINED
    attachment: Attachment | None = None
    waiting: int = 0  # calls that wait for the job to run; the lease rests meanwhile
    refusal: str = ""  # why its last HELLO was refused

    @property
    def active(self) -> bool:
        """Whether it still takes part."""
        return self.state in (MemberState.JOINED, MemberState.ATTACHED)

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host or 'unknown'}, pid {self.pid})"


@dataclass(eq=False)
class Job:
    """One life of a job name."""

    name: str
    incarnation: int
    world_size: int
    slots: range
    created: float  # seconds since the epoch
    by_operator: bool  # then it stays, even without a rank
    state: JobState = JobState.FORMING
    configuring: bool = False  # all attached, the switch is being written to
    members: dict[int, Member] = field(default_factory=dict)
    departed: dict[int, str] = field(default_factory=dict)  # ranks that went while it formed
    groups: list[int] = field(default_factory=list)  # full, halves
    replica_ids: list[int] = field(default_factory=list)  # REPLICAS_A_RANK for each rank in turn
    cause: Cause | None = None
    reason: str = ""
    over: bool = False  # what it had on the switch is being removed, or was

    @property
    def alive(self) -> bool:
        """Whether the name is taken by it."""
        return self.state in (JobState.FORMING, JobState.RUNNING)

    @property
    def complete(self) -> bool:
        """Whether every rank is attached."""
        attached = [m for m in self.members.values() if m.state is MemberState.ATTACHED]
        return len(attached) == self.world_size

    def ranks(self, state: MemberState) -> list[int]:
        """The ranks in a state, in order."""
        return sorted(member.rank for member in self.members.values() if member.state is state)

    def missing(self) -> str:
        """Say what the job waits for, rank by rank."""
        gone = self.departed.keys() | self.members.keys()
        absent = [rank for rank in range(self.world_size) if rank not in gone]
        lacks = []
        if absent:
            lacks.append(f"{_ranks(absent)} {'has' if len(absent) == 1 else 'have'} not joined")
        lacks += [reason for _, reason in sorted(self.departed.items())]
        for _, member in sorted(self.members.items()):
            if member.state is not MemberState.JOINED:
                continue
            if member.refusal:
                lacks.append(f"{member} joined but its HELLO was refused: {member.refusal}")
            else:
                lacks.append(
                    f"{member} joined but its HELLO has not come through the switch: "
                    "is its interface connected to a port of the switch?"
                )
        if not lacks:
            lacks.append("all ranks are attached, but the switch is still being configured")
        return "; ".join(lacks)


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
        self._ports = frozenset(ports)
        self._switch_mac = switch_mac
        self._switch_ip = switch_ip
        self._next_incarnation = next_incarnation
        self._clock = clock
        self._wall_clock = wall_clock
        self._slots = RangeAllocator(SLOTS)
        self._replica_ids = IdAllocator(*REPLICA_IDS)
        self._group_ids = IdAllocator(*GROUP_IDS)
        # The low 16 bits of suggested addresses: no network, broadcast or switch address.
        self._host_numbers = IdAllocator(
            1, 0xFFFE, but=frozenset({switch_ip & 0xFFFF} & set(range(1, 0xFFFF)))
        )
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
        return self._slots.free_count

    def named(self, name: str) -> Job:
        """Return the latest life of a name. Raises RefusedError."""
        job = self._by_name.get(name)
        if job is None:
            raise RefusedError(Cause.UNKNOWN, f"there is no job {name!r}")
        return job

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

    def create(self, name: str, world_size: int, slots: int, *, by_operator: bool = True) -> Job:
        """Make a job; `slots` 0 means the default. Raises RefusedError."""
        self._check_open()
        _check_name(name)
        _check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        _check_number("number of slots", slots, 0, SLOTS)
        if name in self._by_name and self._by_name[name].alive:
            raise RefusedError(Cause.TAKEN, f"there is a job {name!r} already")
        try:
            range_ = self._slots.allocate(slots or self._default_slots)
        except ExhaustedError as error:
            raise RefusedError(
                Cause.EXHAUSTED,
                f"no {slots or self._default_slots} slots in a row for job {name!r}: {error}",
            ) from None
        try:
            incarnation = self._next_incarnation()
        except (OSError, ValueError, OverflowError) as error:
            self._slots.free(range_)
            raise RefusedError(
                Cause.NO_INCARNATION, f"no incarnation id for job {name!r}: {error}"
            ) from error
        job = Job(name, incarnation, world_size, range_, self._wall_clock(), by_operator)
        self._by_incarnation[job.incarnation] = job
        self._by_name[name] = job
        self._forget_past()
        slots_text = f"slots {range_.start}-{range_.stop - 1}"
        self._listener.event("job-created", job, f"{_count(world_size)}, {slots_text}")
        return job

    def join(
        self, name: str, rank: int, world_size: int, slots: int, host: str, pid: int
    ) -> tuple[Job, Member]:
        """Register a rank, making the job if there is none alive. Raises RefusedError."""
        self._check_open()
        _check_name(name)
        _check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        if not 0 <= rank < world_size:
            raise RefusedError(
                Cause.INVALID, f"rank {rank} is not below the world size {world_size}"
            )
        try:
            [host_number] = self._host_numbers.allocate(1)
        except ExhaustedError as error:
            raise RefusedError(Cause.EXHAUSTED, f"no address for a further rank: {error}") from None
        try:
            job = self._by_name.get(name)
            if job is None or not job.alive:
                job = self.create(name, world_size, slots, by_operator=False)
            self._check_fits(job, rank, world_size, slots)
        except BaseException:
            self._host_numbers.free([host_number])
            raise
        host = "".join(filter(str.isprintable, host))[:MAX_NAME]  # it ends up in terminals
        member = Member(
            rank, secrets.randbits(64), host, pid, host_number, self._clock() + self.lease
        )
        job.members[rank] = member
        job.departed.pop(rank, None)
        self._listener.event("rank-joined", job, f"{member}")
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
            still = _ranks([m.rank for m in job.members.values() if m.active])
            raise RefusedError(
                Cause.WRONG_STATE,
                f"job {job.name!r} has been running: {taken} left, but {still} did not yet. "
                "A new job of that name can begin when all have left, or it is deleted",
            )

    def suggested_addresses(self, job: Job, member: Member) -> tuple[int, int]:
        """Return a MAC and an IPv4 address that no other living rank was given.

        The MAC is locally administered and holds rank and incarnation, so never comes again. The
        address is in the /16 of the switch's.
        """
        mac = 0x02 << 40 | member.rank << 32 | job.incarnation
        return mac, self._switch_ip & 0xFFFF0000 | member.host_number

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
        refusal = self._why_not(job, member, attachment)
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

    def refuse_hello(self, job: Job | None, text: str) -> None:
        """Count and tell."""
        self.hellos_refused += 1
        self._listener.event("hello-refused", job, text)

    def _why_not(self, job: Job, member: Member, attachment: Attachment) -> str:
        """Return what is wrong with a HELLO whose nonce is right, or nothing."""
        if not job.alive or not member.active:
            return f"the job is {job.state.name.lower()}, the rank {member.state.value}"
        if member.attachment is not None:
            if member.attachment == attachment:
                return ""
            return f"attached from {member.attachment} already, now from {attachment}"
        if attachment.port not in self._ports:
            return f"port {attachment.port} is not one of the switch's ports in use"
        if not is_station(attachment.mac) or attachment.mac == self._switch_mac:
            return f"{format_mac(attachment.mac)} is no address that a worker can have"
        if not is_host(attachment.ip) or attachment.ip == self._switch_ip:
            return f"{format_ip(attachment.ip)} is no address that a worker can have"
        if attachment.udp_port == 0:
            return "UDP port 0 cannot be answered"
        for other_job in self._by_incarnation.values():
            for other in other_job.members.values():
                theirs = other.attachment
                if other_job.over or theirs is None or theirs.mac != attachment.mac:
                    continue
                if theirs.port != attachment.port:
                    return (
                        f"{format_mac(attachment.mac)} is on port {theirs.port} already, "
                        f"as rank {other.rank} of job {other_job.name!r}"
                    )
        return ""

    def _configure(self, job: Job) -> None:
        try:
            job.replica_ids = self._replica_ids.allocate(REPLICAS_A_RANK * job.world_size)
            job.groups = self._group_ids.allocate(2)
        except ExhaustedError as error:
            self.fail(job, Cause.EXHAUSTED, f"no ids for its multicast groups: {error}")
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
        self._listener.event("job-running", job, _count(job.world_size))
        self._listener.settled(job)

    # -- Staying -----------------------------------------------------------------------

    def heartbeat(self, incarnation: int, rank: int, nonce: int) -> Job:
        """Renew a rank's lease. Raises RefusedError."""
        job, member = self.member(incarnation, rank, nonce)
        if member.active:
            member.lease_ends = self._clock() + self.lease
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
            if job.over:
                continue
            for member in list(job.members.values()):
                if member.active and not member.waiting and member.lease_ends <= now:
                    self._lose(job, member)

    def _lose(self, job: Job, member: Member) -> None:
        reason = f"{member} was lost: no heartbeat for {self.lease:g} s"
        self._listener.event("rank-lost", job, reason)
        if job.state is JobState.FORMING:
            self._take_off(job, member, reason)
            return
        member.state = MemberState.LOST
        if job.state is JobState.RUNNING:
            self.fail(job, Cause.RANK_LOST, reason)
        self._remove_if_deserted(job)

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
        if job.state is JobState.RUNNING and not any(m.active for m in job.members.values()):
            self._end(job, JobState.ENDED, None, "all ranks left")
        self._remove_if_deserted(job)

    def give_up(self, job: Job, member: Member, reason: str) -> None:
        """A rank no longer waits for the job to run: its place is free again.

        `reason` says what the rank did, like "gave up after 30 s".
        """
        if job.state is JobState.FORMING and job.members.get(member.rank) is member:
            self._listener.event("rank-left", job, f"{member} {reason}")
            self._take_off(job, member, f"{member} {reason}")

    def _take_off(self, job: Job, member: Member, reason: str) -> None:
        """Free a place in a job that is still forming."""
        if job.configuring:
            # The switch is being told of this very rank: too late to have another one instead.
            member.state = MemberState.LEFT
            self.fail(job, Cause.RANK_LOST, reason)
            return
        del job.members[member.rank]
        job.departed[member.rank] = reason
        self._host_numbers.free([member.host_number])
        if not job.members and not job.by_operator:
            self._end(job, JobState.ENDED, Cause.RANK_LOST, f"nobody is left of it: {reason}")
            self._remove(job)

    def delete(self, name: str, reason: str = "deleted by an operator") -> Job:
        """End a job whatever it is doing. Raises RefusedError if it is over already."""
        job = self.named(name)
        if job.over:
            raise RefusedError(
                Cause.UNKNOWN, f"job {name!r} is over already: {job.reason or 'it ended'}"
            )
        if job.alive:
            self._end(job, JobState.ENDED, Cause.DELETED, reason)
        else:
            self._listener.event("job-ended", job, reason)
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
            elif job.alive:
                self._end(job, JobState.ENDED, cause, reason)
            if not job.over:
                self._remove(job)

    def release(self, job: Job) -> None:
        """Nothing of the job is on the switch any more: its numbers are free."""
        self._slots.free(job.slots)
        self._replica_ids.free(job.replica_ids)
        self._group_ids.free(job.groups)
        self._host_numbers.free([member.host_number for member in job.members.values()])

    def _end(self, job: Job, state: JobState, cause: Cause | None, reason: str) -> None:
        waited_for = job.state is JobState.FORMING
        job.state, job.cause, job.reason = state, cause, reason
        job.configuring = False
        kind = "job-failed" if state is JobState.FAILED else "job-ended"
        self._listener.event(kind, job, reason)
        if waited_for:
            self._listener.settled(job)

    def _remove_if_deserted(self, job: Job) -> None:
        if not any(member.active for member in job.members.values()):
            self._remove(job)

    def _remove(self, job: Job) -> None:
        if not job.over:
            job.over = True
            self._listener.remove(job)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RefusedError(*self._closed)

    def _forget_past(self) -> None:
        past = [job for job in self._by_incarnation.values() if job.over]
        for job in past[: max(0, len(past) - PAST_JOBS)]:
            del self._by_incarnation[job.incarnation]
            if self._by_name.get(job.name) is job:
                del self._by_name[job.name]


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


def _count(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size} ranks"


def _ranks(ranks: list[int]) -> str:
    """Say a list of ranks, consecutive ones as from-to."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
