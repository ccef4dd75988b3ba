# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-lab plan --hosts`: figures computed by hand, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from p4reduce.arrangement import Host
from p4reduce_lab.cli import commands
from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.planning.events import allreduce_seconds
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.home import LANES, PLACES, Home, HomeEstimate, Lanes, allreduce, answer
from p4reduce_lab.planning.home_report import as_json, text
from p4reduce_lab.planning.hosts import equal_hosts, read_host_file
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster
from p4reduce_lab.planning.training import even_step

FLOAT32, INT16, FEEDBACK, INT8 = LANES
BLOCKS = 10_000
NUMBERS = 256 * BLOCKS
# A datagram: most of a frame's header is stored at the peer, and a float32's lane has 28 bits.
WIDE_FRAME = 1102 - 54 + 14 + 20 + 8 + 14
FRAME = WIDE_FRAME - 128
SLOW = PlannedLink(1e7, overhead=0)  # no core limits it


def home(
    *ranks: int, link: PlannedLink = SLOW, spare: PlannedLink | None = None, cores: float = 4
) -> Home:
    hosts, first = [], 0
    for own in ranks:
        hosts.append(Host(f"h{len(hosts)}", tuple(range(first, first + own)), ""))
        first += own
    return Home(tuple(hosts), link, spare or link, cores)


def on_the_wire(found: HomeEstimate) -> float:
    """Frames, in blocks, that the busiest host sends."""
    return found.octets / FRAME / BLOCKS


@pytest.mark.parametrize(
    ("ranks", "each", "first", "spare"),
    [
        # Two hosts: half of the blocks go to the other switch, and half of the sums go there.
        ((1, 1), 1 / 2 + 1 / 2, 1, 2),
        ((1, 1, 1), 2 / 3 + 2 / 3, 2, 3),
        ((1, 1, 1, 1), 3 / 4 + 3 / 4, 3, 4),
        # Two ranks per host: twice as many blocks go out, and sums go to two ranks elsewhere.
        ((2, 2), 2 / 2 + 2 / 2, 2, 4),
        # The second host has 3 of 4 ranks: 3/2 go out, and half of the sums for one rank.
        ((1, 3), 3 / 2 + 1 / 2, 3, 4),
    ],
)
def test_what_links_carry(ranks: tuple[int, ...], each: float, first: float, spare: float) -> None:
    for place, frames in (("each", each), ("first", first), ("spare", spare)):
        found = allreduce(home(*ranks), place, FLOAT32, NUMBERS)
        assert on_the_wire(found) == pytest.approx(frames)
        least = frames * BLOCKS * FRAME * 8 / 1e7
        assert least < found.seconds < least + 0.01
    p4 = allreduce(home(*ranks), "p4", FLOAT32, NUMBERS)
    assert p4.octets == max(ranks) * BLOCKS * 1102


def test_the_ring_crosses_each_link_once_whatever_a_host_has() -> None:
    alone = allreduce(home(1, 1, 1, 1), "ring", FLOAT32, NUMBERS)
    paired = allreduce(home(2, 2), "ring", FLOAT32, NUMBERS)
    data = 2 * 3 / 4 * 4 * NUMBERS
    assert alone.octets == paired.octets == pytest.approx(data * (1448 + 66 + 33) / 1448)
    assert paired.cpu == 2 * alone.cpu
    assert alone.seconds == pytest.approx(8 * alone.octets / 1e7, rel=0.001)


def test_narrow_lanes_take_fewer_blocks_and_feedback_takes_cpu() -> None:
    place = home(1, 1, 1)
    by = {lanes.name: allreduce(place, "each", lanes, NUMBERS) for lanes in LANES}
    octets = {name: estimate.octets for name, estimate in by.items()}
    assert octets["float32"] / FRAME == 2 * octets["int16"] / WIDE_FRAME
    assert octets["int16"] == 2 * octets["int8"]
    assert by["int8 with feedback"].octets == by["int8"].octets
    more = by["int8 with feedback"].cpu - by["int8"].cpu
    assert more == pytest.approx(NUMBERS * (FEEDBACK.seconds - INT8.seconds))


def test_rounding_hides_behind_a_slow_link_and_not_behind_a_fast_one() -> None:
    blocks = NUMBERS // 1024
    slow = allreduce(home(1, 1), "each", INT8, NUMBERS).seconds
    assert slow == pytest.approx(
        0.35e-3 + NUMBERS * INT8.before + blocks * WIDE_FRAME * 8 / 1e7, rel=0.001
    )
    fast = allreduce(home(1, 1, link=PlannedLink(1e12)), "each", INT8, NUMBERS).seconds
    assert fast > NUMBERS * INT8.seconds + blocks * 3.3e-6


