# SPDX-License-Identifier: Apache-2.0
"""Which HELLOs attach a rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p4reduce_controller.jobs.job import Attachment, Job, Member
from p4reduce_controller.values.mac_ip import format_ip, format_mac, is_host, is_station


@dataclass(frozen=True)
class Entrance:
    """Where ranks may attach."""

    ports: frozenset[int]
    switch_mac: int
    switch_ip: int
    stations: Mapping[int, int]  # MAC address to the port that an operator has given it

    def objection(
        self,
        job: Job,
        member: Member,
        at: Attachment,
        all_jobs: Iterable[Job],
        *,
        suggested_ip: int,
    ) -> str:
        """Return what is wrong with a HELLO whose nonce is right, or nothing."""
        if not job.alive or not member.active:
            return f"the job is {job.state.name.lower()}, the rank {member.state.value}"
        if member.attachment is not None:
            if member.attachment == at:
                return ""
            return f"attached from {member.attachment} already, now from {at}"
        if at.port not in self.ports:
            return f"port {at.port} is not one of the switch's ports in use"
        if not is_station(at.mac) or at.mac == self.switch_mac:
            return f"{format_mac(at.mac)} is no address that a worker can have"
        if self.stations.get(at.mac, at.port) != at.port:
            return (
                f"{format_mac(at.mac)} belongs to port {self.stations[at.mac]} (--station), "
                f"but comes from port {at.port}"
            )
        if not is_host(at.ip) or at.ip == self.switch_ip:
            return f"{format_ip(at.ip)} is no address that a worker can have"
        if at.udp_port == 0:
            return "UDP port 0 cannot be answered"
        if not member.own_address and (at.mac, at.ip) != (member.mac, suggested_ip):
            return (
                f"it was given {format_mac(member.mac)} and {format_ip(suggested_ip)}, but comes "
                f"from {format_mac(at.mac)} and {format_ip(at.ip)}"
            )
        for other_job in all_jobs:
            if other_job.over:
                continue
            for other in other_job.members.values():
                if other is not member and other.mac == at.mac and not other.own_address:
                    return (
                        f"{format_mac(at.mac)} was given to rank {other.rank} of job "
                        f"{other_job.name!r}"
                    )
                theirs = other.attachment
                if theirs is None or theirs.mac != at.mac:
                    continue
                if theirs.port != at.port:
                    return (
                        f"{format_mac(at.mac)} is on port {theirs.port} already, "
                        f"as rank {other.rank} of job {other_job.name!r}"
                    )
        return ""
