# SPDX-License-Identifier: Apache-2.0
"""Leases: when a rank counts as lost because its heartbeats stop.

Each rank sends eight heartbeats per lease (the worker's session/session.py). A rank is lost after
three quarters of a lease without one, and the controller notices that within a fortieth. The other
ranks learn it from the answer to their next heartbeat, within an eighth. In total that is less than
a lease.

If all ranks are silent, the control network or a stopped controller is the likelier cause. So while
no rank of a job is heard, none is lost. When the first one is heard again, the others get time to
follow. Only after a long silence are all of them lost.
"""

from __future__ import annotations

from p4reduce_common.figures import three_digits

from p4reduce_controller.jobs.job import Job, JobMember
from p4reduce_controller.jobs.job_states import JobState

# In leases:
LOST_AFTER = 3 / 4
LOOK = 1 / 40  # from one look at the leases to the next
IDLE_LOOK = 1 / 8  # the same while nobody is there: who comes meanwhile has a lease that is longer
LATE = 1 / 4  # of a lease: a check that is later than this shows that the controller stood still
QUIET = 1 / 4  # without anybody for so long, it is not about one rank: two heartbeats of each
DESERTED = 6  # without anybody for so long, all are lost


def heard(job: Job, member: JobMember, now: float, lease: float) -> None:
    """Note a heartbeat. If no rank was heard before it, give the others time to follow."""
    latest = job.latest
    if latest is None or not latest.active or now - latest.heard > QUIET * lease:
        quiet = _quiet(job, now)
        if quiet > QUIET * lease:
            # Connections that were cut are tried again after up to as long as they were cut.
            extend(job, now + max(lease, quiet))
    job.latest = member
    member.heard = now
    member.lease_ends = now + LOST_AFTER * lease


def begin(member: JobMember, now: float, lease: float) -> None:
    """Start a rank's lease, with extra time before its first heartbeat."""
    member.heard = now
    member.lease_ends = max(member.lease_ends, now + lease)


def extend(job: Job, end: float) -> None:
    """Let no rank of a job be lost before that moment."""
    for member in job.active:
        member.lease_ends = max(member.lease_ends, end)


def run_out(job: Job, now: float, lease: float) -> dict[JobMember, str]:
    """Return the ranks whose lease ran out, with the reasons."""
    late = [each for each in job.active if not each.waiting and each.lease_ends <= now]
    quiet = _quiet(job, now)
    if quiet > QUIET * lease:
        if quiet < DESERTED * lease:
            return {}
        if len(job.active) > 1:
            why = f"was lost: nobody of the job was heard for {three_digits(quiet)} s"
            return {member: f"{member} {why}" for member in late}
    return {
        member: f"{member} was lost: no heartbeat for {three_digits(now - member.heard)} s"
        for member in late
    }


def _quiet(job: Job, now: float) -> float:
    """For how long no rank was heard, where that counts."""
    if job.state is JobState.FORMING:
        return 0.0  # there is nothing to be lost but a place, and another one may want that
    if any(member.waiting for member in job.active):
        return 0.0  # a connection stands in for heartbeats
    return now - max((member.heard for member in job.active), default=now)
