# SPDX-License-Identifier: Apache-2.0
"""Jobs without a switch and without a network; time passes when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from p4reduce_controller.jobs.job import Attachment, Job, JobMember
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.leases import DESERTED
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import Topology, only_switch
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac

LEASE = 10.0
SWITCH_MAC = parse_mac("02:70:34:72:65:64")
SWITCH_IP = parse_ip("10.77.255.254")


@dataclass
class World:
    """Stands where the daemon is: remembers what the jobs ask for, does it when told to."""

    now: float = 1000.0
    kinds: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    to_configure: list[Job] = field(default_factory=list)
    to_remove: list[Job] = field(default_factory=list)
    to_withdraw: list[Job] = field(default_factory=list)
    has_settled: list[Job] = field(default_factory=list)
    looks: list[Job] = field(default_factory=list)
    incarnation: int = 0
    changes: int = 0
    next_id: Callable[[], int] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.next_id = self._count

    def on_event(self, kind: str, job: Job | None, text: str) -> None:
        self.kinds.append(kind)
        self.texts.append(text)

    def configure(self, job: Job) -> None:
        self.to_configure.append(job)

    def on_settled(self, job: Job) -> None:
        self.has_settled.append(job)

    def remove(self, job: Job) -> None:
        self.to_remove.append(job)

    def look(self, job: Job) -> None:
        self.looks.append(job)

    def withdraw(self, job: Job) -> None:
        self.to_withdraw.append(job)

    def on_changed(self, *jobs: Job) -> None:
        self.changes += 1

    def next_incarnation(self) -> int:
        return self.next_id()

    def _count(self) -> int:
        self.incarnation += 1
        return self.incarnation


def make_jobs(
    world: World,
    topology: Topology | None = None,
    stations: tuple[tuple[int, int], ...] = (),
    **options: Any,
) -> Jobs:
    return Jobs(
        world,
        topology or only_switch(SWITCH_IP, SWITCH_MAC, range(1, 9), stations),
        lease=LEASE,
        next_incarnation=world.next_incarnation,
        clock=lambda: world.now,
        wall_clock=lambda: 1e9 + world.now,
        **options,
    )


def place(rank: int, *, port: int | None = None) -> Attachment:
    return Attachment(port or rank % 8 + 1, 0x020000000000 + rank, 0x0A4D0001 + rank, 40000 + rank)


def join(jobs: Jobs, name: str, rank: int, size: int, slots: int = 0) -> tuple[Job, JobMember]:
    return jobs.join(name, rank, size, slots, f"host{rank}", 100 + rank)


def attach(jobs: Jobs, job: Job, member: JobMember, at: Attachment | None = None) -> None:
    jobs.hello(job.incarnation, member.rank, member.nonce, at or place(member.rank))


def running(jobs: Jobs, name: str = "train", size: int = 3, slots: int = 0) -> Job:
    job = None
    for rank in range(size):
        job, member = join(jobs, name, rank, size, slots)
        attach(jobs, job, member)
    assert job is not None
    jobs.on_configured(job)
    assert job.state is JobState.RUNNING
    return job


def beat(jobs: Jobs, job: Job, *ranks: int) -> None:
    for rank in ranks:
        jobs.heartbeat(job.incarnation, rank, job.members[rank].nonce)


def pass_time(jobs: Jobs, world: World, job: Job, leases: float, *beating: int) -> None:
    """Let time pass in which only those ranks send heartbeats, as often as workers do."""
    for _ in range(round(8 * leases)):
        world.now += LEASE / 8
        beat(jobs, job, *beating)
        jobs.expire()


def desert(jobs: Jobs, world: World) -> None:
    """Let so much time pass without anybody that all are lost."""
    world.now += DESERTED * LEASE
    jobs.expire()


def leave(jobs: Jobs, job: Job, rank: int) -> None:
    jobs.leave(job.incarnation, rank, job.members[rank].nonce)


def refused(cause: Cause, call: Callable[[], object]) -> str:
    with pytest.raises(JobRefusedError) as caught:
        call()
    assert caught.value.cause is cause
    return str(caught.value)