def test_where_cores_are_the_limit_more_of_them_help() -> None:
    fast = PlannedLink(1e12)
    one, four = (
        allreduce(home(4, 4, link=fast, cores=cores), "each", FLOAT32, NUMBERS) for cores in (1, 4)
    )
    # Four ranks' blocks, and half of the blocks of eight ranks in the switch.
    assert (
        one.cpu
        == four.cpu
        == pytest.approx(BLOCKS * (4 * 3.3e-6 + 8 * 0.6e-6 / 2) + 4 * NUMBERS * 0.47e-9)
    )
    assert one.seconds == pytest.approx(0.35e-3 + one.cpu)
    # One thread has a rank's blocks, however many cores there are.
    assert four.seconds > BLOCKS * 3.3e-6 + NUMBERS * 0.47e-9
    assert allreduce(home(4, 4, link=fast, cores=64), "each", FLOAT32, NUMBERS).seconds == (
        pytest.approx(four.seconds, rel=0.3)
    )


@pytest.mark.parametrize("rate", [1e7, 1e8, 1e9])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("own", [FLOAT32, INT8], ids=["float32", "int8"])
def test_the_closed_form_is_as_good_as_the_events(rate: float, ranks: int, own: Lanes) -> None:
    """For a spare host, whose switch and link all ranks share."""
    link = PlannedLink(rate, 1e-5, overhead=0)
    found = allreduce(home(*[1] * ranks, link=link), "spare", own, NUMBERS).seconds
    cluster = Cluster(ranks, link, switch=SWITCHES["embedded-udp"], trunk=link)
    load = PlannedTensor(NUMBERS, own.precision).load(ranks, spared=cluster.switch.spared)
    events = allreduce_seconds(cluster.star(), load, cluster.slots)
    assert found == pytest.approx(events + cluster.call + own.before * NUMBERS, rel=0.05)


def test_the_best_ways_are_named() -> None:
    step = even_step(0.1, 2_500_000, 6_553_600)
    found = answer(home(1, 1, 1, link=PlannedLink(1e8, 1e-5)), step, 64)
    by = {(way.place, way.lanes, way.every): way for way in found.ways}
    assert len(by) == len(found.ways) == 1 + 4 * 4 + 4
    assert found.lossless.exact
    assert found.lossless.place in ("ring", "each")
    assert (found.lossy.place, found.lossy.lanes) == ("each", "int8 with feedback")
    assert (found.seldom.place, found.seldom.every) == ("each", 64)
    assert found.further is by["p4", "float32", 1]
    one = by["each", "float32", 1].time
    assert by["each", "float32", 64].time.communication == pytest.approx(one.communication / 64)
    assert by["ring", "float32", 1].faster == 1.0


def test_where_sums_hide_the_least_loss_is_best() -> None:
    step = even_step(60.0, 1_000_000, 100_000)
    found = answer(home(1, 1, link=PlannedLink(1e8)), step, 64)
    assert found.lossless.place == "ring"  # nothing to change
    assert found.lossy.lanes == "int16"
    assert found.further is None


def test_more_ranks_than_int8_carries() -> None:
    found = answer(home(*[1] * 64), even_step(0.1, 10**6, 10**6), 8)
    assert not any(way.lanes.startswith("int8") for way in found.ways)
    assert found.lossy.lanes == "int16"
    assert "-" in text(found)
    assert len({way.octets for way in found.ways if way.place == "each"}) > 1


def test_only_sixteen_hosts_have_switches() -> None:
    assert len(home(*[1] * 20).shares("each")) == 16
    # The first have 15/16 of their own blocks out, and a 16th of the sums for 19 ranks.
    found = allreduce(home(*[1] * 20), "each", FLOAT32, NUMBERS)
    assert on_the_wire(found) == pytest.approx(15 / 16 + 19 / 16)


# -- Hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        "pc1 slots=2\npc2 slots=1 max_slots=4\n",
        "# two\npc1:2\n\npc2   # one\n",
        "pc1\npc2\npc1\n",
        "pc1 slots=1\npc2 max-slots=2\npc1 slots=1\n",
    ],
)
def test_host_files_of_several_launchers(lines: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(lines)
    first, second = read_host_file(tmp_path / "hosts")
    assert (first.name, first.ranks, first.address) == ("pc1", (0, 1), "pc1")
    assert (second.name, second.ranks) == ("pc2", (2,))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has 0 hosts, and a plan is for two or more"),
        ("pc1 slots=4\n", "has 1 hosts"),
        ("pc1\npc2 slot=2\n", "line 2: 'slot=2' is not slots=N"),
        ("pc1\npc2 slots=two\n", "line 2: 'slots=two' is not slots=N"),
        ("pc1 slots=0\npc2\n", "line 1: pc1 has 0 ranks"),
        ("pc1 slots=40\npc2 slots=40\n", "80 ranks, and one switch has 64 at most"),
    ],
)
def test_wrong_host_files_are_named(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(lines)
    with pytest.raises(ArgumentsError, match=message):
        read_host_file(tmp_path / "hosts")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentsError, match="it is not text"):
        read_host_file(tmp_path / "binary")


