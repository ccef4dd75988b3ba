# SPDX-License-Identifier: Apache-2.0
"""What `p4reduce-controller serve` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from p4reduce.control.tls import TlsFiles

from p4reduce_controller.fabric.layout import Ground, HelloLimit
from p4reduce_controller.jobs.job import DEFAULT_SLOTS
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac


@dataclass(frozen=True)
class Settings:
    """What the daemon is told."""

    switch: str  # gRPC address of its P4Runtime server
    device_id: int
    election_id: int
    listen: str
    ports: tuple[int, ...]
    switch_ip: str
    switch_mac: str
    lease: float  # seconds
    state_directory: Path
    connect_timeout: float = 10.0
    default_slots: int = DEFAULT_SLOTS  # of a job that does not say how many it wants
    tls: TlsFiles | None = None  # of the control API, where that goes by TCP
    switch_tls: TlsFiles | None = None  # of the P4Runtime session
    hello_limit: HelloLimit = field(default_factory=HelloLimit)
    stations: tuple[tuple[str, int], ...] = ()  # MAC address and port of hosts that stay there
    keep_jobs: bool = False  # when told to stop, leave them to the next controller

    @property
    def ground(self) -> Ground:
        """What is to be on the switch whatever the jobs."""
        return Ground(
            parse_ip(self.switch_ip),
            parse_mac(self.switch_mac),
            self.ports,
            self.hello_limit,
            tuple((parse_mac(mac), port) for mac, port in self.stations),
        )
