# SPDX-License-Identifier: Apache-2.0
"""The entries that a job needs on a switch, in order of installation. `fabric.py` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p4reduce.wire.format import AGGREGATION_PORT, MAY_BE_HALVED

from p4reduce_controller.fabric.hello_limit import HelloLimit
from p4reduce_controller.fabric.schema import Entity, MulticastGroup, TableRow
from p4reduce_controller.jobs.job import REPLICAS_A_CHILD, Attachment, Job
from p4reduce_controller.jobs.plan import Plan, PlanChild
from p4reduce_controller.topology.switches import Topology, Uplink

FLOOD_GROUP = 1  # p4src/common/constants.p4
WHOLE = "whole"
DELIVERIES = (WHOLE, "first_half", "second_half") if MAY_BE_HALVED else (WHOLE,)


@dataclass(frozen=True)
class BaseEntries:
    """The entries of a switch that do not depend on jobs."""

    ip: int  # the switch's own
    mac: int
    ports: tuple[int, ...]  # all in use, also those with links
    hello_limit: HelloLimit
    stations: tuple[tuple[int, int], ...] = ()  # (MAC, port) of hosts that the operator has named
    meeting: tuple[int, int] | None = None  # a tree's further (IP, MAC), which each switch has

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The entries and multicast groups."""
        meeting = own_addresses(*self.meeting, answered_by=self.mac) if self.meeting else ()
        return (
            *own_addresses(self.ip, self.mac),
            *meeting,
            flood_group(self.ports),
            *(station(*key) for key in self.stations),
        )


@dataclass(frozen=True)
class Layout:
    """A job's entities in the order of installation. They are removed in reverse order.

    Each stage is a Write of its own, because a switch may apply the updates of one Write in any
    order (P4Runtime specification 1.4, section 12.1). A frame can be anywhere in the switch
    meanwhile. So each stage refers only to earlier ones: admission and uplink to groups, groups to
    deliveries. Uplink comes before admission, because an admitted frame may be sent up.
    """

    deliveries: tuple[TableRow, ...]
    groups: tuple[MulticastGroup, ...]
    uplinks: tuple[TableRow, ...]  # none on the job's root, one on each switch below it
    admissions: tuple[TableRow, ...]
    stations: tuple[tuple[int, int], ...]  # (MAC, port); jobs may share these
    ranks: tuple[int | None, ...]  # the children by number: a rank of the switch's own, or None

    @property
    def rank_by_admission(self) -> dict[frozenset[tuple[str, int]], int]:
        """The rank of each `admission` entry, by its match key."""
        rows = zip(self.admissions, self.ranks, strict=True)
        return {frozenset(row.match.items()): rank for row, rank in rows if rank is not None}

    @property
    def rank_by_replica(self) -> dict[int, int]:
        """The rank of each replica, by its id."""
        return {
            row.match["replica"]: rank
            for number, rank in enumerate(self.ranks)
            for row in self.deliveries[number * len(DELIVERIES) :][: len(DELIVERIES)]
            if rank is not None
        }

    @property
    def stages(self) -> tuple[tuple[Entity, ...], ...]:
        """The job's own entities, in order of installation."""
        return self.deliveries, self.groups, self.uplinks, self.admissions


def lay_out(job: Job, topology: Topology, planned: Plan) -> dict[str, Layout]:
    """Return a job's layout per switch, in the plan's order. All its ranks must be attached."""
    root = next(iter(planned))
    return {
        name: _lay_out_switch(
            job, topology, name, planned, None if name == root else topology.uplinks[name]
        )
        for name in planned
    }


@dataclass(frozen=True)
class _Contributor:
    """A child, as the entries have it."""

    at: Attachment  # where it is, and the addresses that its frames come from
    header_rank: int  # `rank` in the headers of its frames
    rank: int | None  # None: a switch


def _contributors(
    job: Job, topology: Topology, switch: str, children: Sequence[PlanChild]
) -> list[_Contributor]:
    found = []
    for number, child in enumerate(children):
        if child.switch:
            below = topology.switches[child.switch]
            port = topology.uplinks[child.switch].parent_port
            at = Attachment(port, below.mac, below.ip, AGGREGATION_PORT, switch)
            found.append(_Contributor(at, number, None))
        else:
            [rank] = child.ranks
            found.append(_Contributor(_attachment(job, rank), rank, rank))
    return found


