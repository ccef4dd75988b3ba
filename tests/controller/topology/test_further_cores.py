# SPDX-License-Identifier: Apache-2.0
"""Further cores of switches, each a switch of its own to the controller."""

from __future__ import annotations

import pytest
from p4reduce_controller.topology.given import side_by_side, with_cores
from p4reduce_controller.topology.switches import ONLY, Topology, TopologyError
from p4reduce_controller.values.mac_ip import format_ip, parse_ip, parse_mac

IP, MAC = parse_ip("10.77.255.254"), parse_mac("02:70:34:72:65:64")


def switches(*names: str) -> Topology:
    return side_by_side(list(names), ["1-4"], (), IP, MAC)


def test_each_core_has_addresses_of_its_own_and_the_switch_s_ports() -> None:
    found = with_cores(switches("a", "b"), {"a": 2, "b": 3})
    assert list(found.switches) == ["a", "b", "a.core1", "b.core1", "b.core2"]
    assert found.cores("a") == ("a.core1",)
    assert found.cores("b") == ("b.core1", "b.core2")
    assert found.cores("b.core1") == ()
    assert [format_ip(each.ip) for each in found.switches.values()] == [
        f"10.77.255.{last}" for last in (254, 253, 252, 251, 250)
    ]
    assert {each.ports for each in found.switches.values()} == {(1, 2, 3, 4)}
    # What was there keeps its addresses: jobs of a former life are on it.
    assert found.switches["b"] == switches("a", "b").switches["b"]


def test_a_job_that_names_no_switch_is_for_the_only_one_whatever_its_cores() -> None:
    assert switches(ONLY).only_tree == ONLY
    assert with_cores(switches(ONLY), {ONLY: 4}).only_tree == ONLY
    assert with_cores(switches("a", "b"), {"a": 2}).only_tree == ""


def test_a_rank_that_names_no_switch_of_a_tree_hears_of_no_cores() -> None:
    assert switches("a", "b").cores("") == ()
    assert with_cores(switches("a", "b"), {"a": 2}).cores("") == ()


def test_names_and_addresses_that_there_are_not() -> None:
    with pytest.raises(TopologyError, match=r"cannot be called a\.core1"):
        with_cores(switches("a", "a.core1"), {"a": 2})
    with pytest.raises(TopologyError, match="choose another name"):
        with_cores(switches("a" * 40), {"a" * 40: 2})
    little = side_by_side([ONLY], ["1"], (), parse_ip("10.77.0.1"), MAC)
    with pytest.raises(TopologyError, match="no room"):
        with_cores(little, {ONLY: 3})
