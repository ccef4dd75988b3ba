# SPDX-License-Identifier: Apache-2.0
"""Our switch and BMv2, each with a P4Runtime client; frames go in and out by its stream.

No interfaces are needed: a packet-out comes in at the CPU port, and what the program sends there
comes back as a packet-in.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_lab.switches.bmv2 import PROGRAM, bmv2_command
from p4rt_client import Client, config
from p4rt_fixtures import CPU_PORT, Target
from switch_peer import DEADLINE_S

BMV2_READY_S = 120.0

Start = Callable[[str], Client]
"""Starts a switch with a program (a name in programs/); gives its primary controller."""


def exchange(client: Client, frame: bytes) -> bytes:
    """Send a frame in at the CPU port; the one that comes back, whatever else is on the stream."""
    client.send(packet={"payload": frame})
    while True:
        message = client.next()
        assert isinstance(message, p4rt.StreamMessageResponse), f"the stream ended: {message}"
        if message.HasField("packet"):
            assert isinstance(message.packet.payload, bytes)
            return message.packet.payload


@contextmanager
def embedded(program: str, directory: Path) -> Iterator[Client]:
    target = Target(directory)
    try:
        yield _configured(target.client(), program)
    finally:
        target.close()


@contextmanager
def bmv2(program: str, directory: Path) -> Iterator[Client]:
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not on PATH")
    # tmp_path may be longer than a socket's path can be.
    with (
        tempfile.TemporaryDirectory(prefix="p4rt", dir="/tmp") as sockets,
        _bmv2(f"{sockets}/s", directory) as client,
    ):
        yield _configured(client, program)


@contextmanager
def _bmv2(path: str, directory: Path) -> Iterator[Client]:
    options = ["--no-p4", "--device-id", "1", "--log-level", "off"]
    command = bmv2_command(options, f"unix:{path}", ["--cpu-port", str(CPU_PORT)])
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(path, process)
        client = Client(f"unix:{path}")
        try:
            yield client
        finally:
            client.close()
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(DEADLINE_S)


TARGETS = ("embedded", pytest.param("bmv2", marks=pytest.mark.bmv2))


@pytest.fixture(params=TARGETS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """The test runs on our switch, and where there is BMv2, on BMv2 too."""
    run = {"embedded": embedded, "bmv2": bmv2}[request.param]
    with ExitStack() as stack:
        yield lambda program: stack.enter_context(run(program, tmp_path))


@pytest.fixture
def start_ours(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda program: stack.enter_context(embedded(program, tmp_path))


def _configured(client: Client, program: str) -> Client:
    client.become_primary()
    client.set_config(config(program))
    return client


def _wait_for(path: str, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + BMV2_READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"BMv2 ended with exit code {process.returncode}"
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"BMv2 did not listen at {path} within {BMV2_READY_S} s")
