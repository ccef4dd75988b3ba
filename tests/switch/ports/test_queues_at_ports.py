# SPDX-License-Identifier: Apache-2.0
"""Egress queues between real ports: a rate wakes the loop, a port that is full holds frames back.

No verdict hangs on how fast the machine is: times are compared only to what they cannot be below.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.pipeline_choice import Engine, load_pipeline
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from p4reduce_switch.state.queue_settings import QueueSettings
from pipeline_programs import config
from switch_peer import Peer, eventually

PROBE = struct.Struct(">HBBBBIIII")

ENGINES: list[Engine] = ["native", "python"]


class Switch:
    """Two ports on Unix sockets, with egress queues between them."""

    def __init__(self, directory: Path, engine: Engine, queues: QueueSettings):
        paths = {n: directory / f"p{n}.sock" for n in (1, 2)}
        specs = [PortSpec(n, UnixPlace(path)) for n, path in paths.items()]
        self.dataplane = open_data_plane(specs)
        self.dataplane.start()
        pipeline = load_pipeline(config("queues"), engine=engine, queues=queues)
        self.dataplane.run(lambda: self.dataplane.install(pipeline))
        self.peers = {n: Peer(path) for n, path in paths.items()}
        for number, port in self.dataplane.ports.items():
            eventually(lambda port=port: port.is_up, f"port {number} up")  # type: ignore[misc]

    def send(self, tag: int, size: int = 60) -> None:
        self.peers[1].send(
            PROBE.pack(2, 0, 0, 0, tag & 0xFF, 0, 0, 0, 0) + tag.to_bytes(4, "big") + bytes(size)
        )

    def receive(self) -> tuple[int, int, int, int]:
        """The next frame's tag, and of its queue: when it came, how many were before it, and how
        long it waited."""
        frame = self.peers[2].receive()
        *_, enqueued, before, waited, _ = PROBE.unpack_from(frame)
        return int.from_bytes(frame[PROBE.size : PROBE.size + 4], "big"), enqueued, before, waited

    def count(self, name: str) -> int:
        return self.dataplane.counts()["pipeline"][name]

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        self.dataplane.stop()


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Switch]]:
    made: list[Switch] = []

    def start(**queues: int) -> Switch:
        made.append(Switch(tmp_path, request.param, QueueSettings(**queues)))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for switch in made:
        switch.close()


def test_a_rate_wakes_the_loop(make: Callable[..., Switch]) -> None:
    """Nothing else happens while the frames wait."""
    switch = make(rate=50, depth=100)
    for tag in range(6):
        switch.send(tag)
    frames = [switch.receive() for _ in range(6)]
    assert [tag for tag, *_ in frames] == list(range(6))
    leaves = [enqueued + waited for _, enqueued, _, waited in frames]
    for earlier, number in zip(leaves, range(6), strict=True):
        assert earlier - frames[0][1] >= number * 20_000 - 10  # microseconds, each rounded down


def test_a_full_port_holds_frames_back(make: Callable[..., Switch]) -> None:
    """A peer that does not read: its queue fills to its depth, the rest is dropped, and all that
    was kept comes once it reads."""
    depth, sent = 40, 0
    switch = make(depth=depth)
    while switch.count("dropped_queue") < 100:
        for _ in range(50):
            switch.send(sent, size=1400)
            sent += 1
        eventually(lambda: switch.count("frames_in") == sent, "all frames in")  # noqa: B023
    kept = sent - switch.count("dropped_queue")
    frames = [switch.receive() for _ in range(kept)]
    tags = [tag for tag, *_ in frames]
    assert tags == sorted(tags)
    assert len(set(tags)) == kept
    depths = [before for _, _, before, _ in frames]
    assert depths[0] == 0
    assert max(depths) == depth - 1
    switch.send(sent)
    last = switch.receive()
    assert last[0] == sent
    assert last[2] == 0
    assert switch.count("frames_out") == kept + 1
