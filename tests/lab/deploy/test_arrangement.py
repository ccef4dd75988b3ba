# SPDX-License-Identifier: Apache-2.0
"""Which switches a network has, by the planner's rule or as it is told."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from p4reduce_lab.commands.deploy import command
from p4reduce_lab.deploy.arrangement import arrange
from p4reduce_lab.deploy.interface import UNKNOWN_RATE, link_rate
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.sizing import switches_for_an_interface
from p4reduce_lab.switches.udp_ports import free_udp_ports, udp_ports
from p4reduce_lab.topology import LabTopology

REMOTE = "192.0.2.9"


def test_ranks_of_this_host_share_one_switch() -> None:
    assert arrange(DeploySettings(64), cores=64) == LabTopology.side_by_side(64)


@pytest.mark.parametrize(
    ("rate", "cores", "switches"),
    [(1e9, 64, 1), (2.5e9, 64, 1), (10e9, 64, 4), (10e9, 3, 2), (10e9, 1, 1), (100e9, 64, 16)],
)
def test_switches_keep_a_hosts_interface_busy(rate: float, cores: int, switches: int) -> None:
    needed = switches_for_an_interface(PlannedLink(rate), SWITCHES["embedded"])
    # One fewer would leave the interface idle at times.
    cost = SWITCHES["embedded"].contribution + SWITCHES["embedded"].copy
    assert cost / needed <= PlannedLink(rate).seconds(1096) < cost / max(needed - 1, 1e-9)
    settings = DeploySettings(8, host=REMOTE, link_rate=rate)
    assert arrange(settings, cores=cores).rows == switches


@pytest.mark.parametrize("ranks", [65, 100, 128, 1000, 4096])
def test_more_ranks_than_a_switch_has_are_a_tree(ranks: int) -> None:
    made = arrange(DeploySettings(ranks, host=REMOTE))
    root, *leaves = made.nodes
    assert root.name == "root"
    assert {leaf.parent for leaf in leaves} == {"root"}
    of_leaves = [len(leaf.ranks) for leaf in leaves]
    assert made.ranks == sum(of_leaves) == ranks
    assert max(of_leaves) <= 64
    assert len(leaves) <= 64
    assert min(of_leaves) >= 1
    assert len(set(of_leaves[:-1])) <= 1  # ports count through, so only the last may lack some


def test_it_can_be_told() -> None:
    beside = arrange(DeploySettings(4, switches=2)).nodes
    assert [(node.name, len(node.ranks)) for node in beside] == [("a", 4), ("b", 4)]
    tree = arrange(DeploySettings(5, tree="2x3")).nodes
    placed = [(node.name, len(node.ranks)) for node in tree]
    assert placed == [("root", 0), ("leaf-1", 3), ("leaf-2", 2)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ranks": 65, "switches": 2}, "65 ranks do not fit 2 switches side by side"),
        ({"ranks": 4, "tree": "2x"}, "tree '2x' is not a shape like 2x4"),
        ({"ranks": 4, "tree": "2x65"}, "a switch has 1 to 64 children"),
        ({"ranks": 9, "tree": "2x4"}, "has 8 ranks, and 9 were asked for"),
        ({"ranks": 4, "tree": "2x4"}, "has 8 ranks, and 4 were asked for"),
        ({"ranks": 4, "tree": "2x2", "switches": 2}, "exclude each other"),
        ({"ranks": 4, "host": "leaf.example"}, "'leaf.example' is not an IP address"),
        ({"ranks": 4, "host": REMOTE, "unix": True}, "Unix ports are for workers on this host"),
        ({"ranks": 4, "link_rate": -1.0}, "must be above 0"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentsError, match=says):
        arrange(DeploySettings(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("names", ["node1,", ",node1", "node1, ,node2"])
def test_a_host_without_a_name_is_refused(names: str) -> None:
    done = CliRunner().invoke(command, ["--ranks", "2", "--rank-hosts", names])
    assert isinstance(done.exception, ArgumentsError)
    assert f"--rank-hosts {names!r} has an empty name" in str(done.exception)


def test_udp_ports_are_this_hosts_and_free() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentsError, match=f"UDP port {port} of 127.0.0.1 is in use"):
            free_udp_ports("127.0.0.1", 1, port)
    first = free_udp_ports("127.0.0.1", 8)
    assert free_udp_ports("127.0.0.1", 8, first) == first
    with pytest.raises(ArgumentsError, match=r"203\.0\.113\.7 is not an address of this host"):
        free_udp_ports("203.0.113.7", 1)
    with pytest.raises(ArgumentsError, match="8 ports from 65530 on end above 65535"):
        free_udp_ports("127.0.0.1", 8, 65530)


def test_ports_that_somebody_has_at_all_addresses_are_not_drawn() -> None:
    """As by the pages' `p4reduce-switch --port 1-8=udp:0.0.0.0:7001` on the same host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        with contextlib.suppress(OSError):  # somebody else has it
            taken.bind(("0.0.0.0", 7002))
        ports = udp_ports(2)
        for number, where in ports.items():
            _, host, port = where.split(":")
            assert ports.interface.endswith(f"{int(port) - number}+{{port}}")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                own.bind((host, int(port)))


def test_a_rate_that_is_not_known_is_a_gigabit(tmp_path: Path) -> None:
    assert link_rate("203.0.113.7") == UNKNOWN_RATE
    (tmp_path / "lo").mkdir()
    (tmp_path / "lo" / "speed").write_text("-1\n")
    assert link_rate("127.0.0.1", tmp_path) == UNKNOWN_RATE
    (tmp_path / "lo" / "speed").write_text("25000\n")
    assert link_rate("127.0.0.1", tmp_path) == 25e9
