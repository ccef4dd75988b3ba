# SPDX-License-Identifier: Apache-2.0
"""Decides which HELLOs attach a rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce_controller.jobs.job import Attachment, Job, JobMember, port_text
from p4reduce_controller.topology.switches import ONLY, Topology
from p4reduce_controller.values.mac_ip import format_ip, format_mac, is_host, is_station


@dataclass(frozen=True)
class AttachPoint:
    """The ports and addresses at which ranks may attach."""

    topology: Topology

    def objection(
        self,
        job: Job,
        member: JobMember,
        at: Attachment,
        all_jobs: Iterable[Job],
        *,
        suggested_ip: int,
    ) -> str:
        """Return what is wrong with a HELLO whose nonce is right; empty if nothing is."""
        if not job.alive or not member.active:
            return f"the job is {job.state.name.lower()}, the rank {member.state.value}"
        if member.attachment is not None:
            if member.attachment == at:
                return ""
            return f"attached from {member.attachment} already, now from {at}"
        refusal = self._wrong_port(job, member, at) or self._bad_address(at)
        if refusal:
            return refusal
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
                if (theirs.switch, theirs.port) != (at.switch, at.port):
                    return (
                        f"{format_mac(at.mac)} is on {theirs.place} already, "
                        f"as rank {other.rank} of job {other_job.name!r}"
                    )
        return ""

    def _wrong_port(self, job: Job, member: JobMember, at: Attachment) -> str:
        if self.topology.tree_of(at.switch) != job.tree:
            return f"switch {at.switch} is not one of the job's: no links join it to {job.tree}"
        if member.switch not in ("", at.switch):
            return f"it joined for switch {member.switch}, but its HELLO came in by {at.place}"
        if at.port in self.topology.link_ports(at.switch):
            return f"{at.place} is for another switch, not for a worker"
        if at.port not in self.topology.switches[at.switch].ports:
            what = "the switch's ports" if at.switch == ONLY else f"switch {at.switch}'s ports"
            return f"port {at.port} is not one of {what} in use"
        return ""

    def _bad_address(self, at: Attachment) -> str:
        """Say what is wrong with the addresses of a HELLO."""
        switches = self.topology.switches.values()
        own_ip, own_mac = self.topology.meeting
        if not is_station(at.mac) or at.mac in (own_mac, *(each.mac for each in switches)):
            return f"{format_mac(at.mac)} is not an address that a worker can have"
        if not is_host(at.ip) or at.ip in (own_ip, *(each.ip for each in switches)):
            return f"{format_ip(at.ip)} is not an address that a worker can have"
        for switch in switches:
            port = dict(switch.stations).get(at.mac)
            if port is not None and (port, switch.name) != (at.port, at.switch):
                return (
                    f"{format_mac(at.mac)} belongs to {port_text(switch.name, port)} (--station), "
                    f"but comes from {at.place}"
                )
        return ""
