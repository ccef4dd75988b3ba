# SPDX-License-Identifier: Apache-2.0
"""What a job needs on the switch: which entries, and in which order they come and go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce_controller.fabric.schema import Entity, Group, Row
from p4reduce_controller.jobs.job import REPLICAS_A_RANK, Attachment, Job

FLOOD_GROUP = 1  # p4src/include/constants.p4
CPU_PORT = 255
LAST_PORT = 510  # 511 means drop
DELIVERIES = ("whole", "first_half", "second_half")


@dataclass(frozen=True)
class HelloLimit:
    """How many HELLOs the switch lets each of its ports send to the controller."""

    rate: int = 200  # a second
    burst: int = 64  # as many ranks as a job can have may come by one port at once


@dataclass(frozen=True)
class Ground:
    """What is on the switch whatever the jobs."""

    ip: int  # the switch's own
    mac: int
    ports: tuple[int, ...]
    hello_limit: HelloLimit
    stations: tuple[tuple[int, int], ...] = ()  # (MAC, port) of hosts that the operator has named

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The entries and groups for it."""
        return (
            *own_addresses(self.ip, self.mac),
            flood_group(self.ports),
            *(station(*key) for key in self.stations),
        )


@dataclass(frozen=True)
class Layout:
    """A job's entities in the order of installation; removal goes the other way round.

    The stages are Writes of their own, as a switch may do the updates of one Write in any order
    (P4Runtime specification 1.4, section 12.1). A frame can be anywhere in the switch while they
    change, so each stage only leads to earlier ones: admission to groups, groups to deliveries.
    """

    deliveries: tuple[Row, ...]
    groups: tuple[Group, ...]
    admissions: tuple[Row, ...]
    stations: tuple[tuple[int, int], ...]  # (MAC, port); jobs may share these

    @property
    def stages(self) -> tuple[tuple[Entity, ...], ...]:
        """The job's own entities, first to be installed first."""
        return self.deliveries, self.groups, self.admissions


def lay_out(job: Job) -> Layout:
    """Return the layout of a job whose ranks are all attached."""
    ranks = range(job.world_size)
    attachments = [_attachment(job, rank) for rank in ranks]
    group_full, group_halves = job.groups
    ids = [job.replica_ids[rank * REPLICAS_A_RANK :][:REPLICAS_A_RANK] for rank in ranks]
    deliveries = tuple(
        Row(
            "delivery",
            {"replica": replica},
            action,
            {"mac": at.mac, "ip": at.ip, "udp_port": at.udp_port, "rank": rank},
        )
        for rank, at in zip(ranks, attachments, strict=True)
        for replica, action in zip(ids[rank], DELIVERIES, strict=True)
    )
    full = [(at.port, own[0]) for at, own in zip(attachments, ids, strict=True)]
    halves = [
        (at.port, replica) for at, own in zip(attachments, ids, strict=True) for replica in own[1:]
    ]
    admissions = tuple(
        Row(
            "admission",
            {
                "ingress_port": at.port,
                "src_ip": at.ip,
                "job": job.incarnation,
                "rank": rank,
            },
            "grant",
            {
                "worker_bit": 1 << rank,
                "all_workers": (1 << job.world_size) - 1,
                "slot_base": job.slots.start,
                "slot_count": len(job.slots),
                "group_full": group_full,
                "group_halves": group_halves,
            },
        )
        for rank, at in zip(ranks, attachments, strict=True)
    )
    return Layout(
        deliveries,
        (Group(group_full, tuple(full)), Group(group_halves, tuple(halves))),
        admissions,
        tuple(sorted({(at.mac, at.port) for at in attachments})),
    )


def own_addresses(ip: int, mac: int) -> tuple[Row, ...]:
    """Return the entries by which the switch knows its own addresses, as others name them and as
    those of whoever pretends to be the switch."""
    return (
        Row("own_source", {"mac": mac}, "is_forged"),
        Row("own_sender_ip", {"ip": ip}, "is_forged"),
        Row("own_sender_mac", {"mac": mac}, "is_forged"),
        Row("own_address", {"ip": ip}, "is_own", {"mac": mac}),
    )


def flood_group(ports: Iterable[int]) -> Group:
    """Return the group of all ports."""
    return Group(FLOOD_GROUP, tuple((port, 0) for port in ports))


def station(mac: int, port: int) -> Row:
    """Return the entry that sends ordinary traffic for a worker to its port."""
    return Row("bridge", {"dst_mac": mac}, "forward", {"port": port})


def _attachment(job: Job, rank: int) -> Attachment:
    attachment = job.members[rank].attachment
    if attachment is None:
        raise ValueError(f"rank {rank} of job {job.name!r} is not attached")
    return attachment
