# SPDX-License-Identifier: Apache-2.0
"""The debugger at its Unix socket: in this process, and of `p4reduce-switch --debug`."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from p4reduce_switch.debug.console import serving_console
from p4reduce_switch.debug.debugger import Debugger
from p4reduce_switch.debug.pipeline import DebugPipeline
from pipeline_programs import PROGRAMS, config
from readable import readable
from switch_peer import DEADLINE_S, Peer

FRAME = bytes((0, 0)) + (0x123 << 4).to_bytes(2, "big") + b"tail"
PLACE = {"kind": "control", "name": "egress", "file": "", "line": 0, "why": "control egress"}


class Console:
    """A client of the console."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("r", encoding="utf-8")
        self.stopped: list[dict[str, Any]] = []

    def ask(self, command: str) -> Any:
        """The answer; packets that are held meanwhile are in `stopped`."""
        self.socket.sendall(command.encode() + b"\n")
        while "stopped" in (message := self.next()):
            self.stopped.append(message["stopped"])
        return message

    def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._lines.readline())
        return message

    def wait(self) -> dict[str, Any]:
        """Where the next packet is held."""
        if not self.stopped:
            self.stopped.append(self.next()["stopped"])
        return self.stopped.pop(0)

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[tuple[Path, DebugPipeline]]:
    debugger = Debugger()
    pipeline = DebugPipeline(config("header_copies"), debugger)
    path = tmp_path / "debug.sock"
    with serving_console(path, debugger):
        yield path, pipeline
    assert not path.exists()


