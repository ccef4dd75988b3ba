# SPDX-License-Identifier: Apache-2.0
"""The controller: its files here, and whether it answers."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from p4reduce.control import control_pb2 as pb
from p4reduce.control.address import is_local
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.tls import TlsError, TlsFiles

from p4reduce_controller import tokens
from p4reduce_controller.doctor.finding import Finding, failure, note, ok, skipped, warning

SECTION = "Controller"
_PINGS = 5
_SLOW_ANSWER = 0.2  # seconds
_SLOW_FLUSH = 0.5
_ROOM = 16 << 20  # bytes
_SERVE = (
    "Start one: p4reduce-controller serve --switch ADDR --ports LIST; or say where it is by "
    "--controller or P4REDUCE_CONTROLLER."
)


@dataclass
class Answers:
    """What the controller said, for the examinations that come after."""

    switch: pb.Switch | None = None
    counts: dict[str, int] = field(default_factory=dict)


def examine(
    address: str, tls: TlsFiles | None, state: Path, timeout: float, answers: Answers
) -> Iterator[Finding]:
    """Look at its state directory if it is on this machine, its TLS files, and talk to it."""
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
            switch = client.call(client.stub.GetSwitch, pb.GetSwitchRequest(), timeout=timeout)
            answers.switch = switch
            if switch.connected:
                counters = client.call(
                    client.stub.GetCounters, pb.GetCountersRequest(), timeout=timeout
                )
                answers.counts = {count.name: count.frames for count in counters.counts}
    except (ControlError, TlsError) as error:
        yield failure(SECTION, name, str(error), _SERVE)
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
