# SPDX-License-Identifier: Apache-2.0
"""What each switch sums for a job whose ranks are all attached: which switches, and which ranks and
switches each one hears."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p4reduce_controller.jobs.job import MAX_CHILDREN, Job
from p4reduce_controller.jobs.refusals import Cause, RefusedError
from p4reduce_controller.topology.switches import Topology


@dataclass(frozen=True)
class Child:
    """What a switch hears as one contributor."""

    ranks: tuple[int, ...]  # all whose gradients come by it
    switch: str = ""  # empty: a rank of its own


Plan = Mapping[str, tuple[Child, ...]]
"""By switch, the job's root first and each before those below it: its children by their number.

A child's number is its bit in the switch's bitmaps: ranks first, then switches, in their order.
"""


def plan(job: Job, topology: Topology) -> Plan:
    """Return the plan of a job whose ranks are all attached.

    Its root is the lowest switch that is above all of its ranks: a job with all its ranks at one
    switch needs no other. Raises RefusedError where a switch would have too many children.
    """
    ranks: dict[str, list[int]] = {}
    for rank in range(job.world_size):
        attachment = job.members[rank].attachment
        assert attachment is not None
        ranks.setdefault(attachment.switch, []).append(rank)
    switches = topology.spanning(ranks)
    children: dict[str, tuple[Child, ...]] = {}
    below: dict[str, list[Child]] = {}
    for name in reversed(switches):  # from the leaves up
        own = [Child((rank,)) for rank in ranks.get(name, ())]
        children[name] = (*own, *sorted(below.get(name, ()), key=lambda child: child.switch))
        _check_room(job, name, len(children[name]))
        if name != switches[0]:
            uplink = topology.uplinks[name]
            behind = sorted(rank for child in children[name] for rank in child.ranks)
            below.setdefault(uplink.parent, []).append(Child(tuple(behind), name))
    return {name: children[name] for name in switches}


def parts(job: Job, topology: Topology) -> set[str]:
    """Return what the job cannot do without, as far as that is known: switches, and links by the
    text that names them."""
    switches = list(job.shares)
    links = {topology.uplinks[name].text(name) for name in switches[1:]}
    return {*switches, *links}


def _check_room(job: Job, switch: str, children: int) -> None:
    if children > MAX_CHILDREN:
        raise RefusedError(
            Cause.EXHAUSTED,
            f"switch {switch} would have to hear {children} ranks and switches for job "
            f"{job.name!r}, and has room for {MAX_CHILDREN}: spread the ranks over more switches",
        )
