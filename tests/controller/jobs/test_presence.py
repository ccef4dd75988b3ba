# SPDX-License-Identifier: Apache-2.0
"""Ranks whose process is gone: lost at once where the kernel says so, and nowhere else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from jobs_world import LEASE, World, attach, make_jobs, place
from p4reduce.control.namespaces import namespace_id
from p4reduce_controller.jobs import leases
from p4reduce_controller.jobs.job import Job, JobMember, MemberState
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.presence import UNATTENDED, is_local, process_start

HERE = socket.gethostname()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Something to be killed."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def ranks(world: World, pids: list[int], *, local: bool) -> tuple[Jobs, Job, list[JobMember]]:
    """A job that runs; rank r is process pids[r]."""
    jobs = make_jobs(world)
    members = []
    for rank, pid in enumerate(pids):
        job, member = jobs.join("a", rank, len(pids), 0, HERE, pid, local=local)
        attach(jobs, job, member, place(rank))
        jobs.begin_presence(member)
        members.append(member)
    jobs.on_configured(job)
    assert job.state is JobState.RUNNING
    return jobs, job, members


def kill(process: subprocess.Popen[bytes]) -> None:
    """Until it is a zombie: it has not been waited for."""
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_process_of_this_machine(process: subprocess.Popen[bytes]) -> None:
    assert process_start(process.pid) == process_start(process.pid) is not None
    kill(process)
    assert process_start(process.pid) is None
    assert is_local(namespace_id("pid"))
    assert not is_local("")
    assert not is_local(namespace_id("pid") + "1")


def test_a_killed_process_frees_its_rank_at_once(
    world: World, process: subprocess.Popen[bytes]
) -> None:
    jobs, job, members = ranks(world, [os.getpid(), process.pid], local=True)
    kill(process)
    jobs.end_presence(job, members[1])
    assert members[1].state is MemberState.LOST
    assert job.state is JobState.FAILED
    assert f"rank 1 (host {HERE}, pid {process.pid}) was lost: its process has ended" in job.reason


def test_a_process_that_ends_after_its_call(world: World, process: subprocess.Popen[bytes]) -> None:
    """The kernel closes a process's files before it is gone."""
    jobs, job, members = ranks(world, [os.getpid(), process.pid], local=True)
    jobs.end_presence(job, members[1])
    assert job.state is JobState.RUNNING
    kill(process)
    world.now += leases.LOOK * LEASE
    jobs.expire()
    assert members[1].state is MemberState.LOST


def test_a_name_whose_processes_are_gone_is_free_at_once(
    world: World, process: subprocess.Popen[bytes]
) -> None:
    jobs, job, members = ranks(world, [process.pid, process.pid], local=True)
    kill(process)
    for member in members:
        jobs.end_presence(job, member)
    jobs.release(job)
    again, _ = jobs.join("a", 0, 3, 0, HERE, os.getpid(), local=True)
    assert again is not job


def test_another_process_of_the_same_number(world: World, process: subprocess.Popen[bytes]) -> None:
    jobs, job, members = ranks(world, [os.getpid(), process.pid], local=True)
    assert members[1].process is not None
    members[1].process -= 1  # that one began earlier
    jobs.end_presence(job, members[1])
    assert members[1].state is MemberState.LOST


@pytest.mark.parametrize("local", [True, False])
def test_a_call_that_ends_costs_nobody_its_rank(world: World, local: bool) -> None:
    """The process lives; or nobody can know, and heartbeats continue, or another call comes."""
    jobs, job, members = ranks(world, [os.getpid()] * 2, local=local)
    jobs.end_presence(job, members[1])
    for _ in range(30):
        world.now += LEASE / 8
        for member in members:
            jobs.heartbeat(job.incarnation, member.rank, member.nonce)
        jobs.expire()
    jobs.begin_presence(members[1])
    assert job.state is JobState.RUNNING


def test_all_calls_cut_on_this_machine(world: World) -> None:
    """As by a proxy that is restarted: the processes live, so the leases decide."""
    jobs, job, members = ranks(world, [os.getpid()] * 2, local=True)
    for member in members:
        jobs.end_presence(job, member)
    world.now += (leases.DESERTED - 1) * LEASE
    jobs.expire()
    assert job.state is JobState.RUNNING


def test_elsewhere_a_rank_that_hung_up_has_a_lease_to_come_back(world: World) -> None:
    jobs, job, members = ranks(world, [1, 1], local=False)
    for member in members:
        jobs.end_presence(job, member)
    world.now += 0.9 * LEASE
    jobs.expire()
    assert job.state is JobState.RUNNING
    world.now += 0.1 * LEASE
    jobs.expire()
    assert not job.active
    assert "its connection was closed" in job.reason


def test_elsewhere_a_cut_network_is_no_word_of_anybody(world: World) -> None:
    """The call ends when pings are not answered, long after the last heartbeat."""
    jobs, job, members = ranks(world, [1, 1], local=False)
    world.now += 3 * LEASE
    for member in members:
        jobs.end_presence(job, member)
    world.now += 2 * LEASE
    jobs.expire()
    assert job.state is JobState.RUNNING


def test_a_process_that_ended_while_no_controller_was_there(
    world: World, process: subprocess.Popen[bytes]
) -> None:
    _, job, members = ranks(world, [process.pid], local=True)
    kill(process)
    again = make_jobs(world)
    for member in members:  # what the job table does not hold
        member.presence_calls, member.process = 0, None
    again.restore([job])
    again.expire()
    assert job.active == members
    world.now += max(UNATTENDED, leases.QUIET * LEASE)
    again.expire()
    assert not job.active
