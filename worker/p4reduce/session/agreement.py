# SPDX-License-Identifier: Apache-2.0
"""The first collectives of a job that was formed again: where each slot continues.

They run on a fresh machine, by the new switch, and change nothing of what was under way before. So
if that switch is lost as well, all begin again from what they have: docs/protocol.md, "Continuing".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce.errors import SwitchUnreachableError
from p4reduce.session.engine import Engine
from p4reduce.session.job_client import JobClient, JoinedJob
from p4reduce.session.machine import Machine
from p4reduce.tensors import plans
from p4reduce.tensors.continuing import MESSAGE_BYTES, Continuation, words_of
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.rank_sets import describe_ranks

_LOOK = 0.5  # seconds between two looks at whether the job still runs
_BAD_LOOKS = 4
_LOOK_TIMEOUT = 2.0
_HALT_TIMEOUT = 5.0


class ResumeAgreement:
    """Lets all ranks continue at one point, on the switch that they have met at.

    Attributes:
        joined: this rank's place in the new life; closed with the engine.
        engine: runs the new life on a fresh machine.

    Args:
        before: what the rank had under way; no thread uses it.
    """

    def __init__(
        self, job_client: JobClient, joined: JoinedJob, machine: Machine, before: Machine
    ) -> None:
        self._job_client = job_client
        self.joined = joined
        self._before = before
        self._sequence = 0
        self.engine = Engine(machine, joined.transport)

    def reach(self, check: Callable[[], None]) -> None:
        """Agree, and hand over what ranks lack. Nothing changes yet.

        Raises:
            P4ReduceError: no agreement was reached; or what `check` raises meanwhile.
        """
        before, member = self._before, self.joined.member
        finished, world_size = before.finished, member.world_size
        mine = words_of(finished)
        said = self._run(
            plans.allgather(
                mine,
                [len(mine)] * world_size,
                "how far each slot is",
                None,
                rank=member.rank,
                world_size=world_size,
            ),
            check,
        )
        found = Continuation.of(finished, said.reshape(world_size, -1))
        results = np.zeros((len(found.slots), MESSAGE_BYTES), np.uint8)
        if len(found.slots):
            given = found.given_by(member.rank, before.results(found.slots))
            plan = plans.allreduce(
                given.view(np.int32), Operation.SUM, "results", None, world_size=world_size
            )
            results = self._run(plan, check).view(np.uint8)
        self._found, self._results = found, results

    def take_over(self) -> None:
        """Continue with all that was under way, in the engine's thread."""
        machine, now = self.engine.machine, time.monotonic()
        # Both are of the engine that the session was started with.
        machine.continue_from(self._before, self._found.newest, now)  # type: ignore[arg-type]
        machine.take_results(*self._found.lacked(self._results), now)

    def _run(self, plan: CollectivePlan[Any], check: Callable[[], None]) -> Any:
        collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=self._sequence,
            slots=self.joined.ready.slot_count - sum(self.joined.ready.urgent_slots),
            timeout=math.inf,
            lane_format=plan.lane_format,
            counted=False,
        )
        self._sequence += 1
        self.engine.submit(collective)
        next_look = time.monotonic() + _LOOK
        bad_looks = 0
        while not collective.join(0.02):
            check()
            if time.monotonic() >= next_look:
                # Who has all that there is to have may leave; then only the answer is missing.
                bad_looks = bad_looks + 1 if (why := self._trouble()) else 0
                if bad_looks >= _BAD_LOOKS:
                    raise SwitchUnreachableError(f"the job at the next switch: {why}")
                next_look = time.monotonic() + _LOOK
        collective.wait(0.0)
        return plan.result()

    def _trouble(self) -> str:
        try:
            reply = self._job_client.heartbeat(self.joined.member, _LOOK_TIMEOUT)
        except ControlError:
            return ""  # the switch sums without it
        if reply.left:
            return f"{describe_ranks(tuple(reply.left))} left"
        return "" if reply.state == pb.RUNNING else reply.reason

    def close(self) -> None:
        """Stop, and close the transport: the agreement is not needed any more."""
        self.engine.stop(_HALT_TIMEOUT)
