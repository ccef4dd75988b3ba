# SPDX-License-Identifier: Apache-2.0
"""What the jobs of one switch hold of it: slots, multicast groups, replica ids, host numbers."""

from __future__ import annotations

from p4reduce_controller.jobs.allocator import ExhaustedError, IdAllocator, RangeAllocator
from p4reduce_controller.jobs.job import (
    GROUP_IDS,
    REPLICA_IDS,
    REPLICAS_A_RANK,
    SLOTS,
    Cause,
    Job,
    Member,
    RefusedError,
)

GROUPS_A_JOB = 2  # one for whole results, one for halves


class Holdings:
    """Hands out what a job needs, each to one job only, and takes it back.

    Where there is not enough, RefusedError says so and nothing was taken.
    """

    def __init__(self, switch_ip: int) -> None:
        self._switch_ip = switch_ip
        self._slots = RangeAllocator(SLOTS)
        self._replica_ids = IdAllocator(*REPLICA_IDS)
        self._group_ids = IdAllocator(*GROUP_IDS)
        # The low 16 bits of suggested IP addresses: no network, broadcast or switch address.
        self._host_numbers = IdAllocator(
            1, 0xFFFE, but=frozenset({switch_ip & 0xFFFF} & set(range(1, 0xFFFF)))
        )

    @property
    def slots_free(self) -> int:
        """How many of the switch's slots no job has."""
        return self._slots.free_count

    def slots(self, count: int, name: str) -> range:
        """Take `count` slots in a row for a job of that name."""
        try:
            return self._slots.allocate(count)
        except ExhaustedError as error:
            raise RefusedError(
                Cause.EXHAUSTED,
                f"no {count} slots in a row for job {name!r}: {error}. To free some, close "
                "communicators that are not needed any more or end other jobs; or ask for fewer "
                "by slots=, or serve --default-slots",
            ) from None

    def free_slots(self, slots: range) -> None:
        """Give slots back of a job that did not come to be."""
        self._slots.free(slots)

    def host_numbers(self, count: int) -> list[int]:
        """Take numbers for that many ranks' suggested IP addresses."""
        try:
            return self._host_numbers.allocate(count)
        except ExhaustedError as error:
            raise RefusedError(Cause.EXHAUSTED, f"no address for a further rank: {error}") from None

    def free_host_numbers(self, numbers: list[int]) -> None:
        """Give numbers back."""
        self._host_numbers.free(numbers)

    def take_multicast(self, job: Job) -> None:
        """Give a job its groups, and the ids of their replicas."""
        try:
            replica_ids = self._replica_ids.allocate(REPLICAS_A_RANK * job.world_size)
            try:
                job.groups = self._group_ids.allocate(GROUPS_A_JOB)
            except ExhaustedError:
                self._replica_ids.free(replica_ids)
                raise
        except ExhaustedError as error:
            raise RefusedError(
                Cause.EXHAUSTED, f"no ids for its multicast groups: {error}"
            ) from None
        job.replica_ids = replica_ids

    def free_multicast(self, job: Job) -> None:
        """Take groups and replica ids back from a job."""
        self._replica_ids.free(job.replica_ids)
        self._group_ids.free(job.groups)
        job.replica_ids, job.groups = [], []

    def claim(self, job: Job) -> None:
        """Take what a job of a former life has. Raises ValueError if another one has it."""
        self._slots.claim(job.slots)
        self._replica_ids.claim(job.replica_ids)
        self._group_ids.claim(job.groups)
        self._host_numbers.claim([member.host_number for member in job.members.values()])

    def release(self, job: Job) -> None:
        """Take everything back from a job."""
        self._slots.free(job.slots)
        self._replica_ids.free(job.replica_ids)
        self._group_ids.free(job.groups)
        self._host_numbers.free([member.host_number for member in job.members.values()])

    def suggested_ip(self, member: Member) -> int:
        """Return an IPv4 address of the /16 of the switch's that no other living rank was given."""
        return self._switch_ip & 0xFFFF0000 | member.host_number
