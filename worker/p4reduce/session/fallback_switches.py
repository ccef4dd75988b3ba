# SPDX-License-Identifier: Apache-2.0
"""Moves a session whose switch stays away to another of the job's switches.

At each switch of a communicator the ranks form a job of its own (`p4reduce.switches`). If a switch
stays away too long, its job is formed again at another switch, beside the job there. Unfinished
collectives continue there. So no tensor is cut differently, and the collectives of other
switches are not affected.

**All ranks move, or none.** The new job's name contains the old job and the place, so ranks that
come at different times meet in it. It runs when all are there, and they agree on where they
continue (`session.agreement`). From then on the new job counts: if its switch is lost just then,
all look for the next place by the membership that they have there. A rank gives up a membership for
another place only before it has contributed to that agreement, which then ends on no rank.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from p4reduce_common.threads import new_thread

from p4reduce.control.client import ControlClient
from p4reduce.environment import Placement
from p4reduce.errors import SwitchUnreachableError, WorkerLostError
from p4reduce.latch import Latch
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.reconnector import Connect
from p4reduce.session.waiting import Waiting
from p4reduce.wire.rank_sets import describe_ranks

_JOIN_WITHIN = 1.0  # seconds; a controller that has its switch answers at once
_ATTACH_TIMEOUT = 60.0


@dataclass(frozen=True)
class FallbackSwitch:
    """One of the job's switches.

    Attributes:
        client: of its controller.
        connect: opens a transport to it.
        switch: its name at the controller; "" for the only one.
        token: of the job, or "".
    """

    client: ControlClient
    connect: Connect
    switch: str = ""
    token: str = ""


@dataclass(frozen=True, eq=False)
class FallbackSwitches:
    """What one session of several knows of the others' switches.

    Attributes:
        places: all switches, in the order that is the same on all ranks.
        name: of the session's job at a switch, by number.
        lost: which switches are known to be lost, by number; those known to be there are in
            `alive`. The state of the rest is not known.
        alive: see `lost`.
        left: ranks that have left another job of the communicator.
        after: seconds that a lost switch has to come back.
    """

    places: Sequence[FallbackSwitch]
    name: Callable[[int], str]
    alive: Callable[[], frozenset[int]]
    lost: Callable[[], frozenset[int]]
    left: Callable[[], tuple[int, ...]]
    after: float

    def candidates(self, home: int, *, without_switch: bool) -> list[int]:
        """Return the places that a session could move to, best first.

        Args:
            home: the number of its last switch.
            without_switch: whether it has no membership there any more, so it can take a new one.
        """
        number = len(self.places)
        others = [(home + step) % number for step in range(1, number + without_switch)]
        alive, lost = self.alive(), self.lost()
        there = [other for other in others if other in alive]
        return there or [other for other in others if other not in lost]


@dataclass(frozen=True)
class FallbackMembership:
    """A membership in the job at another switch, with all ranks present.

    Attributes:
        at: the number of the switch.
        job_client: of the new job.
    """

    at: int
    job_client: JobClient
    joined: JoinedJob
    connect: Connect


def move(
    others: FallbackSwitches,
    at: int,
    member: Member,
    place: Placement,
    slots: int,
    urgent_slots: Sequence[int],
    check: Callable[[], None],
) -> FallbackMembership:
    """Join the job at another switch, and return when all ranks are there.

    Args:
        others: the switches that the job may move to.
        at: number of the switch.
        member: in the job that was lost; says which rank this is.
        place: says where the process is.
        slots: how many that job had.
        urgent_slots: how many of them were for class 1, 2 and so on.
        check: called again and again; raises what makes it vain.

    Raises:
        P4ReduceError, ControlError: it does not come about; nothing is held then.
    """
    there = others.places[at]
    with contextlib.ExitStack() as undo:
        transport = there.connect(0)
        undo.callback(transport.close)
        who = replace(place, rank=member.rank, world_size=member.world_size)
        job_client = JobClient(
            there.client.share(), who, others.name(at), switch=there.switch, token=there.token
        )
        undo.callback(job_client.close)
        waiting = Waiting(job_client.who, time.monotonic() + _JOIN_WITHIN, Latch(), check)
        member = job_client.join(
            slots, urgent_slots, waiting, own_address=transport.endpoint is not None
        )
        undo.callback(job_client.leave, member)

        def check_there() -> None:
            check()
            if at in others.lost():
                raise SwitchUnreachableError("the next switch is lost as well")
            if left := others.left():
                raise WorkerLostError(
                    f"{job_client.who}: the switch was lost when {describe_ranks(left)} had left "
                    "already",
                    ranks=left,
                )

        joined = job_client.attach(member, transport, _ATTACH_TIMEOUT, check_there)
        undo.pop_all()
    return FallbackMembership(at, job_client, joined, there.connect)


def leave_behind(job_client: JobClient, member: Member, *, close: bool) -> None:
    """Give up a place at a lost switch. Its controller may be gone too."""

    def leave() -> None:
        job_client.leave(member)
        if close:
            job_client.close()

    new_thread(leave, f"p4reduce-leave-{member.rank}").start()
