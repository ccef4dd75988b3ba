# SPDX-License-Identifier: Apache-2.0
"""`init` before the rest is there, and names that are free again when nobody has them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from fault_system import EMBEDDED, PATIENT_LEASE, FaultSystem, fault_system_with
from p4reduce.control import control_pb2 as pb
from p4reduce.session.job_client import JobClient, JoinedJob
from relay import Relay
from test_recovery import beside
from test_reform import Process
from worker_system import DEADLINE, at_once, wait_for

pytestmark = EMBEDDED
PAIR = np.ones(300, np.float32)

fault_system = fault_system_with(lambda: PATIENT_LEASE, "module")


def beside_pair(system: FaultSystem, meanwhile: Callable[[], None], **options: str) -> None:
    """Two ranks join, and sum up once; something is done when they have begun to wait."""
    job = system.new_job()

    def rank(number: int) -> None:
        with system.init(number, 2, job, **options) as comm:
            assert (comm.allreduce(PAIR) == 2).all()

    beside(lambda: at_once([lambda: rank(0), lambda: rank(1)]), meanwhile)


def joined(system: FaultSystem, job: str) -> list[int]:
    """Return the ranks that wait at the switch."""
    jobs = system.control.call(system.control.stub.ListJobs, pb.ListJobsRequest()).jobs
    members = [member for one in jobs if one.name == job for member in one.members]
    return [member.rank for member in members if member.state == "attached"]


def test_init_waits_for_a_controller(broken: FaultSystem, caplog: pytest.LogCaptureFixture) -> None:
    broken.kill_controller()

    def come() -> None:
        wait_for(lambda: "no controller answers" in caplog.text, "they say what they wait for")
        broken.start_controller()

    with caplog.at_level(logging.WARNING, "p4reduce"):
        beside_pair(broken, come)
    assert "has waited" in caplog.text


def test_init_waits_for_a_port(
    broken: FaultSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def come() -> None:
        wait_for(lambda: "there is no such socket" in caplog.text, "they say what they wait for")
        for port in (1, 2):
            real = broken.interface(port).removeprefix("unix:")
            (tmp_path / f"port{port}.sock").symlink_to(real)

    with caplog.at_level(logging.WARNING, "p4reduce"):
        beside_pair(broken, come, interface=f"unix:{tmp_path}/port{{port}}.sock")


def test_init_begins_again_where_the_switch_goes_away(broken: FaultSystem) -> None:
    """The first rank is on the switch already, and waits for the second."""
    job = broken.new_job()

    def rank(number: int) -> None:
        with broken.init(number, 2, job) as comm:
            assert (comm.allreduce(PAIR) == 2).all()

    def break_and_mend() -> None:
        wait_for(lambda: joined(broken, job), "the first rank is attached")
        broken.kill_switch()
        broken.start_switch()
        rank(1)

    beside(lambda: rank(0), break_and_mend)


@pytest.mark.parametrize("recover", [True, False])
def test_the_switch_goes_away_when_all_ranks_are_there(
    recover: bool, broken: FaultSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has said so, and the rank has not begun to compute."""
    attach = JobClient.attach
    attached, lost = threading.Event(), threading.Event()

    def attach_and_lose(*arguments: Any, **options: Any) -> JoinedJob:
        there = attach(*arguments, **options)
        monkeypatch.setattr(JobClient, "attach", attach)
        attached.set()
        wait_for(lambda: there.transport.port.over, "the connection to the switch is lost")
        assert lost.wait(DEADLINE)
        return there

    def rank() -> None:
        with broken.init(0, 1, broken.new_job(), recover=recover) as comm:
            if recover:
                assert (comm.allreduce(PAIR) == 1).all()
                return
            with pytest.raises(p4reduce.SwitchUnreachableError, match="hung up"):
                comm.allreduce(PAIR)

    def break_and_mend() -> None:
        assert attached.wait(DEADLINE)
        broken.kill_switch()
        broken.start_switch()
        lost.set()

    monkeypatch.setattr(JobClient, "attach", attach_and_lose)
    beside(rank, break_and_mend)


