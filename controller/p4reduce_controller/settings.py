# SPDX-License-Identifier: Apache-2.0
"""The settings of `p4reduce-controller serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from p4reduce.control.tls import TlsFiles

from p4reduce_controller.fabric.hello_limit import HelloLimit
from p4reduce_controller.jobs.job import DEFAULT_SLOTS
from p4reduce_controller.topology.switches import Topology


@dataclass(frozen=True)
class Http:
    """The address of the live page. Beyond loopback it needs TLS files and a token."""

    address: str  # HOST:PORT
    tls: TlsFiles | None = None
    token: str = ""


@dataclass(frozen=True)
class SwitchServer:
    """A switch's P4Runtime server."""

    address: str
    device_id: int


@dataclass(frozen=True)
class ControllerSettings:
    """The settings of the daemon."""

    topology: Topology
    servers: Mapping[str, SwitchServer]  # of each switch
    election_id: int
    listen: str
    lease: float  # seconds
    state_directory: Path
    connect_timeout: float = 10.0
    default_slots: int = DEFAULT_SLOTS  # of a job that does not say how many; or AUTO_SLOTS
    tls: TlsFiles | None = None  # of the control API, where that goes by TCP
    switch_tls: TlsFiles | None = None  # of the P4Runtime sessions
    hello_limit: HelloLimit = field(default_factory=HelloLimit)
    take_over: bool = True  # a switch without a primary, with the election id that it takes
    http: Http | None = None  # where to show the live page and the metrics
    find_cores: bool = False  # ask each server whether its switch has several
    keep_jobs: bool = False  # when told to stop, leave them to the next controller

    def switch_tls_at(self, address: str) -> TlsFiles | None:
        """The files for the switch at an address: a Unix socket is protected by its directory."""
        return None if address.startswith("unix:") else self.switch_tls
