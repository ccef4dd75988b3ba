# SPDX-License-Identifier: Apache-2.0
"""Detects that the switch does not answer one rank, or none.

A rank reaches the controller by another path than the switch, so its lease does not depend on its
port. Each heartbeat says how long the switch has not answered the rank.

A switch answers each repeated contribution of a job that it has. So if a rank has heard nothing for
half a lease, the controller checks that the switch has all of the job. If no rank hears anything
for longer than it takes to find one that is cut off, the job has lost its switch. Its ranks form it
again, instead of waiting for their deadlines.
"""

from __future__ import annotations

from p4reduce_common.figures import three_digits

from p4reduce_controller.jobs.job import AnswersReport, Job, JobMember

# In leases:
LOOK_AFTER = 1 / 2
LOST_AFTER = 3 / 2
SURE_AFTER = 1 / 10  # less than from one heartbeat to the next


def report(now: float, unanswered: float, heard: float) -> AnswersReport:
    """Convert a heartbeat's seconds into moments. 0 means never, as on the wire."""
    return AnswersReport(
        now - unanswered if unanswered > 0 else None, now - heard if heard > 0 else None
    )


def cut_off(job: Job, member: JobMember, now: float, limit: float) -> str:
    """Return why `member` is cut off, or nothing.

    It is cut off if the switch left it unanswered for `limit` seconds or longer, and answered
    another rank in the second half of that time. The first half does not count: when a switch falls
    silent, some rank had the last answer.
    """
    since = member.report.silent_since
    if since is None or now - since < limit:
        return ""
    others = (other.report.answered for other in job.active if other is not member)
    lately = (since + now) / 2
    if not any(answered is not None and answered > lately for answered in others):
        return ""  # no rank hears anything: the switch is at fault, not this rank
    return (
        f"{member} was lost: it reaches the controller, but has heard nothing from the switch "
        f"for {three_digits(now - since)} s"
    )


def to_look(job: Job, member: JobMember, now: float, lease: float) -> bool:
    """Return whether to check a job's entries on the switch now.

    If so, this is noted: the next check is half a lease later at the earliest.
    """
    since = member.report.silent_since
    limit = LOOK_AFTER * lease
    if since is None or now - max(since, job.looked_at) < limit:
        return False
    job.looked_at = now
    return True


def of_all(job: Job, member: JobMember, now: float, lease: float) -> str:
    """Return why the switch is taken for lost: it answers no rank; else "".

    Args:
        job: of the ranks.
        member: the rank whose heartbeat came.
        now: seconds.
        lease: of a rank, in seconds.
    """
    since, answered = member.report.silent_since, member.report.answered
    noticed = job.silence_noticed
    if noticed is not None and answered is not None and answered > noticed:
        job.silence_noticed = None  # the silence that was noticed is over
    limit = LOST_AFTER * lease
    if since is None or now - since < limit:
        return ""
    answers = (each.report.answered for each in job.active)
    if any(answer is not None and answer > now - limit for answer in answers):
        job.silence_noticed = None
        return ""
    if job.silence_noticed is None:
        job.silence_noticed = now
    if now - job.silence_noticed < SURE_AFTER * lease:
        return ""  # it may be the first that is heard of a machine that stood still
    return (
        f"the switch has answered nothing for {three_digits(now - since)} s, though {member} "
        "asked again and again, and no other rank had an answer"
    )