def send(pipeline: DebugPipeline) -> threading.Thread:
    thread = threading.Thread(target=pipeline.process, args=(0, FRAME), daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(DEADLINE_S)
    return not thread.is_alive()


def test_a_session(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    assert console.ask("break control egress") == {"ok": {"breakpoint": 1, "at": "control egress"}}
    assert console.ask("list") == {"ok": {"1": "control egress"}}
    thread = send(path[1])
    assert console.wait() == PLACE
    assert console.ask("where") == {"ok": PLACE}
    assert console.ask("print command") == {
        "ok": {"command": True, "command.what": 0, "command.failure": 0}
    }
    assert console.ask("print labels[0].value") == {"ok": {"labels[0].value": 0x123}}
    assert console.ask("delete 1") == {"ok": {}}
    assert console.ask("continue") == {"ok": {}}
    assert joined(thread)
    console.close()


@pytest.fixture
def no_low_descriptors() -> Iterator[None]:
    """Those that are opened from now on have numbers beyond 1,023, as in a switch of many ports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2048
    if hard != resource.RLIM_INFINITY and hard < enough:
        pytest.skip(f"needs {enough:,} descriptors; ulimit -Hn is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < 1100:
        taken.append(os.dup(taken[0]))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("no_low_descriptors")
def test_a_session_beyond_a_thousand_descriptors(tmp_path: Path) -> None:
    debugger = Debugger()
    path = tmp_path / "debug.sock"
    with serving_console(path, debugger):
        console = Console(path)
        assert console.socket.fileno() > 1023
        for _ in range(2):
            assert console.ask("list") == {"ok": {}}
        console.close()
        again = Console(path)
        assert again.ask("list") == {"ok": {}}
        again.close()


def test_pause_and_step(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    assert console.ask("pause") == {"ok": {}}
    thread = send(path[1])
    assert console.wait()["name"] == "parser"
    assert console.ask("step") == {"ok": {}}
    assert (console.wait()["kind"], thread.is_alive()) == ("state", True)
    console.ask("continue")
    assert joined(thread)
    console.close()


def test_whoever_leaves_lets_the_packet_go(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    console.ask("break control egress")
    thread = send(path[1])
    console.wait()
    console.close()
    assert joined(thread)
    again = Console(path[0])
    assert again.ask("list") == {"ok": {}}
    assert joined(send(path[1]))
    again.close()


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("", "'' is not a command; commands are break, delete, list, continue, step"),
        ("jump 3", "'jump' is not a command"),
        ("break table I.t", "there is no table 'I.t'"),
        ("break", "'' is not a place to stop"),
        ("delete x", "'x' is not the number of a breakpoint"),
        ("continue", "no packet is held: set a breakpoint, or pause"),
        ("print", "no packet is held"),
        ("register r", "no packet is held"),
        ("register r x", "'r x' does not read as: register NAME"),
        ("counter", "'' does not read as: counter NAME"),
        ("counter c", "no packet is held"),
        ("\udcff\udcfe", "is not a command"),
    ],
)
def test_what_is_wrong_is_said(
    path: tuple[Path, DebugPipeline], command: str, complaint: str
) -> None:
    console = Console(path[0])
    console.socket.sendall(command.encode("utf-8", "surrogateescape") + b"\n")
    assert complaint in console.next()["error"]
    assert console.ask("list") == {"ok": {}}
    console.close()


def test_a_field_that_is_not_there(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    console.ask("break control egress")
    thread = send(path[1])
    console.wait()
    wrong = {
        "labels[2].value": "header 'labels[2]' is not valid in this packet here",
        "command.who": "'command.who' is not a field of command; it has failure, what",
        "nothing": "is not a field or header of this packet here; it has command, extra, ",
    }
    for name, complaint in wrong.items():
        assert complaint in console.ask(f"print {name}")["error"], name
    assert console.ask("print hdr.command.what") == {"ok": {"command.what": 0}}
    assert console.ask("print value") == {"ok": {"labels[0].value": 0x123}}
    assert "'value' could be extra.value or " in console.ask("break field value 1")["error"]
    console.ask("continue")
    assert joined(thread)
    console.close()


def test_help_and_quit(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    usage = console.ask("help")["ok"]
    assert set(usage) >= {"break", "print", "register", "counter", "quit"}
    console.ask("break control egress")
    thread = send(path[1])
    console.wait()
    assert console.ask("quit") == {"ok": {}}
    assert console.socket.recv(1) == b""
    assert joined(thread)
    console.close()


def test_a_command_without_end(path: tuple[Path, DebugPipeline]) -> None:
    console = Console(path[0])
    console.socket.sendall(b"x" * 5000)
    assert "at most 4096 bytes" in console.next()["error"]
    console.close()


def test_nobody_else_may_open_it(path: tuple[Path, DebugPipeline]) -> None:
    assert stat.S_IMODE(path[0].stat().st_mode) == 0o600


def wait_until_frames_arrive(sender: Peer, receiver: Peer) -> None:
    """Until both ports are up: a switch drops frames to a port without a peer."""
    deadline = time.monotonic() + DEADLINE_S
    for number in itertools.count():
        last = FRAME[:2] + bytes(2) + number.to_bytes(4, "big")
        sender.send(last)
        if readable([receiver.socket], 0.1):
            break
        assert time.monotonic() < deadline, "no frame arrives"
    while receiver.receive() != last:
        pass


def test_of_a_switch(tmp_path: Path) -> None:
    ready, debug = tmp_path / "ready", tmp_path / "d.sock"
    program = PROGRAMS / "header_copies"
    command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", "127.0.0.1:0"]
    command += ["--ready-file", str(ready), "--debug", str(debug), "--cpu-port", "none"]
    command += ["--port", f"1=unix:{tmp_path}/p1", "--port", f"255=unix:{tmp_path}/p2"]
    command += ["--pipeline", f"{program}.json", "--p4info", f"{program}.p4info.txtpb"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert process.poll() is None, "the switch has ended"
            assert time.monotonic() < deadline, "the switch is not ready"
            time.sleep(0.02)
        sender, receiver, console = Peer(tmp_path / "p1"), Peer(tmp_path / "p2"), Console(debug)
        wait_until_frames_arrive(sender, receiver)
        console.ask("break field labels[0].value 0x123")
        sender.send(FRAME)
        assert console.wait()["why"] == "field labels[0].value 0x123"
        receiver.expect_nothing()
        console.ask("continue")
        assert receiver.receive() == FRAME
        # It ends while it holds a packet, too.
        console.ask("break control egress")
        sender.send(FRAME)
        console.wait()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert not debug.exists()
