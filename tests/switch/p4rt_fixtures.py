# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server in this process, with two ports on Unix sockets and clients at will."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.p4runtime.server import P4RuntimeServer
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from p4rt_client import Builder, Client, config
from pipeline_programs import engine_of_servers
from switch_peer import DEADLINE_S, Peer, eventually

CPU_PORT = 255


class Target:
    """The server under test."""

    def __init__(self, directory: Path) -> None:
        self._paths = {n: directory / f"p{n}.sock" for n in (1, 2)}
        specs = [PortSpec(n, UnixPlace(path)) for n, path in self._paths.items()]
        self.dataplane = open_data_plane(specs, cpu_port=CPU_PORT)
        self.server = P4RuntimeServer(self.dataplane, engine=engine_of_servers())
        self.holds: list[threading.Event] = []
        self.dataplane.start()
        self.address = f"127.0.0.1:{self.server.start('127.0.0.1:0')}"
        self._open: list[Any] = []

    def client(self, **options: Any) -> Client:
        client = Client(self.address, **options)
        self._open.append(client)
        return client

    def plug(self, number: int) -> Peer:
        peer = Peer(self._paths[number])
        self._open.append(peer)
        eventually(lambda: self.dataplane.ports[number].is_up, f"port {number} up")
        return peer

    def hold(self) -> threading.Event:
        """Hold the data plane, as a debugger that holds a packet, until the event is set."""
        held, release = threading.Event(), threading.Event()
        self.holds.append(release)

        def wait() -> None:
            held.set()
            release.wait(DEADLINE_S)

        run = partial(self.dataplane.run, wait, DEADLINE_S)
        threading.Thread(target=run, daemon=True).start()
        assert held.wait(DEADLINE_S)
        return release

    def close(self) -> None:
        for release in self.holds:
            release.set()
        for item in self._open:
            item.close()
        self.server.stop()
        self.dataplane.stop()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path)
    yield made
    made.close()


@pytest.fixture
def primary(target: Target) -> Client:
    """The primary controller of a switch without a pipeline."""
    client = target.client()
    client.become_primary()
    return client


@pytest.fixture
def features(primary: Client) -> Client:
    """The primary controller of a switch that runs p4rt_features."""
    primary.set_config(config("p4rt_features"))
    return primary


@pytest.fixture
def build() -> Builder:
    return Builder("p4rt_features")
