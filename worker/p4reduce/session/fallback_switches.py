# SPDX-License-Identifier: Apache-2.0
"""Moves a session whose switch stays away to another of the job's switches.

At each switch of a communicator the ranks form a job of its own (`p4reduce.switches`). If a switch
stays away too long, its job is formed again at another switch, beside the job there. Unfinished
collectives are repeated there. So no tensor is cut differently, and the collectives of other
switches are not affected.

**All ranks move, or none.** The new job's name contains the old job and the place, so ranks that
come at different times meet in it. It runs when all are there. In its first collective they
agree on the first collective whose result a rank lacks. From that step on the new job
counts. A rank that has its result continues, and a rank that lacks it can still get it from that
switch. If that switch is lost just then, both look for the next place by the membership that they
have there. A rank gives up a membership for another place only before that collective, which is
then never completed without it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.environment import Placement
from p4reduce.errors import SwitchUnreachableError, WorkerLostError
from p4reduce.latch import Latch
from p4reduce.session.engine import Engine
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.machine import Machine
from p4reduce.session.reconnector import Connect
from p4reduce.session.waiting import Waiting
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.rank_sets import describe_ranks

_JOIN_WITHIN = 1.0  # seconds; a controller that has its switch answers at once
_ATTACH_TIMEOUT = 60.0
_LOOK = 0.5  # seconds between two looks at whether the place is still good
_BAD_LOOKS = 4
_LOOK_TIMEOUT = 2.0
_HALT_TIMEOUT = 5.0


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


class FallbackAgreement:
    """The first collective of a moved job: the ranks agree on where to continue.

    Attributes:
        deserted: whether a rank gave up its membership there before it contributed, so
            this rank must give up its own.

    Args:
        taken: the place.
        machine: a fresh machine.
        completed: the number of the first collective whose result this rank lacks.
    """

    def __init__(
        self, taken: FallbackMembership, machine: Machine, completed: int, slots: int
    ) -> None:
        member = taken.joined.member
        self._taken = taken
        self._plan = plans.allgather(
            np.array([completed], np.int64),
            [1] * member.world_size,
            "what is to be repeated",
            None,
            rank=member.rank,
            world_size=member.world_size,
        )
        plan = self._plan
        self._collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=0,
            slots=slots,
            timeout=math.inf,
            lane_format=plan.lane_format,
            counted=False,
        )
        self.deserted = False
        self.engine = Engine(machine, taken.joined.transport)

    def reach(self, check: Callable[[], None]) -> int:
        """Return the number of the first collective that a rank lacks.

        Args:
            check: raises an error that makes it useless.

        Raises:
            P4ReduceError: no agreement was reached.
        """
        self.engine.submit(self._collective)
        next_look = time.monotonic() + _LOOK
        bad_looks = 0
        while not self._collective.join(0.02):
            check()
            if time.monotonic() >= next_look:
                # Who has all that there is to have may leave; then only the answer is missing.
                bad_looks = bad_looks + 1 if (why := self._trouble()) else 0
                if bad_looks >= _BAD_LOOKS:
                    raise SwitchUnreachableError(f"the job at the next switch: {why}")
                next_look = time.monotonic() + _LOOK
        self._collective.wait(0.0)
        return int(self._plan.result().min())

    def _trouble(self) -> str:
        try:
            reply = self._taken.job_client.heartbeat(self._taken.joined.member, _LOOK_TIMEOUT)
        except ControlError:
            return ""  # the switch sums without it
        if reply.left:
            self.deserted = True
            return f"{describe_ranks(tuple(reply.left))} left"
        return "" if reply.state == pb.RUNNING else reply.reason

    def give_up(self) -> None:
        """Stop: the agreement is not needed any more."""
        self.engine.stop(_HALT_TIMEOUT)


def leave_behind(job_client: JobClient, member: Member, *, close: bool) -> None:
    """Give up a place at a lost switch. Its controller may be gone too."""

    def leave() -> None:
        job_client.leave(member)
        if close:
            job_client.close()

    new_thread(leave, f"p4reduce-leave-{member.rank}").start()
