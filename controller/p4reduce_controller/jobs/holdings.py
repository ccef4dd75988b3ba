# SPDX-License-Identifier: Apache-2.0
"""What jobs hold on the switches: slots, multicast groups, replica ids, and host numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from p4reduce_controller.jobs.allocator import ExhaustedError, IdAllocator, RangeAllocator
from p4reduce_controller.jobs.job import (
    DEFAULT_SLOTS,
    GROUP_IDS,
    MOST_AUTO_SLOTS,
    REPLICA_IDS,
    REPLICAS_A_CHILD,
    SLOTS,
    Job,
    JobMember,
    Share,
)
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import ONLY, Topology

GROUPS_A_JOB = 2  # one for whole results, one for halves


class _Holding:
    """What one switch has to give."""

    def __init__(self, switch: str) -> None:
        self.where = "" if switch == ONLY else f" on {switch}"
        self.slots = RangeAllocator(SLOTS)
        self.replica_ids = IdAllocator(*REPLICA_IDS)
        self.group_ids = IdAllocator(*GROUP_IDS)

    def take_ids(self, share: Share, children: int, *, uplink: bool) -> None:
        replica_ids = self.replica_ids.allocate(REPLICAS_A_CHILD * children + uplink)
        try:
            share.groups = self.group_ids.allocate(GROUPS_A_JOB + uplink)
        except ExhaustedError:
            self.replica_ids.free(replica_ids)
            raise
        share.replica_ids = replica_ids

    def free_ids(self, share: Share) -> None:
        self.replica_ids.free(share.replica_ids)
        self.group_ids.free(share.groups)


class Holdings:
    """Gives each job the numbers that it needs, and takes them back.

    If there are too few, JobRefusedError says so, and nothing is taken.
    """

    def __init__(self, topology: Topology) -> None:
        self._of = {name: _Holding(name) for name in topology.switches}
        self._trees = frozenset(topology.trees)
        self._suggested_ip = topology.meeting[0]
        # The low 16 bits of suggested IP addresses: no network, broadcast or switch address.
        own = {topology.meeting[0], *(switch.ip for switch in topology.switches.values())}
        taken = {ip & 0xFFFF for ip in own} - {0, 0xFFFF}
        self._host_numbers = IdAllocator(1, 0xFFFE, but=frozenset(taken))

    def slots_free(self, switch: str) -> int:
        """How many slots of a switch are free."""
        return self._of[switch].slots.free_count

    def auto_slots(self, switches: Iterable[str]) -> int:
        """How many slots to give a job on these switches that did not say how many it wants.

        A quarter of those that are free, so that jobs after it have some too.
        """
        slots = [self._of[switch].slots for switch in switches]
        fitting = min(min(of.free_count // 4, of.largest_gap) for of in slots)
        return min(MOST_AUTO_SLOTS, max(DEFAULT_SLOTS, fitting))

    def take_slots(self, switches: Iterable[str], count: int, name: str) -> dict[str, Share]:
        """Take `count` slots in a row on each of these switches, for the job of that name."""
        shares: dict[str, Share] = {}
        for switch in switches:
            holding = self._of[switch]
            try:
                shares[switch] = Share(holding.slots.allocate(count))
            except ExhaustedError as error:
                self.free_slots(shares)
                raise JobRefusedError(
                    Cause.EXHAUSTED,
                    f"no {count} slots in a row for job {name!r}{holding.where}: {error}. To free "
                    "some, close communicators that are not needed any more or end other jobs; or "
                    "ask for fewer by slots=, or serve --default-slots",
                ) from None
        return shares

    def free_slots(self, shares: Mapping[str, Share]) -> None:
        """Free the slots."""
        for switch, share in shares.items():
            self._of[switch].slots.free(share.slots)

    def host_numbers(self, count: int) -> list[int]:
        """Take numbers for the suggested IP addresses of that many ranks."""
        try:
            return self._host_numbers.allocate(count)
        except ExhaustedError as error:
            raise JobRefusedError(
                Cause.EXHAUSTED, f"no address for a further rank: {error}"
            ) from None

    def free_host_numbers(self, numbers: list[int]) -> None:
        """Free the numbers."""
        self._host_numbers.free(numbers)

    def take_multicast(self, job: Job, children: Mapping[str, int]) -> None:
        """Give a job its multicast groups and replica ids.

        `children` has the number of contributors per switch. All switches but the first send to a
        parent.
        """
        root = next(iter(children))
        done: list[str] = []
        for switch, count in children.items():
            holding = self._of[switch]
            try:
                holding.take_ids(job.shares[switch], count, uplink=switch != root)
            except ExhaustedError as error:
                for before in done:
                    self._free_ids(before, job.shares[before])
                raise JobRefusedError(
                    Cause.EXHAUSTED, f"no ids for its multicast groups{holding.where}: {error}"
                ) from None
            done.append(switch)

    def free_multicast(self, job: Job) -> None:
        """Free a job's groups and replica ids."""
        for switch, share in job.shares.items():
            self._free_ids(switch, share)

    def _free_ids(self, switch: str, share: Share) -> None:
        self._of[switch].free_ids(share)
        share.replica_ids, share.groups = [], []

    def claim(self, job: Job) -> None:
        """Take what a job from the job table holds.

        Raises ValueError if another job holds it, or if the switch does not exist.
        """
        if job.tree not in self._trees:
            raise ValueError(f"job {job.name!r} is on the tree {job.tree}, which does not exist")
        for switch, share in job.shares.items():
            holding = self._of.get(switch)
            if holding is None:
                raise ValueError(f"job {job.name!r} is on switch {switch}, which does not exist")
            holding.slots.claim(share.slots)
            holding.replica_ids.claim(share.replica_ids)
            holding.group_ids.claim(share.groups)
        self._host_numbers.claim([member.host_number for member in job.members.values()])

    def release(self, job: Job) -> None:
        """Free everything that a job holds."""
        self.free_slots(job.shares)
        for switch, share in job.shares.items():
            self._of[switch].free_ids(share)
        self._host_numbers.free([member.host_number for member in job.members.values()])

    def suggested_ip(self, member: JobMember) -> int:
        """Return an IPv4 address of the switches' /16 that no other living rank has."""
        return self._suggested_ip & 0xFFFF0000 | member.host_number
