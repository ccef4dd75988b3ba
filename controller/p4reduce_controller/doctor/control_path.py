# SPDX-License-Identifier: Apache-2.0
"""Examines the controller: its files on this machine, and whether it answers."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import grpc
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import (
    ControlClient,
    ControlError,
    NoAnswerError,
)
from p4reduce.control.controller_address import is_local, parse_address
from p4reduce.control.tls import TlsError, TlsFiles
from p4reduce_common.grpc_channels import unix_path

from p4reduce_controller.doctor.finding import Finding, failure, note, ok, skipped, warning
from p4reduce_controller.jobs import tokens
from p4reduce_controller.jobs.leases import LOST_AFTER

SECTION = "Controller"
_PINGS = 5
_SLOW_ANSWER = 0.2  # seconds
_SLOW_FLUSH = 0.5
_ROOM = 16 << 20  # bytes
_CONNECT_TIMEOUT = 2.0  # seconds
_LEAST_LEASE = 1.0  # seconds: TCP repeats a segment after 0.2 at the earliest, then 0.4
_LEASE_MARGIN = 20  # times what an answer and a timer took here: it was measured for a moment only

_SERVE = (
    "Start one: p4reduce-controller serve --switch ADDR --ports LIST; or give its address by "
    "--controller or P4REDUCE_CONTROLLER."
)
_HANGS = (
    "Something listens there: see whether its process was stopped (ps: state T; kill -CONT), and "
    "its log. If it runs, frames to it are lost: a firewall, or the way there."
)
_NO_WAY = (
    "Nothing came back at all: see whether its machine is up, and the way there (ping, a firewall)."
)
_OTHER = "See its log; and that it is a p4reduce-controller, of this version."
# By what is in the message.
CURES = {
    "it speaks TLS": (
        "Give --tls-cert, --tls-key and --tls-ca, or set P4REDUCE_TLS_CERT, _KEY and _CA."
    ),
    "it does not speak TLS": (
        "Start it with --tls-cert, --tls-key and --tls-ca; or unset P4REDUCE_TLS_… here. It may "
        "be another program's port, too."
    ),
    "its certificate does not pass": (
        "Give the CA of the controller's certificate as --tls-ca; and the certificate has to be "
        "valid now, and for the host in the address (docs/command-errors.md, TLS)."
    ),
    "it refuses our certificate": (
        "Have ours signed by the CA that the controller was given as --tls-ca, and see that it "
        "has not expired."
    ),
    "Permission denied": "Its socket is another user's: be that one (sudo -u).",
}


@dataclass
class Answers:
    """What the controller answered, for later examinations.

    Attributes:
        late: seconds by which this machine's timers are late.
        switch: the controller's report on its switch.
        counts: what the switch counted.
        silent: why the controller could not read the counters.
        others: the same for the controller's further switches.
    """

    late: float = 0.0
    switch: pb.Switch | None = None
    counts: dict[str, int] = field(default_factory=dict)
    silent: str = ""
    others: list[Answers] = field(default_factory=list)


def examine(
    address: str, tls: TlsFiles | None, state: Path, timeout: float, answers: Answers
) -> Iterator[Finding]:
    """Examine the state directory if it is on this machine and the TLS files, and ask the
    controller."""
    if is_local(address):
        yield from _state(state)
    else:
        yield skipped(SECTION, "state directory", f"the controller at {address} is elsewhere")
    if tls is not None:
        yield _tls(tls)
    yield from _talk(address, tls, timeout, answers)


def _state(directory: Path) -> Iterator[Finding]:
    name = "state directory"
    if not directory.exists():
        yield note(SECTION, name, f"{directory} is not there yet", "serve makes it when it starts.")
        return
    status = directory.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield failure(
            SECTION,
            name,
            f"{directory} can be written to by others (mode {stat.S_IMODE(status.st_mode):o})",
            f"chmod 700 {directory}",
        )
    try:
        took = _flush(directory)
    except OSError as error:
        yield failure(
            SECTION,
            name,
            f"{directory} cannot be written to: {error.strerror}",
            f"Free the disk, or make it this user's (chown {os.getuid()}), or choose another "
            "by --state-dir.",
        )
        return
    free = shutil.disk_usage(directory).free
    if free < _ROOM:
        yield failure(
            SECTION, name, f"{directory}: {free >> 10:,} KiB are free", "Free some of the disk."
        )
    elif took > _SLOW_FLUSH:
        yield warning(
            SECTION,
            name,
            f"{directory}: flushing to disk takes {took:.1f} s, and each new job waits for it",
            "Choose a faster disk by --state-dir.",
        )
    else:
        yield ok(SECTION, name, f"{directory}, writable, flushed in {took * 1e3:.1f} ms")
    if (directory / tokens.OPERATOR_FILE).exists():
        yield _operator(directory)


def _flush(directory: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        file.write(b"doctor")
        file.flush()
        began = time.monotonic()
        os.fsync(file.fileno())
        return time.monotonic() - began


def _operator(directory: Path) -> Finding:
    path = directory / tokens.OPERATOR_FILE
    if tokens.read_operator_token(directory) is None:
        return failure(
            SECTION,
            "operator's token",
            f"{path} is not readable by its owner alone, or empty",
            f"rm {path}, and start the controller again: it makes another.",
        )
    return ok(SECTION, "operator's token", "there, and only this user's")


def _tls(files: TlsFiles) -> Finding:
    try:
        files.check()
    except TlsError as error:
        return failure(
            SECTION, "TLS files", str(error), "See docs/security.md for how to make them."
        )
    return ok(SECTION, "TLS files", f"{files.cert}, of a CA in {files.ca}")


def _talk(
    address: str, tls: TlsFiles | None, timeout: float, answers: Answers
) -> Iterator[Finding]:
    name = "answers"
    took = []
    try:
        with ControlClient(address, tls) as client:
            for _ in range(_PINGS):
                began = time.monotonic()
                jobs = client.call(client.stub.ListJobs, pb.ListJobsRequest(), timeout=timeout).jobs
                took.append(time.monotonic() - began)
            reply = client.call(client.stub.ListSwitches, pb.ListSwitchesRequest(), timeout=timeout)
            switch, *others = reply.switches
            answers.switch = switch
            answers.others = [Answers(answers.late, other) for other in others]
            for each in (answers, *answers.others):
                _count(client, timeout, each)
    except TlsError as error:
        yield failure(SECTION, name, str(error), "Mend the TLS files (docs/security.md).")
        return
    except ControlError as error:
        yield failure(SECTION, name, str(error), cure(address, error))
        return
    found = f"{address}, in {median(took) * 1e3:.1f} ms"
    if max(took) > _SLOW_ANSWER:
        yield warning(
            SECTION,
            name,
            f"{found}, but once in {max(took) * 1e3:.0f} ms",
            "Heartbeats wait as long. See what else its machine does.",
        )
    else:
        yield ok(SECTION, name, found)
    states = [job.state for job in jobs]
    yield ok(
        SECTION,
        "jobs",
        f"{states.count(pb.RUNNING)} running, {states.count(pb.FORMING)} forming, "
        f"{states.count(pb.FAILED)} failed",
    )
    yield judge_lease(switch.lease, max(took), answers.late)


def _count(client: ControlClient, timeout: float, answers: Answers) -> None:
    """Read the switch's counters. The controller has answered: it is the switch that may not."""
    if answers.switch is None or not answers.switch.connected:
        return
    request = pb.GetCountersRequest(switch=answers.switch.name)
    try:
        counters = client.call(client.stub.GetCounters, request, timeout=timeout)
    except NoAnswerError:
        answers.silent = f"the controller waits for it: no counters within {timeout:g} s"
    except ControlError as error:
        answers.silent = str(error)
    else:
        answers.counts = {count.name: count.frames for count in counters.counts}


