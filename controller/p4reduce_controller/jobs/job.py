# SPDX-License-Identifier: Apache-2.0
"""A job: one life of a name, with its ranks and what it has on the switch."""

from __future__ import annotations

import asyncio
import enum
import heapq
import math
from dataclasses import dataclass, field

from p4reduce.control import control_pb2 as pb

from p4reduce_controller.jobs.comparing import Comparison
from p4reduce_controller.jobs.job_states import (
    OVER,
    PUBLIC_STATES,
    RELEASED,
    JobEvent,
    JobState,
    Stage,
    after,
)
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.settling import Settlement
from p4reduce_controller.topology.switches import ONLY
from p4reduce_controller.values.counts import RankCounts
from p4reduce_controller.values.dataclass_json import TRANSIENT
from p4reduce_controller.values.mac_ip import format_ip, format_mac
from p4reduce_controller.values.token_hash import TokenHash

MAX_CHILDREN = 64  # what a switch's bitmaps have room for: ranks, or switches below it
MAX_WORLD_SIZE = 4096  # of a tree
SLOTS = 1024
DEFAULT_SLOTS = 32
AUTO_SLOTS = 0  # as a default: by how many are free
MOST_AUTO_SLOTS = 256

# Replicas of the flood group have id 0, and group 1 is the flood group itself. BMv2 keeps the
# groups from 2^15 on to itself.
REPLICA_IDS = (1, 0xFFFF)
GROUP_IDS = (2, 0x7FFF)
REPLICAS_A_CHILD = 3  # one of the whole result, two of its halves


class MemberState(enum.Enum):
    """The state of a rank."""

    JOINED = "joined"  # has a nonce
    ATTACHED = "attached"  # its HELLO came through the switch
    LEFT = "left"
    LOST = "lost"  # its lease ran out


@dataclass(frozen=True)
class Attachment:
    """Where a rank's HELLO came from. The rank's frames must come from there, and results go
    there."""

    port: int
    mac: int
    ip: int
    udp_port: int
    switch: str = ONLY

    def __str__(self) -> str:
        mac, ip = format_mac(self.mac), format_ip(self.ip)
        return f"{self.place}, {mac}, {ip}:{self.udp_port}"

    @property
    def place(self) -> str:
        """The port, with its switch if that has a name."""
        return port_text(self.switch, self.port)


@dataclass(frozen=True)
class AnswersReport:
    """A rank's report on the switch's answers, at a moment of the controller's clock."""

    silent_since: float | None = None  # it has asked since then, and got no answer
    answered: float | None = None  # when it got the latest one


@dataclass(eq=False)
class JobMember:
    """One rank of a job."""

    rank: int
    nonce: int
    host: str
    pid: int
    host_number: int  # unique among the living; makes the suggested IP address
    heard: float = field(default=0.0, metadata=TRANSIENT)  # when it last was
    lease_ends: float = field(default=0.0, metadata=TRANSIENT)
    state: MemberState = MemberState.JOINED
    attachment: Attachment | None = None
    ring_address: str = ""  # "host:port" where the other ranks reach it, if they can
    # How many calls wait for the job; the lease rests meanwhile.
    waiting: int = field(default=0, metadata=TRANSIENT)
    refusal: str = field(default="", metadata=TRANSIENT)  # why its last HELLO was refused
    # It has the result of all collectives before this one; it says so with each heartbeat.
    completed: int = field(default=0, metadata=TRANSIENT)
    report: AnswersReport = field(default=AnswersReport(), metadata=TRANSIENT)
    mac: int = 0  # the suggested one
    own_address: bool = True  # it has one; otherwise only the suggested ones are its
    switch: str = ""  # the one that it says it is at; it may leave that open
    local: bool = False  # its process is on this machine
    # How many calls of it stay open, and when the last one was closed although it was well.
    presence_calls: int = field(default=0, metadata=TRANSIENT)
    cut: float | None = field(default=None, metadata=TRANSIENT)
    process: int | None = field(default=None, metadata=TRANSIENT)  # when it began, if seen
    # What it last said of itself.
    statistics: pb.WorkerStatistics | None = field(default=None, metadata=TRANSIENT)

    @property
    def active(self) -> bool:
        """Whether the rank still takes part."""
        return self.state in (MemberState.JOINED, MemberState.ATTACHED)

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host or 'unknown'}, pid {self.pid})"


