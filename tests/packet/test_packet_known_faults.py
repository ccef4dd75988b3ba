# SPDX-License-Identifier: Apache-2.0
"""The switch's share of the faults that earlier systems had: one test each, named after it.

The others are the worker's and the controller's, and are tested there.
"""

from __future__ import annotations

from p4reduce.wire.format import Flag
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Jobs, constant
from packet_testbed import Testbed
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether


def test_duplicate_overtaken_by_the_same_ranks_next_round_is_taken_as_new(
    bed: Testbed, jobs: Jobs
) -> None:
    """SwitchML keeps bitmaps only: rank 0's late copy of round 0 would open round 2, in which
    rank 0 would then seem to have been heard."""
    job = jobs(2)
    late = job.send(0, constant(1), round=0)
    bed.expect([late], {}, FrameOutcome.ROUND_OPENED)
    for turn in (0, 1):
        if turn:
            bed.expect([job.send(0, constant(1), round=turn)], {}, FrameOutcome.ROUND_OPENED)
        last = job.send(1, constant(1), round=turn)
        bed.expect([last], job.results(last, constant(2)), FrameOutcome.ROUND_COMPLETED)
    bed.expect([job.send(0, constant(10), round=2)], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([late], {}, FrameOutcome.STALE)
    last = job.send(1, constant(20), round=2)
    bed.expect([last], job.results(last, constant(30)), FrameOutcome.ROUND_COMPLETED)
    bed.expect([late], {}, FrameOutcome.STALE)


def test_slot_is_reused_before_everybody_has_its_result(bed: Testbed, jobs: Jobs) -> None:
    """SwitchML's look-ahead could send into a slot whose result was still on its way. Here rank 1
    lost the results of round 0 and asks when rank 0 is in round 1 already."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1))])
    bed.exchange([job.send(1, constant(2))])
    bed.expect([job.send(0, constant(50), round=1)], {}, FrameOutcome.ROUND_OPENED)
    again = job.send(1, constant(2), flags=Flag.RETRANSMISSION)
    bed.expect([again], job.repeated(again, 1, constant(3)), FrameOutcome.RESULT_REPEATED)
    last = job.send(1, constant(60), round=1)
    bed.expect([last], job.results(last, constant(110)), FrameOutcome.ROUND_COMPLETED)


def test_failed_worker_leaves_the_others_resending_without_a_diagnosis(
    bed: Testbed, jobs: Jobs
) -> None:
    """Each retransmission is answered by who has been heard, so that who has not can be named."""
    job = jobs(4)
    for rank, heard in ((0, 0b0001), (1, 0b0011), (3, 0b1011)):
        bed.exchange([job.send(rank, constant(1))])
        again = job.send(0, constant(1), flags=Flag.RETRANSMISSION)
        bed.expect([again], job.status(again, 0, heard), FrameOutcome.STATUS_SENT)


def test_new_session_of_one_job_wipes_all_jobs(bed: Testbed, jobs: Jobs) -> None:
    """A job comes, sums and goes, while another's round is under way."""
    staying = jobs(2)
    bed.expect([staying.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    passing = Jobs(bed)
    job = passing(2)
    bed.exchange([job.send(0, constant(7))])
    last = job.send(1, constant(8))
    bed.expect([last], job.results(last, constant(15)), FrameOutcome.ROUND_COMPLETED)
    passing.close()
    bed.expect([job.send(0, constant(7))], {}, FrameOutcome.NOT_ADMITTED)
    last = staying.send(1, constant(2))
    bed.expect([last], staying.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_earlier_life_of_a_job_contributes_to_the_next(bed: Testbed, jobs: Jobs) -> None:
    """Frames of a life that is over are refused, though ranks, ports and slots are the same."""
    earlier = Jobs(bed)
    before = earlier(2)
    bed.exchange([before.send(0, constant(99))])
    earlier.close()
    now = jobs(2, base=before.base)
    bed.expect([before.send(0, constant(99))], {}, FrameOutcome.NOT_ADMITTED)
    bed.expect([now.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([before.send(1, constant(99))], {}, FrameOutcome.NOT_ADMITTED)
    last = now.send(1, constant(2))
    bed.expect([last], now.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_nan_and_inf_are_summed_without_a_word(bed: Testbed, jobs: Jobs) -> None:
    """Who has such a block says so, and all are told, whatever the lanes hold."""
    job = jobs(2)
    bed.exchange([job.send(0, flags=Flag.NONFINITE, next_exponent=255)])
    last = job.send(1, constant(1), next_exponent=1)
    result = job.results(last, constant(1), flags=Flag.NONFINITE, next_exponent=255)
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)


def test_results_go_to_the_last_senders_udp_port(bed: Testbed, jobs: Jobs) -> None:
    """Each copy has the port that its own rank was bound with."""
    job = jobs(4)
    for rank in (2, 0, 3):
        bed.exchange([job.send(rank)])
    seen = bed.exchange([job.send(1)])
    ports = {rank.number: Ether(seen.received[rank.port][0])[UDP].dport for rank in job.ranks}
    assert ports == {rank.number: rank.at.udp_port for rank in job.ranks}
    assert len(set(ports.values())) == 4


def test_ranks_in_different_collectives_get_silent_garbage(bed: Testbed, jobs: Jobs) -> None:
    """Same slot, same round, another tensor: nobody gets a sum, everybody is told."""
    job = jobs(2)
    bed.exchange([job.send(0, constant(1), tag=1)])
    last = job.send(1, constant(2), tag=2)
    result = job.results(last, flags=Flag.MISMATCH, tag=1)
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)


def test_overflow_wraps_in_silence(bed: Testbed, jobs: Jobs) -> None:
    job = jobs(2)
    bed.exchange([job.send(0, constant(2**31 - 1))])
    last = job.send(1, constant(1))
    result = job.results(last, constant(-(2**31)), flags=Flag.OVERFLOW)
    bed.expect([last], result, FrameOutcome.ROUND_COMPLETED)
