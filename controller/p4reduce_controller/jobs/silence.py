# SPDX-License-Identifier: Apache-2.0
"""Which rank is cut off from the switch, told from a switch that answers nobody.

A rank reaches the controller by another way than the switch, so its lease says nothing of its
port. Each heartbeat tells for how long the switch has left it without an answer.
"""

from __future__ import annotations

from p4reduce_controller.jobs.job import Job, Member, Report


def report(now: float, unanswered: float, heard: float) -> Report:
    """Turn what a heartbeat says, in seconds, into moments. 0 means not at all, as on the wire."""
    return Report(now - unanswered if unanswered > 0 else None, now - heard if heard > 0 else None)


def cut_off(job: Job, member: Member, now: float, limit: float) -> str:
    """Say why `member` is cut off, or nothing.

    It is where it asked in vain for `limit` seconds while the switch answered another rank, and not
    only at first: when a switch falls silent, some rank has had the last answer.
    """
    since = member.report.silent_since
    if since is None or now - since < limit:
        return ""
    others = (other.report.answered for other in job.active if other is not member)
    lately = (since + now) / 2
    if not any(answered is not None and answered > lately for answered in others):
        return ""  # nobody hears anything: the switch, not this rank
    return (
        f"{member} was lost: it reaches the controller, but has heard nothing from the switch "
        f"for {now - since:.3g} s"
    )
