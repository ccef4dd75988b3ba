# SPDX-License-Identifier: Apache-2.0
"""Trees, rings, slots and switches, against hand-computed cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import (
    SWITCHES,
    PlannedLink,
    PlannedNetwork,
    SwitchCost,
    tree_fanouts,
)
from p4reduce_lab.planning.ring import mean_delay, ring_octets, ring_seconds
from p4reduce_lab.planning.schemes import Cluster, by_ring, by_switches
from p4reduce_lab.planning.sizing import frame_rate, pool, switches_for_line_rate


@pytest.mark.parametrize(
    ("ranks", "fanouts"),
    [(1, (1,)), (8, (8,)), (64, (64,)), (65, (9, 8)), (4096, (64, 64)), (4097, (17, 16, 16))],
)
def test_trees_are_flat_and_even(ranks: int, fanouts: tuple[int, ...]) -> None:
    assert tree_fanouts(ranks) == fanouts


@pytest.mark.parametrize("ranks", [*range(1, 200), 1000, 5000, 100_000, 262_144])
def test_a_tree_has_room_for_all(ranks: int) -> None:
    fanouts = tree_fanouts(ranks)
    assert math.prod(fanouts) >= ranks
    assert max(fanouts) <= 64
    assert len(fanouts) == max(1, math.ceil(math.log(ranks, 64) - 1e-9))


def test_switches_are_counted_on_all_levels() -> None:
    assert Cluster(4096, PlannedLink(1e9)).tree().switches == 65
    assert Cluster(65, PlannedLink(1e9)).tree().switches == 9  # 8 leaves of up to 9 ranks
    assert PlannedNetwork((4,), (PlannedLink(1e9),), planes=3).switches == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlannedLink(0), "rate of 0"),
        (lambda: PlannedLink(1e9, -1), "cannot be below 0"),
        (lambda: PlannedNetwork((65,), (PlannedLink(1),)), "1 to 64 children"),
        (lambda: PlannedNetwork((2, 2), (PlannedLink(1),)), "2 levels"),
        (lambda: PlannedNetwork((2,), (PlannedLink(1),), planes=0), "0 networks"),
        (lambda: PlannedNetwork((2,), (PlannedLink(1),), ranks=3), "3 ranks, but 2 places"),
        (lambda: tree_fanouts(10, 1), "fanout of 1"),
        (lambda: Cluster(0, PlannedLink(1)), "0 ranks"),
        (lambda: ring_octets(0, 1), "0 ranks"),
    ],
)
def test_what_cannot_be_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_ring_sends_its_bound_in_segments() -> None:
    # Four ranks send 2 · 3/4 of 1,448 · 1,000 bytes each: 1,500 segments of 1,514 bytes of frame,
    # and 750 ACKs of 66 for those that come in.
    assert ring_octets(4, 1_448_000) == pytest.approx(1500 * 1514 + 750 * 66)


def test_a_rings_time_is_bytes_and_steps() -> None:
    link = PlannedLink(8e6, 1e-3, overhead=0)  # a microsecond for each byte
    seconds = ring_seconds(4, 1_448_000, link, step=1e-4)
    assert seconds == pytest.approx((1500 * 1514 + 750 * 66) * 1e-6 + 6 * (2e-3 + 1e-4))
    assert ring_seconds(1, 1e6, link) == 0.0


def test_the_mean_neighbour_is_mostly_on_the_same_switch() -> None:
    assert mean_delay(4, (1.0,), (4,)) == 2.0
    # Of 8 neighbours on two leaves of 4, two are on the other leaf: two more links there.
    assert mean_delay(8, (1.0, 10.0), (4, 2)) == pytest.approx((8 * 2 + 2 * 20) / 8)


def test_the_papers_ratio_of_ring_and_switch() -> None:
    # 2 (n - 1) / n, but for framing: OmniReduce, Fei et al., SIGCOMM 2021.
    for ranks in (2, 4, 8):
        cluster = Cluster(ranks, PlannedLink(1e7, 0.0))
        ratio = (
            by_ring(cluster, PlannedTensor(1_000_000)).seconds
            / by_switches(cluster, PlannedTensor(1_000_000), cluster.star()).seconds
        )
        assert ratio == pytest.approx(2 * (ranks - 1) / ranks, rel=0.05)


def test_a_window_fills_bandwidth_times_delay() -> None:
    # 1,250 bytes with everything at 1 Gbit/s are 10 µs; round trip 1 ms and two frames.
    link = PlannedLink(1e9, 0.5e-3, overhead=148)
    found = pool(PlannedNetwork((8,), (link,)))
    assert found.round_trip == pytest.approx(1.02e-3)
    assert found.window == 102
    assert found.slots == 256
    assert found.enough


def test_a_pool_has_its_limits() -> None:
    assert pool(PlannedNetwork((8,), (PlannedLink(1e9, 0.0),))).slots == 32
    far = pool(PlannedNetwork((8,), (PlannedLink(100e9, 1e-3),)))
    assert (far.slots, far.enough) == (1024, False)


def test_what_limits_is_named() -> None:
    link = PlannedLink(1e9, overhead=148)
    assert frame_rate(PlannedNetwork((8,), (link,))) == (pytest.approx(1e5), "the ranks' links")
    slow = SwitchCost("slow", 1e-5, 1e-5)
    assert frame_rate(PlannedNetwork((8,), (link,), slow)) == (
        pytest.approx(1 / 160e-6),
        "the switches' cores",
    )
    assert "threads" in frame_rate(PlannedNetwork((8,), (link,), host=1e-3))[1]
    assert "machines" in frame_rate(PlannedNetwork((8,), (link,), trunk=link))[1]
    assert "between" in frame_rate(PlannedNetwork((8, 8), (link, PlannedLink(1e8))))[1]


def test_so_many_switches_that_they_limit_nothing() -> None:
    link = PlannedLink(1e9, overhead=148)  # 10 µs for a frame
    slow = SwitchCost("slow", 4e-6, 4e-6)
    assert switches_for_line_rate(Cluster(8, link, switch=slow)) == 7  # 64 µs
    assert switches_for_line_rate(Cluster(8, link)) == 1
    # As for parameter servers on machines like the workers': as many as there are workers.
    assert switches_for_line_rate(Cluster(8, link, trunk=link)) == 8
    with pytest.raises(ValueError, match="65 ranks"):
        switches_for_line_rate(Cluster(65, link))


@pytest.mark.parametrize(
    ("kind", "framing"), [("embedded", 0), ("embedded-udp", 14 + 20 + 8 + 12 + 2 - 54)]
)
def test_udp_ports_frame_what_crosses_links_to_switches(kind: str, framing: int) -> None:
    """A rank's link, one to the switch above and a shared interface; not the ring's segments."""
    link = PlannedLink(1e9, overhead=24)
    cluster = Cluster(
        100, link, uplink=PlannedLink(2e9), switch=SWITCHES[kind], trunk=PlannedLink(4e9)
    )
    for network in (replace(cluster, ranks=8).star(), cluster.tree()):
        assert network.trunk is not None
        assert {one.overhead for one in (*network.links, network.trunk)} == {24 + framing}
    assert by_ring(cluster, PlannedTensor(1000)) == by_ring(
        replace(cluster, switch=SWITCHES["hardware"]), PlannedTensor(1000)
    )