def cure(address: str, error: ControlError) -> str:
    """Say what to do about a controller that did not answer, or answered as something else."""
    known = next((cure for text, cure in CURES.items() if text in str(error)), None)
    if known is not None:
        return known
    if not isinstance(error, NoAnswerError):
        return _OTHER
    if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _HANGS if _listens(address) else _NO_WAY
    return _SERVE


def _listens(address: str) -> bool:
    """Whether a connection comes about: the kernel makes it, whatever the process does."""
    try:
        place = parse_address(address)
        if place is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
                plain.settimeout(_CONNECT_TIMEOUT)
                plain.connect(unix_path(address) or "")
        else:
            socket.create_connection(place, _CONNECT_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True


def judge_lease(lease: float, slowest: float, late: float) -> Finding:
    """Compare the lease with the slowest answer and the latest timer, all in seconds."""
    name = "lease"
    if not lease:
        return skipped(SECTION, name, "the controller does not report it: its version is older")
    found = f"{lease:g} s, counted by the controller's monotonic clock"
    if lease >= max(_LEAST_LEASE, _LEASE_MARGIN * (slowest + late)):
        return ok(SECTION, name, f"{found}; dates need not agree")
    return warning(
        SECTION,
        name,
        f"{found}: a rank is lost if it is silent for {lease * LOST_AFTER:.2g} s. Its "
        f"answers take up to {slowest * 1e3:.1f} ms, and timers here are up to "
        f"{late * 1e3:.1f} ms late",
        "A busy moment may lose a healthy rank. Give it a longer one: serve --lease 10.",
    )
