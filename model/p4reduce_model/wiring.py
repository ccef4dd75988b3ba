# SPDX-License-Identifier: Apache-2.0
"""Which switches there are, who is at which port, and what the ranks know of it.

One switch, or leaves with as many ranks each and a root above them. Switches have numbers: leaves
first, the root last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from p4reduce.wire.format import AGGREGATION_PORT, Endpoint
from p4reduce.wire.rank_sets import Child, Level, one_switch
from p4reduce_controller.jobs.job import (
    REPLICAS_A_CHILD,
    Attachment,
    Job,
    JobMember,
    MemberState,
    Share,
)
from p4reduce_controller.jobs.plan import Plan, plan
from p4reduce_controller.topology.switches import ONLY, Switch, Topology, Uplink, only_switch
from p4reduce_controller.values.mac_ip import format_ip, format_mac, parse_ip, parse_mac

from p4reduce_model.scenario import FIRST_SLOT, Scenario

_SWITCH = Endpoint("02:70:34:72:65:64", "10.77.255.254", AGGREGATION_PORT)
_MEETING = (0x0A4DFFFF, 0x02_70_34_72_65_FF)  # as a topology of links has to have it
_UPLINK_PORT = 100  # of a leaf; at the root, leaf n is at port n + 1


def port_of(rank: int) -> int:
    """The port of its switch that a rank is at, in all lives of the job."""
    return rank + 1


def endpoint_of(rank: int) -> Endpoint:
    """A rank's addresses. It keeps them in later lives.

    That is the harder case, as late frames then pass for present ones.
    """
    return Endpoint(format_mac(0x02_00_00_00_01_00 + rank), format_ip(0x0A4D0001 + rank), 49152)


@dataclass(frozen=True)
class Wiring:
    """The switches, ports and addresses of a scenario."""

    scenario: Scenario

    @property
    def is_tree(self) -> bool:
        return self.scenario.leaves > 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The switches, by number."""
        if not self.is_tree:
            return (ONLY,)
        return (*(f"leaf {number}" for number in range(self.scenario.leaves)), "root")

    @cached_property
    def topology(self) -> Topology:
        """The same as the controller knows it."""
        own = [self.endpoint(number) for number in range(len(self.names))]
        addresses = [(parse_ip(at.ip), parse_mac(at.mac)) for at in own]
        if not self.is_tree:
            return only_switch(*addresses[0], ())
        root = self.names[-1]
        return Topology(
            {
                name: Switch(name, *addresses[number], (), uplink=self._uplink(number, name, root))
                for number, name in enumerate(self.names)
            },
            _MEETING,
        )

    def _uplink(self, number: int, name: str, root: str) -> Uplink | None:
        return None if name == root else Uplink(_UPLINK_PORT, root, number + 1)

    def endpoint(self, switch: int) -> Endpoint:
        """A switch's addresses."""
        mac, ip = parse_mac(_SWITCH.mac) - switch, parse_ip(_SWITCH.ip) - switch
        return Endpoint(format_mac(mac), format_ip(ip), AGGREGATION_PORT)

    def switch_of(self, rank: int) -> int:
        """The switch that a rank is at."""
        return rank * self.scenario.leaves // self.scenario.ranks

    def first_slot(self, switch: int) -> int:
        """The first of the job's on a switch: others on each, so that mixing them up would show."""
        return FIRST_SLOT + switch

    def beyond(self, switch: int, port: int) -> tuple[int, int] | None:
        """The switch at the other end of a port's link, and its port; None: a host is there."""
        root = len(self.names) - 1
        if not self.is_tree or (switch != root and port != _UPLINK_PORT):
            return None
        return (port - 1, _UPLINK_PORT) if switch == root else (root, switch + 1)

    def job(self, life: int) -> Job:
        """The controller's record of one life of the job."""
        scenario = self.scenario
        job = Job(
            name="model",
            incarnation=scenario.job(life),
            world_size=scenario.ranks,
            slot_count=scenario.slots,
            created=0.0,
            by_operator=False,
            secret=b"",
        )
        groups = [2 + 3 * life + n for n in range(3)]
        replicas = REPLICAS_A_CHILD * scenario.ranks + 1
        ids = [1 + replicas * life + n for n in range(replicas)]
        for number, name in enumerate(self.names):
            is_leaf = self.is_tree and number < scenario.leaves
            first = self.first_slot(number)
            own = range(first, first + scenario.slots)
            job.shares[name] = Share(own, groups if is_leaf else groups[:2], ids)
        for rank in range(scenario.ranks):
            at = endpoint_of(rank)
            attachment = Attachment(
                port_of(rank),
                parse_mac(at.mac),
                parse_ip(at.ip),
                at.udp_port,
                self.names[self.switch_of(rank)],
            )
            job.members[rank] = JobMember(
                rank, 0, "", 0, rank, 0.0, state=MemberState.ATTACHED, attachment=attachment
            )
        return job

    @cached_property
    def plan(self) -> Plan:
        """Who sums what, as the controller has it."""
        return plan(self.job(0), self.topology)

    def children(self, switch: int) -> tuple[tuple[int, ...], ...]:
        """The ranks that each bit of a switch stands for."""
        return tuple(child.ranks for child in self.plan[self.names[switch]])

    def levels(self, rank: int) -> tuple[Level, ...]:
        """What the controller tells a rank of the switches above it."""
        if not self.is_tree:
            return one_switch(self.scenario.ranks)
        return tuple(
            Level(name, tuple(Child(child.ranks, child.switch) for child in self.plan[name]))
            for name in self.topology.path_up(self.names[self.switch_of(rank)])
        )
