# SPDX-License-Identifier: Apache-2.0
"""Plans which switches a job uses, and which ranks and switches each one sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p4reduce_controller.jobs.job import MAX_CHILDREN, Job
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import Topology, TopologyError


@dataclass(frozen=True)
class PlanChild:
    """A contributor of a switch: a rank or another switch."""

    ranks: tuple[int, ...]  # all whose gradients come by it
    switch: str = ""  # empty: a rank of its own


Plan = Mapping[str, tuple[PlanChild, ...]]
"""By switch, the job's root first and each before those below it: its children by their number.

A child's number is its bit in the switch's bitmaps: ranks first, then switches, in their order.
"""


def plan(job: Job, topology: Topology) -> Plan:
    """Return the plan of a job whose ranks are all attached.

    Its root is the lowest switch above all of its ranks, so a job at one switch uses only that one.
    Raises JobRefusedError if a switch would have too many children.
    """
    ranks: dict[str, list[int]] = {}
    for rank in range(job.world_size):
        attachment = job.members[rank].attachment
        assert attachment is not None
        ranks.setdefault(attachment.switch, []).append(rank)
    switches = topology.spanning(ranks)
    children: dict[str, tuple[PlanChild, ...]] = {}
    below: dict[str, list[PlanChild]] = {}
    for name in reversed(switches):  # from the leaves up
        own = [PlanChild((rank,)) for rank in ranks.get(name, ())]
        children[name] = (*own, *sorted(below.get(name, ()), key=lambda child: child.switch))
        _check_room(job, name, len(children[name]))
        if name != switches[0]:
            uplink = topology.uplinks[name]
            behind = sorted(rank for child in children[name] for rank in child.ranks)
            below.setdefault(uplink.parent, []).append(PlanChild(tuple(behind), name))
    return {name: children[name] for name in switches}


def plan_as_it_was(job: Job, topology: Topology) -> Plan | None:
    """Return the plan that a job was laid out by; None where switches or links are others now."""
    attached = [member.attachment for member in job.members.values()]
    if not all(at is not None and at.switch in topology.switches for at in attached):
        return None
    try:
        planned = plan(job, topology)
    except (TopologyError, JobRefusedError):  # links are gone, or a switch would have too many
        return None
    return planned if list(planned) == list(job.shares) else None


def parts(job: Job, topology: Topology) -> set[str]:
    """Return the switches and links that the job depends on, as far as they are known.

    A link is given by its text.
    """
    switches = list(job.shares)
    uplinks = topology.uplinks
    links = {uplinks[name].text(name) for name in switches[1:] if name in uplinks}
    return {*switches, *links}


def _check_room(job: Job, switch: str, children: int) -> None:
    if children > MAX_CHILDREN:
        raise JobRefusedError(
            Cause.EXHAUSTED,
            f"switch {switch} would have {children} ranks and switches below it in job "
            f"{job.name!r}, and has room for {MAX_CHILDREN}: spread the ranks over more switches",
        )
