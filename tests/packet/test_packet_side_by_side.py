# SPDX-License-Identifier: Apache-2.0
"""Two switches with the same ranks at their ports: each sums its part and knows of no other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.blocks import Array
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Flag
from p4reduce.wire.frames import FrameBuffer
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from packet_jobs import Job, Jobs, answer, constant
from packet_testbed import DEADLINE, PORTS, SWITCH, Testbed

LANES = 256


@pytest.fixture(scope="module")
def other() -> Iterator[Testbed]:
    """A second switch."""
    with run_directory() as directory, EmbeddedSwitch(directory, len(PORTS)) as switch:
        bed = Testbed(switch)
        yield bed
        bed.close()


@pytest.fixture
def there(other: Testbed) -> Iterator[Jobs]:
    """Makes jobs at the second switch."""
    made = Jobs(other)
    yield made
    made.close()


def test_a_slot_of_the_same_number_is_another_one(
    bed: Testbed, jobs: Jobs, other: Testbed, there: Jobs
) -> None:
    """The same slot, round and block at both: rank 0 at one and rank 1 at the other complete
    nothing, and each sum has what came by its own switch."""
    here, beside = jobs(2), there(2)
    bed.expect([here.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    other.expect([beside.send(1, constant(20))], {}, FrameOutcome.ROUND_OPENED)
    last = here.send(1, constant(2))
    bed.expect([last], here.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)
    last = beside.send(0, constant(10))
    other.expect([last], beside.results(last, constant(30)), FrameOutcome.ROUND_COMPLETED)


def test_a_frame_at_the_wrong_switch_is_not_let_in(
    bed: Testbed, jobs: Jobs, other: Testbed, there: Jobs
) -> None:
    """As it would be if two cables were swapped: nothing comes out, nothing is added."""
    here, beside = jobs(2), there(2)
    bed.expect([here.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([beside.send(1, constant(9))], {}, FrameOutcome.NOT_ADMITTED)
    other.expect([here.send(1, constant(9))], {}, FrameOutcome.NOT_ADMITTED)
    last = here.send(1, constant(2))
    bed.expect([last], here.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_the_job_of_a_lost_switch_goes_on_beside_the_one_that_is_there(
    bed: Testbed, jobs: Jobs
) -> None:
    """Two jobs of the same ranks on one switch, in the same slots' numbers and rounds; what is
    still under way from the life on the other switch is not let in."""
    own, moved = jobs(2), jobs(2)
    lost = Job(bed, 2)  # whose entries are on the switch that was lost
    bed.expect([own.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([moved.send(0, constant(10))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([lost.send(1, constant(100))], {}, FrameOutcome.NOT_ADMITTED)
    last = moved.send(1, constant(20))
    bed.expect([last], moved.results(last, constant(30)), FrameOutcome.ROUND_COMPLETED)
    last = own.send(1, constant(2))
    bed.expect([last], own.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_parts_that_do_not_fit_are_a_mismatch_to_both_ranks(bed: Testbed, jobs: Jobs) -> None:
    """Ranks that cut one call in different places: their parts' tags differ."""
    whole = summed(np.ones(10 * LANES, np.int32))
    parts = [whole.part(1, 2, first, 10) for first in (5, 6)]
    tags = [part.call.fingerprint(3, part.lane_format) for part in parts]
    job = jobs(2)
    bed.expect([job.send(0, constant(1), tag=tags[0])], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), tag=tags[1])
    wanted = job.results(last, flags=Flag.MISMATCH, tag=tags[0])
    bed.expect([last], wanted, FrameOutcome.ROUND_COMPLETED)


def test_a_call_that_is_cut_is_summed_block_by_block_where_it_is_sent(
    bed: Testbed, jobs: Jobs, other: Testbed, there: Jobs
) -> None:
    """A worker's own frames for 5 blocks, cut after the second: 2 at one switch, 3 at the other,
    numbered from 0 at each; the array comes back whole."""
    array = np.arange(5 * LANES, dtype=np.int32)
    out = np.zeros_like(array)
    whole = summed(array, out)
    parts = [(bed, jobs(1, slots=1), 0, 2), (other, there(1, slots=1), 2, 5)]
    for switch, (where, job, first, stop) in enumerate(parts):
        run(where, job, whole.part(switch, 2, first, stop))
    assert (out == array).all()


def summed(array: Array, out: Array | None = None) -> plans.CollectivePlan[Array]:
    return plans.allreduce(array, Operation.SUM, None, out, world_size=1)


def run(bed: Testbed, job: Job, plan: plans.CollectivePlan[Array]) -> None:
    """By one rank and one slot: a frame that opens the stripe, then one a block, each of which
    comes back with exactly the lanes that were sent."""
    (rank,) = job.ranks
    machine = SlotMachine(slots=1, job=job.id, rank=0, world_size=1, here=rank.at, switch=SWITCH)
    part = Collective(plan.call, plan.source, plan.target, sequence=0, slots=1, timeout=DEADLINE)
    machine.submit(part)
    for block in [None, *range(len(plan.source))]:
        (row,) = machine.take_sendable()
        frame = bytes(machine.outgoing.get(row))
        machine.sent(np.array([row]), 0.0)
        lanes = None
        if block is not None:
            lanes = np.empty((1, LANES), np.int32)
            plan.source.gather(np.array([block]), lanes)
            lanes = lanes[0]
        result = answer(frame, rank, lanes, contributors=1)
        bed.expect([(rank.port, frame)], {rank.port: [result]}, FrameOutcome.ROUND_COMPLETED)
        buffer = FrameBuffer(1)
        buffer.put(0, result)
        machine.receive(buffer, 1, 0.0)
    assert part.done()
    assert not len(machine.take_sendable())
