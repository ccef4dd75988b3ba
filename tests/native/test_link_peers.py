# SPDX-License-Identifier: Apache-2.0
"""Peers that come, go and die, at ports of a real data plane."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fuzzing import Fuzz
from link_ends import DEADLINE_S, NO_LINKS
from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport import LinkTransport
from p4reduce.wire.frames import FrameBuffer
from p4reduce_native.link import Link, LinkKind, offers
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from stand_ins import Program
from switch_peer import QUEUE_FRAMES

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

KINDS = [LinkKind.SINGLE, LinkKind.SHARED]


class Collect(Program):
    """A pipeline that keeps what comes, and sends it to all ports that it is told to."""

    def __init__(self, *to: int) -> None:
        super().__init__(self._collect)
        self.frames: list[bytes] = []
        self.to = to

    def _collect(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        self.frames.append(frame)
        return [(egress, frame) for egress in self.to]


class Switch:
    def __init__(self, directory: Path) -> None:
        self.paths = {n: directory / f"p{n}" for n in (1, 2)}
        specs = [PortSpec(n, UnixPlace(path)) for n, path in self.paths.items()]
        self.dataplane = open_data_plane(specs)
        self.ports = self.dataplane.ports
        self.dataplane.start()

    def install(self, program: Collect) -> Collect:
        self.dataplane.run(lambda: self.dataplane.install(program))  # type: ignore[arg-type]
        return program


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    made = Switch(tmp_path)
    yield made
    made.dataplane.stop()


def connect_again(path: Path, kind: LinkKind) -> LinkTransport:
    """As soon as the port is free."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return LinkTransport(path, kind)
        except SwitchUnreachableError:  # noqa: PERF203 - once a try
            if time.monotonic() > deadline:
                raise


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:.0f} s"
        time.sleep(0.002)


def numbered(count: int) -> FrameBuffer:
    buffer = FrameBuffer(count)
    for row in range(count):
        buffer.put(row, row.to_bytes(4, "big") * 275)
    return buffer


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_killed_at_any_moment_frees_its_port(
    kind: LinkKind, switch: Switch, fuzz: Fuzz
) -> None:
    buffer = numbered(64)
    for _ in fuzz.rounds(8):
        program = switch.install(Collect())

        def work() -> None:
            transport = LinkTransport(switch.paths[1], kind)
            while True:
                sent = transport.send(buffer, np.arange(64))
                while sent < 64:
                    transport.wait(1.0, writable=True)
                    sent += transport.send(buffer, np.arange(sent, 64))

        child = in_a_child(work)
        enough = fuzz.random.choice([1, 64, 500, 2000])
        eventually(lambda: len(program.frames) >= enough, f"{enough} frames")  # noqa: B023
        time.sleep(fuzz.random.random() * 0.003)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # The next one gets the port, and what the last one sent is whole and in order.
        connect_again(switch.paths[1], kind).close()
        # Without a hello it is connected while the switch still takes what was sent.
        frames = list(program.frames)
        assert len(frames) >= enough
        assert frames == [buffer.get(i % 64) for i in range(len(frames))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_that_is_killed_is_told_to_its_worker(kind: LinkKind, tmp_path: Path) -> None:
    ready, done = os.pipe()

    def serve() -> None:
        switch = Switch(tmp_path)
        switch.install(Collect(1))
        os.write(done, b"x")
        time.sleep(DEADLINE_S)

    child = in_a_child(serve)
    os.read(ready, 1)
    transport = LinkTransport(tmp_path / "p1", kind)
    buffer = numbered(8)
    assert transport.send(buffer, np.arange(8)) == 8
    came = 0
    while came < 8:
        transport.wait(DEADLINE_S)
        came += transport.receive()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    def listen() -> None:
        for _ in range(3):  # doorbells may still be there
            transport.wait(DEADLINE_S)
            assert transport.receive() == 0

    with pytest.raises(SwitchUnreachableError, match=f"hung up on unix:{tmp_path}/p1"):
        listen()
    transport.close()
    os.close(ready)
    os.close(done)


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_read_loses_its_own_frames_only(kind: LinkKind, switch: Switch) -> None:
    reader, sleeper = (LinkTransport(switch.paths[n], kind) for n in (1, 2))
    switch.install(Collect(1, 2))
    buffer = numbered(100)
    came, sent = 0, 0
    rows = np.arange(100)
    while came < 20_000:
        if sent - came < 500:
            sent += reader.send(buffer, rows[(sent % 100) :])
        reader.wait(DEADLINE_S)
        count = reader.receive()
        assert all(
            reader.received.get(row) == buffer.get((came + row) % 100) for row in range(count)
        )
        came += count
    # Frames that come later would be kept as well, once the sleeper has made room.
    eventually(lambda: switch.dataplane.counts()["port 1"]["rx_frames"] == sent, "all have come")
    counts = switch.dataplane.counts()
    assert counts["port 1"]["tx_queue_full"] == 0
    assert counts["port 2"]["tx_queue_full"] > 0
    # The sleeper wakes up: it has what was kept, from the first one on.
    kept = counts["port 2"]["tx_frames"] + QUEUE_FRAMES
    frames: list[bytes] = []
    while len(frames) < kept:
        sleeper.wait(DEADLINE_S)
        count = sleeper.receive()
        frames += [sleeper.received.get(row) for row in range(count)]
    assert frames == [buffer.get(i % 100) for i in range(kept)]
    reader.close()
    sleeper.close()


def left_behind() -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("memfd:")


def test_a_thousand_connections_leave_nothing(switch: Switch) -> None:
    switch.install(Collect(1))
    buffer = numbered(4)
    before = left_behind()
    for i in range(1000):
        transport = connect_again(switch.paths[1], LinkKind.SHARED if i % 3 else LinkKind.SINGLE)
        transport.send(buffer, np.arange(4))
        if i % 2:
            transport.wait(DEADLINE_S)
            transport.receive()
        transport.close()
    eventually(lambda: not switch.ports[1].is_up, "the port free")
    eventually(lambda: left_behind() == before, f"only {before} left")


def test_a_forked_child_does_not_map_the_memory() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    switch = Link.accept(here, offers(LinkKind.SHARED))
    there.send(b"P4RL\x01\x04\0\0")
    assert switch.receive() == []
    assert switch.kind == LinkKind.SHARED
    assert left_behind()[1] > 0
    child = os.fork()
    if child == 0:
        os._exit(left_behind()[1])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    switch.close()
    there.close()


def test_a_hostile_peer_is_cut_off_and_its_neighbour_served(
    switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    switch.install(Collect(2))
    good = LinkTransport(switch.paths[2])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bad:
        bad.connect(str(switch.paths[1]))
        bad.send(b"P4RL\x01\x04\0\0")
        bad.settimeout(DEADLINE_S)
        _, (file,), _, _ = socket.recv_fds(bad, 100, 1)
        os.pwrite(file, b"\xff" * 256, 0)
        bad.send(b"!")
        poll = select.poll()
        poll.register(bad, select.POLLRDHUP)
        assert poll.poll(DEADLINE_S * 1000)
        os.close(file)
    told = f"port {switch.ports[1].description} is down: its peer is cut off"
    eventually(lambda: told in caplog.text, told)
    buffer = numbered(3)
    good.send(buffer, np.arange(3))
    came = 0
    while came < 3:
        good.wait(DEADLINE_S)
        came += good.receive()
    good.close()
    connect_again(switch.paths[1], LinkKind.SHARED).close()