def test_ipv6_addresses_are_no_counts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("fd00::1 slots=2\nfd00::2\n")
    assert [host.name for host in read_host_file(tmp_path / "hosts")] == ["fd00::1", "fd00::2"]


def test_too_many_ranks_are_refused() -> None:
    assert sum(len(host.ranks) for host in equal_hosts(32, 2, "10.0.0.1")) == 64
    with pytest.raises(ArgumentsError, match="33 hosts with 2 ranks each: 66 ranks"):
        equal_hosts(33, 2)


# -- The command ---------------------------------------------------------------------------------

ABOUT = ("--parameters", "1e6", "--compute", "50ms")


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["plan", *arguments])


def test_the_command_names_the_best_ways(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("pc1 slots=2\npc2 slots=2\n")
    found = plan(*ABOUT, "--host-file", str(tmp_path / "hosts"), "--bandwidth", "100Mbit")
    assert found.exit_code == 0, found.output
    for name in PLACES.values():
        assert name in found.output
    assert "Best lossless: " in found.output
    assert "Best lossy: " in found.output
    assert (
        "  torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr pc1 --master-port "
        "29400 train.py\n" in found.output
    )


def test_the_command_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    found = plan(*ABOUT, "--hosts", "3", "--every", "16", "--json", str(out))
    assert found.exit_code == 0, found.output
    figures = json.loads(out.read_text())
    assert [host["ranks"] for host in figures["hosts"]] == [[0], [1], [2]]
    ways = {way["name"]: way for way in figures["ways"]}
    for key in ("best_lossless", "best_lossy", "best_seldom"):
        assert figures[key] in ways
    assert "every=16" in "".join(ways[figures["best_seldom"]]["script"])
    assert figures["best_with_another_machine"] == "a P4 switch, float32"
    first = ways["a switch on one of the hosts, int8"]
    assert any(line.startswith("P4REDUCE_SWITCHES=first torchrun ") for line in first["commands"])
    assert first["step_seconds"] >= 0.05


def test_few_lines_for_many_equal_hosts() -> None:
    figures = as_json(answer(home(*[1] * 6), even_step(0.1, 10**5, 10**5), 2))
    [way] = [way for way in figures["ways"] if way["name"] == "a switch on every host, int16"]
    assert len([line for line in way["commands"] if "torchrun" in line]) == 2
    assert way["commands"][-1] == "# The same on the others, with --node-rank 2 to 5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hosts", "3", "--ranks", "3"), "--ranks does not go with --hosts"),
        (("--hosts", "3", "--switch", "bmv2"), "--switch does not go with --hosts"),
        (("--hosts", "3", "--one-interface"), "--one-interface does not go with"),
        (("--hosts", "3", "--host-file", __file__), "leave out --hosts"),
        (("--host-file", __file__, "--ranks-per-host", "2"), "leave out --hosts"),
        (("--hosts", "40", "--ranks-per-host", "2"), "80 ranks, and one switch has 64"),
        (("--hosts", "3", "--bandwidth", "0bit"), "rate of 0"),
        (("--hosts", "3", "--switch-link", "0bit"), "rate of 0"),
        (("--ranks-per-host", "2"), "--ranks-per-host needs --hosts or --host-file"),
        (("--cores", "2"), "--cores needs --hosts"),
        (("--every", "2"), "--every needs --hosts"),
    ],
)
def test_arguments_that_contradict_are_refused(arguments: tuple[str, ...], message: str) -> None:
    found = plan(*ABOUT, *arguments)
    assert isinstance(found.exception, ArgumentsError), found.output
    assert message in str(found.exception)


@pytest.mark.parametrize(
    "arguments",
    [("--hosts", "1"), ("--hosts", "65"), ("--hosts", "2", "--every", "1"), ("--hosts", "x"),
     ("--hosts", "2", "--cores", "0"), ("--host-file", "nowhere")],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(arguments: tuple[str, ...]) -> None:
    assert plan(*ABOUT, *arguments).exit_code == 2