@dataclass(frozen=True)
class NewPlace:
    """The place of a failed job's rank in the new job."""

    rank: int
    nonce: int


@dataclass(frozen=True)
class Succession:
    """What became of a failed job whose ranks continued in a new one."""

    incarnation: int  # the new job's
    places: dict[int, NewPlace]  # by the rank in the old job
    resume_from: int  # the first collective that some rank has no result of


@dataclass(eq=False)
class Share:
    """What a job has on one switch."""

    slots: range
    groups: list[int] = field(default_factory=list)  # full, halves
    replica_ids: list[int] = field(default_factory=list)  # REPLICAS_A_CHILD for each child in turn


@dataclass(eq=False)
class Job:
    """One life of a job name."""

    name: str
    incarnation: int
    world_size: int
    slot_count: int
    created: float  # seconds since the epoch
    by_operator: bool  # then it stays, even without a rank
    secret: bytes  # its ranks know each other by it
    stage: Stage = Stage.GATHERING
    members: dict[int, JobMember] = field(default_factory=dict)
    departed: dict[int, str] = field(default_factory=dict)  # ranks that went while it formed
    tree: str = ONLY  # name of the tree of switches that it may use
    # By switch, the job's root first. Of a tree's, known when all ranks are attached.
    shares: dict[str, Share] = field(default_factory=dict)
    cause: Cause | None = None
    reason: str = ""
    urgent_slots: list[int] | None = None  # those of classes 1, 2, …; None: no rank has said it yet
    token: TokenHash | None = None  # joining and deleting it take this one
    elastic: bool = False  # re-formed of those who were there: it fails rather than wait for others
    intact: bool = False  # re-formed after the loss of its switch: it fails if it loses a rank
    successor: Succession | None = None
    # Who was heard last, so that a heartbeat need not look at all members.
    latest: JobMember | None = field(default=None, metadata=TRANSIENT)
    # A heap of (completed, rank) with what members have said, also of what is out of date.
    progress: list[tuple[int, int]] = field(default_factory=list, metadata=TRANSIENT)
    # When a rank first reported that the switch has answered no rank for too long.
    silence_noticed: float | None = field(default=None, metadata=TRANSIENT)
    # Ranks that were lost after the job had failed and are not reported yet, with the reasons.
    unannounced_losses: dict[JobMember, str] = field(default_factory=dict, metadata=TRANSIENT)
    # When the controller last began to look whether its switches have all of it.
    looked_at: float = field(default=-math.inf, metadata=TRANSIENT)
    # Set as soon as it no longer forms.
    settled: asyncio.Event = field(default_factory=asyncio.Event, metadata=TRANSIENT)
    installing: asyncio.Task[None] | None = field(default=None, metadata=TRANSIENT)
    comparison: Comparison | None = field(default=None, metadata=TRANSIENT)
    settlement: Settlement | None = field(default=None, metadata=TRANSIENT)
    reformation: Reformation | None = field(default=None, metadata=TRANSIENT)  # under way
    # What was counted for each rank, once its entries are gone.
    final_counts: dict[int, RankCounts] | None = field(default=None, metadata=TRANSIENT)
    # As the job table has it, and who has gone; None where a change has made that stale.
    encoded: str | None = field(default=None, metadata=TRANSIENT)
    known_gone: tuple[list[int], list[int]] | None = field(default=None, metadata=TRANSIENT)

    def step(self, event: JobEvent) -> None:
        """Move to the next stage. Raises NoTransitionError."""
        self.stage = after(self.stage, event)

    def changed(self) -> None:
        """Discard values that were computed from the job's former state."""
        self.encoded = self.known_gone = None

    @property
    def gone(self) -> tuple[list[int], list[int]]:
        """The ranks that left, and those that were lost. Each heartbeat's answer needs them."""
        if self.known_gone is None:
            self.known_gone = self.ranks(MemberState.LEFT), self.ranks(MemberState.LOST)
        return self.known_gone

    @property
    def state(self) -> JobState:
        """The state that ranks and operators see."""
        return PUBLIC_STATES[self.stage]

    @property
    def configuring(self) -> bool:
        """Whether its switches are being configured."""
        return self.stage is Stage.CONFIGURING

    @property
    def over(self) -> bool:
        """Whether its entries are being deleted or are gone."""
        return self.stage in OVER

    @property
    def released(self) -> bool:
        """Whether its entries are gone and its slots and ids are free."""
        return self.stage in RELEASED

    @property
    def alive(self) -> bool:
        """Whether the job still has its name."""
        return self.state in (JobState.FORMING, JobState.RUNNING)

    @property
    def root(self) -> Share:
        """What it has on its topmost switch; empty until that is known."""
        return next(iter(self.shares.values()), Share(range(0)))

    @property
    def reformable(self) -> bool:
        """Whether its ranks may continue in a new job. The name is kept for that."""
        return self._failed_for_now and bool(self.active)

    @property
    def deserted(self) -> bool:
        """Whether it failed, no rank is left, and no new job replaces it."""
        return self._failed_for_now and not self.active

    @property
    def _failed_for_now(self) -> bool:
        return self.state is JobState.FAILED and self.stage is not Stage.REFORMED

    @property
    def active(self) -> list[JobMember]:
        """The members that still take part, in order of rank."""
        return [member for _, member in sorted(self.members.items()) if member.active]

    @property
    def completed_by_all(self) -> int:
        """How many collectives, from the first, have their result on all remaining ranks."""
        if not self.progress:
            self.progress = [(member.completed, member.rank) for member in self.active]
            heapq.heapify(self.progress)
        while self.progress:
            completed, rank = self.progress[0]
            member = self.members.get(rank)
            if member is not None and member.active and member.completed == completed:
                return completed
            heapq.heappop(self.progress)
        return 0

    def admit(self, member: JobMember) -> None:
        """Add a member, or replace the member of that rank."""
        self.members[member.rank] = member
        if self.progress:
            heapq.heappush(self.progress, (member.completed, member.rank))

    def completes(self, member: JobMember, completed: int) -> None:
        """Note how many collectives a member has the result of."""
        if completed > member.completed:
            member.completed = completed
            if self.progress:
                heapq.heappush(self.progress, (completed, member.rank))

    @property
    def vacant(self) -> list[int]:
        """The ranks without a member."""
        taken = {member.rank for member in self.active}
        return [rank for rank in range(self.world_size) if rank not in taken]

    @property
    def complete(self) -> bool:
        """Whether every rank is attached."""
        # The latest ones are those who may lack it.
        return len(self.members) == self.world_size and all(
            member.state is MemberState.ATTACHED for member in reversed(self.members.values())
        )

    def ranks(self, state: MemberState) -> list[int]:
        """Return the ranks in a state, in order."""
        return sorted(member.rank for member in self.members.values() if member.state is state)

    def awaited(self) -> list[int]:
        """Return the ranks that have not joined, or whose HELLO has not come.

        Ranks that gave up are left out.
        """
        heard = self.members.keys() - set(self.ranks(MemberState.JOINED))
        return sorted(set(range(self.world_size)) - heard - self.departed.keys())

    def missing(self) -> str:
        """Say what the job waits for, rank by rank, for a message."""
        gone = self.departed.keys() | self.members.keys()
        absent = [rank for rank in range(self.world_size) if rank not in gone]
        lacks = []
        if absent:
            lacks.append(f"{ranks_text(absent)} {'has' if len(absent) == 1 else 'have'} not joined")
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


@dataclass
class Asked:
    """What a rank of a failed job asked for."""

    world_size: int  # 0: as many as there are
    completed: int
    ring_address: str
    intact: bool  # only with all ranks
    calls: int = 0  # more than one while its client tries again


@dataclass(eq=False)
class Reformation:
    """A failed job whose ranks ask for a new one."""

    job: Job
    asked: dict[int, Asked] = field(default_factory=dict)  # by rank
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # with or without a new job
    refusal: JobRefusedError | None = None  # why it came to nothing

    def awaited(self) -> list[JobMember]:
        """The live ranks that have not asked."""
        return [member for member in self.job.active if member.rank not in self.asked]


def port_text(switch: str, port: int) -> str:
    """Return a port's name for messages."""
    return f"port {port}" if switch == ONLY else f"port {port} of {switch}"


def count_text(world_size: int) -> str:
    """Return a number of ranks for messages, such as "1 rank"."""
    return "1 rank" if world_size == 1 else f"{world_size} ranks"


def ranks_text(ranks: list[int]) -> str:
    """Return a list of ranks for messages, with consecutive ones as "from to"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
