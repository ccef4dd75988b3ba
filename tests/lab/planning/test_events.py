# SPDX-License-Identifier: Apache-2.0
"""The discrete-event model against cases that can be computed by hand, and against itself."""

from __future__ import annotations

import pytest
from p4reduce_lab.planning.events import FOLLOWED, allreduce_seconds
from p4reduce_lab.planning.framing import LinkLoad, PlannedTensor
from p4reduce_lab.planning.network import SWITCHES, PlannedLink, PlannedNetwork, SwitchCost
from p4reduce_lab.planning.schemes import Cluster

MEGABIT = PlannedLink(1e6, 0.0, overhead=0)  # a byte takes 8 µs
SLOW = SwitchCost("slow", 100e-6, 50e-6)
FREE = SWITCHES["hardware"]


def test_one_block_in_one_slot() -> None:
    # The opening round up and down, then the block up and down.
    seconds = allreduce_seconds(PlannedNetwork((4,), (MEGABIT,)), LinkLoad(1), slots=1)
    assert seconds == pytest.approx(8e-6 * 2 * (78 + 1102))


def test_one_slot_waits_for_each_round_trip() -> None:
    link = PlannedLink(1e6, 1e-3, overhead=0)
    seconds = allreduce_seconds(PlannedNetwork((4,), (link,)), LinkLoad(10), slots=1)
    assert seconds == pytest.approx(8e-6 * 2 * (78 + 10 * 1102) + 11 * 2e-3)


def test_many_slots_fill_the_link() -> None:
    # Up: 4 openings, then 400 blocks; the last one has to come down after that.
    seconds = allreduce_seconds(PlannedNetwork((2,), (MEGABIT,)), LinkLoad(400), slots=4)
    assert seconds == pytest.approx(8e-6 * (4 * 78 + 400 * 1102 + 1102), rel=1e-3)


def test_ethernet_adds_its_bytes() -> None:
    network = PlannedNetwork((2,), (PlannedLink(1e6),))
    assert allreduce_seconds(network, LinkLoad(1), 1) == pytest.approx(8e-6 * 2 * (102 + 1126))


def test_a_bucket_of_tokens_lets_the_first_frames_pass_at_once() -> None:
    link = PlannedLink(1e6, 0.0, overhead=0, burst=10_000)
    assert allreduce_seconds(PlannedNetwork((2,), (link,)), LinkLoad(8), 8) == 0.0
    steady = allreduce_seconds(PlannedNetwork((2,), (link,)), LinkLoad(1000), 8)
    assert steady == pytest.approx(8e-6 * (8 * 78 + 1000 * 1102 - 10_000), rel=0.01)


def test_a_slow_switch_takes_one_frame_after_the_other() -> None:
    fast = PlannedLink(1e12, 0.0, overhead=0)
    network = PlannedNetwork((10,), (fast,), SLOW)
    # 10 contributions and 10 copies for each of 200 blocks and 32 openings.
    seconds = allreduce_seconds(network, LinkLoad(200), slots=32)
    assert seconds == pytest.approx(232 * 10 * 150e-6, rel=0.01)


def test_hosts_can_be_the_limit() -> None:
    network = PlannedNetwork((4,), (PlannedLink(1e12, 0.0, overhead=0),), FREE, host=1e-3)
    assert allreduce_seconds(network, LinkLoad(100), 8) == pytest.approx(0.108, rel=0.02)


def test_each_level_adds_its_delay() -> None:
    near, far = PlannedLink(1e6, 1e-3, overhead=0), PlannedLink(1e6, 10e-3, overhead=0)
    seconds = allreduce_seconds(PlannedNetwork((4, 3), (near, far)), LinkLoad(1), slots=1)
    assert seconds == pytest.approx(8e-6 * 4 * (78 + 1102) + 2 * 2 * 11e-3)


def test_a_switchs_machine_with_one_interface_is_the_limit() -> None:
    network = PlannedNetwork((8,), (MEGABIT,), trunk=MEGABIT)
    alone = allreduce_seconds(network, LinkLoad(100), slots=32)
    assert alone == pytest.approx(8e-6 * 8 * 100 * 1102, rel=0.05)
    # Eight of them with a rank's one link to share are as fast as a switch with a port for each.
    eight = PlannedNetwork((8,), (MEGABIT,), planes=8, trunk=MEGABIT, one_interface=True)
    switch = allreduce_seconds(PlannedNetwork((8,), (MEGABIT,)), LinkLoad(800), slots=32)
    assert allreduce_seconds(eight, LinkLoad(800), slots=32) == pytest.approx(switch, rel=0.1)


def test_two_side_by_side_take_half_the_time() -> None:
    one = allreduce_seconds(PlannedNetwork((4,), (MEGABIT,)), LinkLoad(2000), 32)
    two = allreduce_seconds(PlannedNetwork((4,), (MEGABIT,), planes=2), LinkLoad(2000), 32)
    assert one / two == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("fanouts", [(8,), (4, 3), (3, 2, 2)])
@pytest.mark.parametrize("slots", [1, 16, 64])
@pytest.mark.parametrize("switch", [FREE, SLOW])
def test_one_rank_may_stand_for_all(
    fanouts: tuple[int, ...], slots: int, switch: SwitchCost
) -> None:
    link = PlannedLink(1e7, 200e-6)
    network = PlannedNetwork(fanouts, (link,) * len(fanouts), switch, host=5e-6)
    load = PlannedTensor(256 * 120).load(network.world_size)
    one = allreduce_seconds(network, load, slots)
    each = allreduce_seconds(network, load, slots, symmetric=False)
    if switch is FREE:
        assert one == pytest.approx(each, rel=1e-9)
    else:
        # A switch that takes time serves ranks one after the other. Those that it serves first
        # are ahead then, and it need not wait for all of them at once: at most by what it takes
        # for one of each, in every round.
        burst = sum(fanouts) * (switch.contribution + switch.copy)
        rounds = (load.blocks + slots) / slots
        assert each - burst <= one <= each + rounds * burst


def test_beyond_what_is_followed_time_grows_evenly() -> None:
    network = PlannedNetwork((4,), (PlannedLink(1e7, 1e-3),))
    blocks = 3 * FOLLOWED
    followed = allreduce_seconds(network, LinkLoad(blocks), slots=blocks // 8)
    extrapolated = allreduce_seconds(network, LinkLoad(blocks), slots=128)
    assert extrapolated == pytest.approx(followed, rel=0.02)


def test_a_hundred_thousand_ranks_take_the_delay_of_three_levels_more() -> None:
    link = PlannedLink(1e8, 1e-3)
    few, many = (
        allreduce_seconds(Cluster(ranks, link, switch=FREE, host=0.0).tree(), LinkLoad(1), 1)
        for ranks in (64, 100_000)
    )
    assert many == pytest.approx(3 * few)


def test_no_slots_are_an_error() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        allreduce_seconds(PlannedNetwork((2,), (MEGABIT,)), LinkLoad(1), 0)