def test_init_joins_again_where_the_connection_to_the_controller_breaks(
    broken: FaultSystem,
) -> None:
    """The first rank waits for the second, and the controller lives."""
    job = broken.new_job()

    def rank(number: int, **options: str) -> None:
        with broken.init(number, 2, job, **options) as comm:
            assert (comm.allreduce(PAIR) == 2).all()

    def break_connections(relay: Relay) -> None:
        for _ in range(3):
            wait_for(lambda: joined(broken, job), "the first rank is attached")
            relay.hang_up()
            time.sleep(0.3)
        rank(1)

    with broken.relay() as relay:
        beside(lambda: rank(0, controller=relay.address), lambda: break_connections(relay))


def test_the_error_at_the_end_says_what_was_missing(broken: FaultSystem, tmp_path: Path) -> None:
    nowhere = {"interface": f"unix:{tmp_path}/port1.sock"}
    with pytest.raises(p4reduce.SwitchUnreachableError, match="there is no such socket"):
        broken.init(0, 1, broken.new_job(), timeout=0.3, **nowhere)
    nobody = {"controller": f"unix:{tmp_path}/controller.sock"}
    with pytest.raises(p4reduce.ControllerUnreachableError, match="no controller answers") as none:
        broken.init(0, 1, broken.new_job(), timeout=0.3, **nobody)
    assert "p4reduce-controller serve" in str(none.value)
    assert "p4reduce-lab up" in str(none.value)


def test_init_beside_a_communicator_when_the_controller_is_back(
    broken: FaultSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose connection is in gRPC's back-off just then."""
    with broken.init(0, 1, broken.new_job()):
        broken.kill_controller()
        wait_for(lambda: "continuing without it" in caplog.text, "the connection is lost")
        broken.start_controller()
        with broken.init(0, 1, broken.new_job(), first_port=2) as second:
            assert (second.allreduce(PAIR) == 1).all()


def test_the_name_of_killed_processes_is_free_at_once(broken: FaultSystem) -> None:
    job = broken.new_job()
    ranks = [Process(broken, job, rank, 2) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.line() == "joined"
        for rank in ranks:
            rank.send(signal.SIGKILL)
        wait_for(lambda: broken.job(job).state != pb.RUNNING, "the job is over")
        wait_for(lambda: {one.state for one in broken.job(job).members} <= {"left", "lost"}, "all")
        reason = broken.job(job).reason
        assert "its process has ended" in reason or reason == "all ranks left", reason
        with broken.init(0, 1, job) as comm:
            assert (comm.allreduce(PAIR) == 1).all()
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()


def test_processes_that_were_killed_while_no_controller_was_there(broken: FaultSystem) -> None:
    job = broken.new_job()
    code = "import p4reduce, sys, time; c = p4reduce.init(0, 1, *sys.argv[1:3], interface="
    code += "sys.argv[3]); print('joined', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code, broken.controller, job, broken.interface(1)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"joined\n"
        broken.kill_controller()
        os.kill(rank.pid, signal.SIGKILL)
        broken.start_controller()
        wait_for(lambda: broken.job(job).state != pb.RUNNING, "the job is over")
        assert "its process has ended" in broken.job(job).reason
    finally:
        rank.kill()
        rank.communicate()


CLOSES_LATE = """
import sys, p4reduce
comm = p4reduce.init(0, 1, *sys.argv[1:3], interface=sys.argv[3])
print("joined", flush=True)
input()
comm.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("in_time", [True, False], ids=["heard", "unheard"])
def test_a_clean_close_while_the_controller_restarts(broken: FaultSystem, in_time: bool) -> None:
    job = broken.new_job()
    command = [sys.executable, "-c", CLOSES_LATE, broken.controller, job, broken.interface(1)]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert rank.stdin is not None
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"joined\n"
        broken.kill_controller()
        rank.stdin.write(b"\n")
        rank.stdin.flush()
        if not in_time:
            assert rank.stdout.readline() == b"closed\n"
        broken.start_controller()
        assert rank.communicate(timeout=DEADLINE)[0].endswith(b"closed\n" if in_time else b"")
    finally:
        rank.kill()
        rank.communicate()
    with broken.init(0, 1, job) as again:
        assert (again.allreduce(PAIR) == 1).all()