def _lay_out_switch(
    job: Job, topology: Topology, switch: str, planned: Plan, uplink: Uplink | None
) -> Layout:
    children = planned[switch]
    contributors = _contributors(job, topology, switch, children)
    share = job.shares[switch]
    group_full, group_halves, *group_up = share.groups
    ids = [
        share.replica_ids[number * REPLICAS_A_CHILD :][: len(DELIVERIES)]
        for number in range(len(children))
    ]
    deliveries = [
        _delivery(replica, action, each.at, each.header_rank)
        for each, own in zip(contributors, ids, strict=True)
        for replica, action in zip(own, DELIVERIES, strict=True)
    ]
    full = [(each.at.port, own[0]) for each, own in zip(contributors, ids, strict=True)]
    halves = [
        (each.at.port, replica)
        for each, own in zip(contributors, ids, strict=True)
        for replica in own[1:]
    ]
    groups = [MulticastGroup(group_full, tuple(full)), MulticastGroup(group_halves, tuple(halves))]
    own_slots = {
        "all_workers": (1 << len(children)) - 1,
        "slot_base": share.slots.start,
        "slot_count": len(share.slots),
        "group_full": group_full,
    }
    grant = own_slots | {"group_halves": group_halves}
    uplinks = []
    if uplink is not None:
        [grant["group_up"]] = group_up
        number = [child.switch for child in planned[uplink.parent]].index(switch)
        replica = share.replica_ids[-1]
        above = topology.switches[uplink.parent]
        at = Attachment(uplink.port, above.mac, above.ip, AGGREGATION_PORT, switch)
        deliveries.append(_delivery(replica, WHOLE, at, number))
        groups.append(MulticastGroup(grant["group_up"], ((uplink.port, replica),)))
        uplinks.append(
            TableRow("uplink", _source(job, uplink.port, above.ip, number), "pass_down", own_slots)
        )
    admissions = [
        TableRow(
            "admission",
            _source(job, each.at.port, each.at.ip, each.header_rank),
            "grant" if uplink is None else "grant_partial",
            {"worker_bit": 1 << place, **grant},
        )
        for place, each in enumerate(contributors)
    ]
    stations = {(each.at.mac, each.at.port) for each in contributors if each.rank is not None}
    return Layout(
        tuple(deliveries),
        tuple(groups),
        tuple(uplinks),
        tuple(admissions),
        tuple(sorted(stations)),
        tuple(each.rank for each in contributors),
    )


def _source(job: Job, port: int, ip: int, number: int) -> dict[str, int]:
    """Return what a frame of the job is known by."""
    return {"ingress_port": port, "src_ip": ip, "job": job.incarnation, "rank": number}


def _delivery(replica: int, action: str, at: Attachment, rank: int) -> TableRow:
    params = {"mac": at.mac, "ip": at.ip, "udp_port": at.udp_port, "rank": rank}
    return TableRow("delivery", {"replica": replica}, action, params)


def ground(topology: Topology, name: str, hello_limit: HelloLimit) -> BaseEntries:
    """Return the entries that a switch needs whatever its jobs are."""
    switch, links = topology.switches[name], topology.link_ports(name)
    return BaseEntries(
        switch.ip,
        switch.mac,
        tuple(sorted({*switch.ports, *links})),
        hello_limit,
        switch.stations,
        topology.meeting if links else None,
    )


def own_addresses(ip: int, mac: int, *, answered_by: int = 0) -> tuple[TableRow, ...]:
    """Return the entries for the switch's own addresses.

    They match frames to the switch, and drop frames that claim to come from it. A switch may answer
    from another MAC address.
    """
    return (
        TableRow("own_source", {"mac": mac}, "is_forged"),
        TableRow("own_sender_ip", {"ip": ip}, "is_forged"),
        TableRow("own_sender_mac", {"mac": mac}, "is_forged"),
        TableRow("own_address", {"ip": ip}, "is_own", {"mac": answered_by or mac}),
    )


def flood_group(ports: Iterable[int]) -> MulticastGroup:
    """Return the multicast group of all ports."""
    return MulticastGroup(FLOOD_GROUP, tuple((port, 0) for port in ports))


def station(mac: int, port: int) -> TableRow:
    """Return the entry that forwards a worker's ordinary traffic to its port."""
    return TableRow("bridge", {"dst_mac": mac}, "forward", {"port": port})


def _attachment(job: Job, rank: int) -> Attachment:
    attachment = job.members[rank].attachment
    if attachment is None:
        raise ValueError(f"rank {rank} of job {job.name!r} is not attached")
    return attachment
