# SPDX-License-Identifier: Apache-2.0
"""The settings of a network: the arguments of `p4reduce.launch.start`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from p4reduce_lab.errors import ArgumentsError

LEAST_LEASE, LONGEST_LEASE = 0.1, 86400.0  # seconds; as of `p4reduce-controller serve`


@dataclass(frozen=True)
class DeploySettings:
    """See `p4reduce.launch.start`, which has the same names and defaults."""

    ranks: int
    host: str = ""
    switches: int = 0
    tree: str = ""
    unix: bool = False
    link_rate: float = 0.0
    first_port: int = 0
    slots: int = 0
    lease: float = 0.0
    logs: str = ""
    captures: str = ""
    ports: str = ""

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host or "127.0.0.1")
        except ValueError:
            raise ArgumentsError(
                f"host {self.host!r} is not an IP address: give the one by which workers reach "
                "this host, such as 10.0.0.1"
            ) from None
        if self.unix and self.is_remote:
            raise ArgumentsError(
                f"Unix ports are for workers on this host: leave out host {self.host}, or unix"
            )
        if self.tree and self.switches > 1:
            raise ArgumentsError(
                f"a tree ({self.tree}) and {self.switches} switches side by side exclude each other"
            )
        if self.lease and not LEAST_LEASE <= self.lease <= LONGEST_LEASE:
            raise ArgumentsError(
                f"a lease of {self.lease:g} s; it must be {LEAST_LEASE:g} to {LONGEST_LEASE:g} s, "
                "or 0 for the default"
            )
        if not self.link_rate >= 0:
            raise ArgumentsError(f"a link rate of {self.link_rate} bit/s; it must be above 0")

    @property
    def is_remote(self) -> bool:
        """Whether workers may be on other hosts."""
        return bool(self.host) and not ipaddress.ip_address(self.host).is_loopback
